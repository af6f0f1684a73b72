"""Chapter *refusals*: what is malformed raises an exception; nothing is stretched, cut or converted in silence."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.cases import Case
from attnbench.checks.observations import Agree, Equal, Holds, Observation
from attnbench.checks.requirement import check, eager
from attnbench.checks.runs import attempted, same
from attnbench.interface import Inputs
from attnbench.masks import causal
from attnbench.operators.multihead import case_transforms

__all__ = ["Bad", "bad_dtypes", "bad_shapes"]

# Largest length of the cases that are spoiled: larger ones are refused for the same reasons.
LONGEST = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """Arguments of a call that must be refused."""

    what: str
    arguments: dict[str, Any]


def _small(case: Case) -> bool:
    problem = case.problem
    return (
        eager(case)
        and case.dtype == "float32"
        and problem.regime == "plain"
        and not problem.is_causal
        and min(problem.queries, problem.keys, problem.num_heads) > 1
        and (problem.batch is None or problem.batch > 1)
        and max(problem.queries, problem.keys) <= LONGEST
    )


@check(when=_small)
def bad_shapes_are_refused(candidate: Candidate) -> Iterator[Observation]:
    """Tokens or masks whose shapes do not fit raise an exception, and a causal hint without its mask is not ignored."""
    known = _known(candidate)
    for bad in bad_shapes(candidate.case, candidate.inputs):
        if known.issuperset(bad.arguments):
            yield Holds(holds=_taken(candidate, bad) is None, what=f"{bad.what} was taken")
    if "is_causal" in known:
        yield from _hint_without_mask(candidate)


@check(when=_small)
def bad_dtypes_are_refused(candidate: Candidate) -> Iterator[Observation]:
    """Tokens of another dtype than the parameters', and masks that are neither boolean nor real, raise an exception."""
    known = _known(candidate)
    for bad in bad_dtypes(candidate.case, candidate.inputs):
        if known.issuperset(bad.arguments):
            yield Holds(holds=_taken(candidate, bad) is None, what=f"{bad.what} was taken")


@check(when=_small)
def refusals_leave_no_trace(candidate: Candidate) -> Iterator[Observation]:
    """After calls that were refused, the right call gives the same bits, and inputs and parameters are as they were."""
    watched = candidate.inputs.tensors | candidate.parameters()
    values = {name: tensor.detach().clone() for name, tensor in watched.items()}
    modes, before = _modes(candidate), candidate.run()["output"].detach().clone()
    for bad in (*bad_shapes(candidate.case, candidate.inputs), *bad_dtypes(candidate.case, candidate.inputs)):
        _taken(candidate, bad)
    yield Holds(holds=_modes(candidate) == modes, what="training and eval of its modules changed")
    outputs, fault = attempted(candidate.run)
    yield Holds(holds=not fault, what=f"the right call after refused ones raised {fault}")
    if outputs is not None:
        yield same(candidate, outputs["output"], before, "of the right call after refused ones")
    for name, tensor in watched.items():
        yield Equal(value=tensor.detach(), expected=values[name], what=f"{name} after refused calls")


def _known(candidate: Candidate) -> frozenset[str]:
    """Arguments that the implementation has at all: what it never gets, it cannot refuse."""
    problem = candidate.case.problem
    attention, padding = problem.attention_mask, problem.padding_mask
    asked: dict[str, dict[str, Any]] = {
        "attn_mask": {"mask": _joined("bool2d", padding)},
        "key_padding_mask": {"mask": _joined(attention, "pad")},
        "is_causal": {"mask": _joined("causal", padding), "is_causal": True},
    }
    unsupported = candidate.implementation.unsupported
    has = (name for name, changes in asked.items() if unsupported(candidate.case.with_problem(**changes)) is None)
    return frozenset({"query", "key", "value", *has})


def _joined(attention: str | None, padding: str | None) -> str:
    """Name of two masks together."""
    return "+".join(part for part in (attention, padding) if part)


def _taken(candidate: Candidate, bad: Bad) -> dict[str, Tensor] | None:
    """What a call that must be refused returned, or None where it raised."""
    arguments = bad.arguments
    options = {name: arguments.get(name, value) for name, value in candidate.inputs.options.items()}
    tensors = {n: t for n, t in (candidate.inputs.tensors | arguments).items() if n not in options and t is not None}
    try:
        return candidate.on(candidate.case, replace(candidate.inputs, tensors=tensors, options=options))
    except Malformed:
        return {}
    except Exception:  # noqa: BLE001  # any exception is a refusal
        return None


def _modes(candidate: Candidate) -> list[bool]:
    module = candidate.module
    return [part.training for part in module.modules()] if isinstance(module, torch.nn.Module) else []


def bad_shapes(case: Case, inputs: Inputs) -> Iterator[Bad]:
    """Calls of one tensor, or of tokens alike, whose shapes are not those of the case."""
    yield from _bad_tokens(case, inputs)
    problem = case.problem
    heads, queries, keys = problem.num_heads, problem.queries, problem.keys
    batch = problem.sequences
    shared, own = (queries, keys), (batch * heads, queries, keys)
    masks = [
        (keys,), (queries * keys,), (1, keys), (queries, 1), (1, 1), (1, queries * keys), (keys, queries),
        (queries, keys + 1), (queries + 1, keys), (1, *shared), (batch, *shared), (heads, *shared),
        (batch * heads + 1, *shared), (batch * heads, queries, keys + 1), (batch, heads, *shared), (1, 1, *shared),
        (queries, 1, keys, 1),
    ]  # fmt: skip
    yield from _bad_masks(inputs, "attn_mask", [shape for shape in masks if shape not in (shared, own)])
    if problem.batch is None:
        yield from _bad_masks(inputs, "key_padding_mask", [(1, keys), (keys, 1), (keys + 1,), (1,)])
        return
    padding = [
        (keys,), (1, keys), (batch, 1), (batch + 1, keys), (batch, keys + 1), (keys, batch), (batch, 1, keys),
        (batch * keys,),
    ]  # fmt: skip
    yield from _bad_masks(inputs, "key_padding_mask", [shape for shape in padding if shape != (batch, keys)])


