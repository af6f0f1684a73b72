"""The operator ``attention_core`` with fault models of what only a call from a test has: any mask, functions, sinks."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Axis, FaultModel, Inputs
from attnbench.operators.attention_core import AttentionCore
from attnbench.operators.attention_core.axes import describe_axes
from attnbench.operators.attention_core.oracle import Steps
from attnbench.operators.attention_core.problem import AttentionCoreProblem

__all__ = ["GivenAttention"]

# What faults of a bias are called where the bias is any mask.
_OF_MASK = {"mask": "mask"}
AS_MASK: dict[str, dict[str, Any]] = {
    "bias_added_twice": {"name": "mask_added_twice", "values": _OF_MASK},
    "bias_after_softmax": {"name": "mask_after_softmax", "values": _OF_MASK, "of_mask": True},
    "bias_ignored": {"name": "mask_ignored", "values": _OF_MASK, "of_mask": True},
    "bias_scaled": {"name": "mask_scaled", "values": _OF_MASK},
}


class GivenAttention(AttentionCore):
    """Attention on the tensors of one call."""

    def __init__(self, inputs: Inputs) -> None:
        self._given = inputs

    def axes(self, case: Case, quantity: str) -> Sequence[Axis]:
        """Return the named axes of a quantity; a mask may have size 1 along an axis."""
        found = describe_axes(case, quantity)
        if quantity != "grad.bias":
            return found
        shape = self._given.tensors["bias"].shape
        return [replace(axis, positions=range(extent)) for axis, extent in zip(found, shape, strict=True)]

    def fault_models(self, case: Case, quantities: Collection[str]) -> Sequence[FaultModel]:
        """Return the fault models of the case, and those of masks, functions of the logits, and sinks."""
        known = [replace(model, **AS_MASK.get(model.name, {})) for model in super().fault_models(case, quantities)]
        return [*known, *self._generate_given_faults(case)]

    def _generate_given_faults(self, case: Case) -> Iterator[FaultModel]:
        if case.problem.bias_hides:
            yield _make_fault("mask_inverted", _invert_bias, **_OF_MASK)
        if "visible" in self._given.tensors:
            values = {"mask": "mask_mod"} if case.problem.bias else _OF_MASK
            yield _make_fault("mask_ignored", partial(_remove, "visible"), **values)
            yield _make_fault("mask_inverted", _invert_visible, **values)
            late = Steps(receive=lambda problem, inputs: (problem, _remove("visible", inputs)), reweigh=_hide_weights)
            yield FaultModel(name="mask_after_softmax", fault=late, values=values, of_mask=True)
        if self._given.options.get("score_mod") is not None:
            yield _make_fault("score_mod_ignored", _remove_score_mod)
            yield _make_fault("score_mod_before_scale", partial(_unscale, case.problem.logit_scale))
        if "sinks" in self._given.tensors:
            yield _make_fault("sinks_ignored", partial(_remove, "sinks"))


def _make_fault(name: str, change: Callable[[Inputs], Inputs], **values: str) -> FaultModel:
    steps = Steps(receive=lambda problem, inputs: (problem, change(inputs)))
    return FaultModel(name=name, fault=steps, values=values, of_mask=name.startswith("mask"))


def _invert_bias(inputs: Inputs) -> Inputs:
    bias = inputs.tensors["bias"]
    hidden = bias.isneginf()
    inverted = torch.where(hidden, 0.0, -torch.inf).to(bias.dtype)
    return replace(inputs, tensors=inputs.tensors | {"bias": inverted})


def _invert_visible(inputs: Inputs) -> Inputs:
    return replace(inputs, tensors=inputs.tensors | {"visible": ~inputs.tensors["visible"]})


def _hide_weights(problem: AttentionCoreProblem, inputs: Inputs, weights: Tensor) -> Tensor:
    del problem
    return weights.masked_fill(~inputs.tensors["visible"], 0.0)


def _remove_score_mod(inputs: Inputs) -> Inputs:
    return replace(inputs, options=inputs.options | {"score_mod": None})


def _unscale(scale: float, inputs: Inputs) -> Inputs:
    """Return inputs whose function gets the logits before they are scaled."""
    change = inputs.options["score_mod"]
    options = {"score_mod": lambda logits, *indices: change(logits / scale, *indices) * scale}
    return replace(inputs, options=inputs.options | options)


def _remove(tensor: str, inputs: Inputs) -> Inputs:
    return replace(inputs, tensors={name: one for name, one in inputs.tensors.items() if name != tensor})