def _bad_masks(inputs: Inputs, name: str, shapes: list[tuple[int, ...]]) -> Iterator[Bad]:
    """Masks that hide nothing, and of the kind of the other mask, so that their shape alone is wrong."""
    other = inputs.tensors.get({"attn_mask": "key_padding_mask", "key_padding_mask": "attn_mask"}[name])
    kind = torch.bool if other is None else other.dtype
    for shape in dict.fromkeys(shapes):
        mask = torch.zeros(shape, dtype=kind, device=inputs.tensors["query"].device)
        yield Bad(what=f"{name} of shape {shape}", arguments={name: mask})


def _bad_tokens(case: Case, inputs: Inputs) -> Iterator[Bad]:
    wider = _each(inputs, lambda tensor: _longer(tensor, -1))
    for name in wider:
        yield Bad(what=f"{name} with one feature too many", arguments={name: wider[name]})
    yield Bad(what="tokens with one feature too many", arguments=wider)
    flat = _each(inputs, lambda tensor: tensor.flatten())
    yield Bad(what="query of one dimension", arguments={"query": flat["query"]})
    stacked = _each(inputs, lambda tensor: tensor.reshape((1,) * (4 - tensor.dim()) + tensor.shape))
    yield Bad(what="tokens of four dimensions", arguments=stacked)
    longer = _each(inputs, lambda tensor: _longer(tensor, case_transforms.length_axis(case)))
    yield Bad(what="value one token longer than key", arguments={"value": longer["value"]})
    if case.problem.batch is None:
        batched = _each(inputs, lambda tensor: tensor[None])
        keys = {"key": batched["key"], "value": batched["value"]}
        yield Bad(what="query without a batch beside key and value with one", arguments=keys)
        return
    axis = case_transforms.sequence_axis(case)
    first = _each(inputs, lambda tensor: tensor.narrow(axis, 0, 1))
    more = _each(inputs, lambda tensor: _longer(tensor, axis))
    without = _each(inputs, lambda tensor: tensor.select(axis, 0))
    told = {
        f"key and value of one sequence for {case.problem.batch} of queries": first,
        "key and value of one sequence too many": more,
        "query with a batch beside key and value without one": without,
    }
    for what, tokens in told.items():
        yield Bad(what=what, arguments={"key": tokens["key"], "value": tokens["value"]})
    yield Bad(what="value of one sequence too many", arguments={"value": more["value"]})


def _each(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Query, key and value, each changed once, however many names it has."""
    tokens = {name: inputs.tensors[name] for name in ("query", "key", "value")}
    made = {id(tensor): change(tensor.detach()) for tensor in tokens.values()}
    return {name: made[id(tensor)] for name, tensor in tokens.items()}


def _longer(tensor: Tensor, axis: int) -> Tensor:
    return torch.cat([tensor, tensor.narrow(axis, 0, 1)], dim=axis)


def bad_dtypes(case: Case, inputs: Inputs) -> Iterator[Bad]:
    """Calls of tokens, or of one mask, whose dtype is wrong and whose shapes are right."""
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        plain = str(dtype).removeprefix("torch.")
        other = _each(inputs, lambda tensor, dtype=dtype: tensor.to(dtype))  # type: ignore[misc]
        yield Bad(what=f"tokens of {plain} for parameters of {case.dtype}", arguments=other)
        yield Bad(what=f"query of {plain} beside key and value of {case.dtype}", arguments={"query": other["query"]})
        yield Bad(what=f"value of {plain} beside query and key of {case.dtype}", arguments={"value": other["value"]})
    problem, device = case.problem, inputs.tensors["query"].device
    padding = (problem.keys,) if problem.batch is None else (problem.batch, problem.keys)
    for name, shape in (("attn_mask", (problem.queries, problem.keys)), ("key_padding_mask", padding)):
        for dtype in (torch.uint8, torch.int64, torch.complex64):
            mask = torch.zeros(shape, dtype=dtype, device=device)
            yield Bad(what=f"{name} of {str(dtype).removeprefix('torch.')}", arguments={name: mask})


def _hint_without_mask(candidate: Candidate) -> Iterator[Observation]:
    """The hint alone raises, or hides what it says."""
    hinted = Bad(what="is_causal=True without attn_mask", arguments={"attn_mask": None, "is_causal": True})
    outputs = _taken(candidate, hinted)
    if not outputs:
        yield Holds(holds=outputs is None, what=f"{hinted.what} gave no result and raised nothing")
        return
    problem, tensors = candidate.case.problem, candidate.inputs.tensors
    keep = causal(problem.queries, problem.keys, tensors["query"].device, polarity="keep")
    if candidate.implementation.policies.causal == "bottom_right":
        keep = torch.ones_like(keep).tril(problem.keys - problem.queries)
    mask = _joined("causal", problem.padding_mask)
    inputs = replace(
        candidate.inputs, tensors=tensors | {"attn_mask": ~keep}, options=candidate.inputs.options | {"is_causal": True}
    )
    masked = candidate.on(candidate.case.with_problem(mask=mask, is_causal=True), inputs)
    yield Agree(
        value=outputs["output"].detach(), expected=masked["output"].detach(), quantity="output",
        what="the output under is_causal=True without attn_mask, against that under the causal mask",
    )  # fmt: skip
