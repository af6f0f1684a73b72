"""Chapter *refusals*: malformed arguments raise an exception; none is broadcast, cut or converted silently."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.cases import Case
from attnbench.checks.observations import Agree, Equal, Holds, Observation
from attnbench.checks.requirement import check, is_eager
from attnbench.checks.runs import compare_bitwise, try_call
from attnbench.interface import Inputs
from attnbench.masks import causal
from attnbench.operators.multihead import case_transforms
from attnbench.records.value_facts import Phrase, phrase

__all__ = ["BadCall", "make_bad_dtypes", "make_bad_shapes"]

# The checks try malformed arguments only on cases with at most this many queries and at most this
# many keys. Longer cases would only repeat the same exceptions.
LONGEST = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BadCall:
    """Arguments of a call that must raise an exception, and what is wrong if it raises none."""

    accepted: Phrase
    arguments: dict[str, Any]


def _is_small(case: Case) -> bool:
    """Whether a case is eager, short, in float32 and plain, and none of the malformed arguments is valid in it."""
    problem = case.problem
    return (
        is_eager(case)
        and case.dtype == "float32"
        and problem.regime == "plain"
        and not problem.is_causal
        and min(problem.queries, problem.keys, problem.num_heads) > 1
        and (problem.batch is None or problem.batch > 1)
        and max(problem.queries, problem.keys) <= LONGEST
    )


@check(when=_is_small)
def bad_shapes_are_refused(candidate: Candidate) -> Iterator[Observation]:
    """Tokens or masks of wrong shapes raise an exception, and is_causal=True without attn_mask is not ignored."""
    supported = _find_supported_arguments(candidate)
    for bad in make_bad_shapes(candidate.case, candidate.inputs):
        if supported.issuperset(bad.arguments):
            yield Holds(holds=_call_with(candidate, bad) is None, violation=bad.accepted)
    if "is_causal" in supported:
        yield from _check_hint_without_mask(candidate)


@check(when=_is_small)
def bad_dtypes_are_refused(candidate: Candidate) -> Iterator[Observation]:
    """Tokens of another dtype than the parameters, and masks neither boolean nor floating-point, raise exceptions."""
    supported = _find_supported_arguments(candidate)
    for bad in make_bad_dtypes(candidate.case, candidate.inputs):
        if supported.issuperset(bad.arguments):
            yield Holds(holds=_call_with(candidate, bad) is None, violation=bad.accepted)


@check(when=_is_small)
def refusals_leave_no_trace(candidate: Candidate) -> Iterator[Observation]:
    """After refused calls a valid call gives the same bits, and inputs and parameters are unchanged."""
    watched = candidate.inputs.tensors | candidate.parameters()
    values = {name: tensor.detach().clone() for name, tensor in watched.items()}
    modes, before = _read_training_flags(candidate), candidate.run()["output"].detach().clone()
    for bad in (*make_bad_shapes(candidate.case, candidate.inputs), *make_bad_dtypes(candidate.case, candidate.inputs)):
        _call_with(candidate, bad)
    yield Holds(
        holds=_read_training_flags(candidate) == modes,
        violation=phrase("training_mode_changed"),
    )
    outputs, fault = try_call(candidate.run)
    yield Holds(holds=not fault, violation=phrase("valid_call_raised", raised=fault))
    if outputs is not None:
        yield compare_bitwise(candidate, outputs["output"], before, phrase("valid_call_after_refused_calls"))
    for name, tensor in watched.items():
        yield Equal(value=tensor.detach(), expected=values[name], quantity=name, how=phrase("after_refused_calls"))


def _find_supported_arguments(candidate: Candidate) -> frozenset[str]:
    """Return the names of the arguments that the implementation supports in the case.

    ``bad_shapes_are_refused`` and ``bad_dtypes_are_refused`` test these arguments only.
    """
    problem = candidate.case.problem
    attention, padding = problem.attention_mask, problem.padding_mask
    changes_by_name: dict[str, dict[str, Any]] = {
        "attn_mask": {"mask": _join_masks("bool2d", padding)},
        "key_padding_mask": {"mask": _join_masks(attention, "pad")},
        "is_causal": {"mask": _join_masks("causal", padding), "is_causal": True},
    }
    unsupported = candidate.implementation.unsupported
    found = (
        name for name, changes in changes_by_name.items() if unsupported(candidate.case.with_problem(**changes)) is None
    )
    return frozenset({"query", "key", "value", *found})


def _join_masks(attention: str | None, padding: str | None) -> str:
    """Return the name of both masks together, such as ``causal+pad``; None stands for no mask."""
    return "+".join(part for part in (attention, padding) if part)


def _call_with(candidate: Candidate, bad: BadCall) -> dict[str, Tensor] | None:
    """Make a call that must raise an exception; return None if it did.

    Otherwise return the outputs by name, or {} if the result of the call is malformed.
    """
    arguments = bad.arguments
    options = {name: arguments.get(name, value) for name, value in candidate.inputs.options.items()}
    tensors = {n: t for n, t in (candidate.inputs.tensors | arguments).items() if n not in options and t is not None}
    try:
        return candidate.run_on(candidate.case, replace(candidate.inputs, tensors=tensors, options=options))
    except Malformed:
        return {}
    except Exception:  # noqa: BLE001  # any exception is a refusal
        return None


def _read_training_flags(candidate: Candidate) -> list[bool]:
    module = candidate.module
    return [part.training for part in module.modules()] if isinstance(module, torch.nn.Module) else []


def make_bad_shapes(case: Case, inputs: Inputs) -> Iterator[BadCall]:
    """Yield calls in which a mask, or one or several of query, key and value, have a wrong shape."""
    yield from _make_bad_tokens(case, inputs)
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
    yield from _make_bad_masks(inputs, "attn_mask", [shape for shape in masks if shape not in (shared, own)])
    if problem.batch is None:
        yield from _make_bad_masks(inputs, "key_padding_mask", [(1, keys), (keys, 1), (keys + 1,), (1,)])
        return
    padding = [
        (keys,), (1, keys), (batch, 1), (batch + 1, keys), (batch, keys + 1), (keys, batch), (batch, 1, keys),
        (batch * keys,),
    ]  # fmt: skip
    yield from _make_bad_masks(inputs, "key_padding_mask", [shape for shape in padding if shape != (batch, keys)])


def _make_bad_masks(inputs: Inputs, name: str, shapes: list[tuple[int, ...]]) -> Iterator[BadCall]:
    """Yield calls with a mask of a wrong shape.

    The mask hides nothing. It has the dtype of the case's other mask, or is boolean if the
    case has no other mask.
    """
    other = inputs.tensors.get({"attn_mask": "key_padding_mask", "key_padding_mask": "attn_mask"}[name])
    kind = torch.bool if other is None else other.dtype
    for shape in dict.fromkeys(shapes):
        mask = torch.zeros(shape, dtype=kind, device=inputs.tensors["query"].device)
        yield BadCall(accepted=phrase("mask_of_shape", name=name, shape=str(shape)), arguments={name: mask})


def _make_bad_tokens(case: Case, inputs: Inputs) -> Iterator[BadCall]:
    wider = _change_tokens(inputs, lambda tensor: _lengthen(tensor, -1))
    for name in wider:
        yield BadCall(accepted=phrase("tensor_too_wide", name=name), arguments={name: wider[name]})
    yield BadCall(accepted=phrase("tokens_too_wide"), arguments=wider)
    flat = _change_tokens(inputs, lambda tensor: tensor.flatten())
    yield BadCall(accepted=phrase("flat_query"), arguments={"query": flat["query"]})
    stacked = _change_tokens(inputs, lambda tensor: tensor.reshape((1,) * (4 - tensor.dim()) + tensor.shape))
    yield BadCall(accepted=phrase("four_dimensions"), arguments=stacked)
    longer = _change_tokens(inputs, lambda tensor: _lengthen(tensor, case_transforms.length_axis(case)))
    yield BadCall(accepted=phrase("longer_value"), arguments={"value": longer["value"]})
    if case.problem.batch is None:
        batched = _change_tokens(inputs, lambda tensor: tensor[None])
        keys = {"key": batched["key"], "value": batched["value"]}
        yield BadCall(accepted=phrase("batch_of_keys_alone"), arguments=keys)
        return
    axis = case_transforms.sequence_axis(case)
    first = _change_tokens(inputs, lambda tensor: tensor.narrow(axis, 0, 1))
    more = _change_tokens(inputs, lambda tensor: _lengthen(tensor, axis))
    without = _change_tokens(inputs, lambda tensor: tensor.select(axis, 0))
    calls = {
        "keys_of_one_sequence": first,
        "sequence_too_many": more,
        "batch_of_queries_alone": without,
    }
    for name, tokens in calls.items():
        yield BadCall(accepted=phrase(name), arguments={"key": tokens["key"], "value": tokens["value"]})
    yield BadCall(accepted=phrase("value_sequence_too_many"), arguments={"value": more["value"]})


def _change_tokens(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Return query, key and value, each changed by ``change``.

    A tensor that is passed as several of these arguments is changed once.
    """
    tokens = {name: inputs.tensors[name] for name in ("query", "key", "value")}
    made = {id(tensor): change(tensor.detach()) for tensor in tokens.values()}
    return {name: made[id(tensor)] for name, tensor in tokens.items()}


def _lengthen(tensor: Tensor, axis: int) -> Tensor:
    return torch.cat([tensor, tensor.narrow(axis, 0, 1)], dim=axis)


def make_bad_dtypes(case: Case, inputs: Inputs) -> Iterator[BadCall]:
    """Yield calls in which tokens or one mask have a wrong dtype and the right shape."""
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        plain = str(dtype).removeprefix("torch.")
        other = _change_tokens(inputs, lambda tensor, dtype=dtype: tensor.to(dtype))  # type: ignore[misc]
        calls = (
            (phrase("tokens_of_dtype", dtype=plain, own=case.dtype), other),
            (phrase("query_of_dtype", dtype=plain, own=case.dtype), {"query": other["query"]}),
            (phrase("value_of_dtype", dtype=plain, own=case.dtype), {"value": other["value"]}),
        )
        for accepted, arguments in calls:
            yield BadCall(accepted=accepted, arguments=arguments)
    problem, device = case.problem, inputs.tensors["query"].device
    padding = (problem.keys,) if problem.batch is None else (problem.batch, problem.keys)
    for name, shape in (("attn_mask", (problem.queries, problem.keys)), ("key_padding_mask", padding)):
        for dtype in (torch.uint8, torch.int64, torch.complex64):
            mask = torch.zeros(shape, dtype=dtype, device=device)
            accepted = phrase("mask_of_dtype", name=name, dtype=str(dtype).removeprefix("torch."))
            yield BadCall(accepted=accepted, arguments={name: mask})


def _check_hint_without_mask(candidate: Candidate) -> Iterator[Observation]:
    """Observe that is_causal=True without attn_mask raises an exception, or gives the output of the causal mask."""
    hinted = BadCall(accepted=phrase("malformed_result"), arguments={"attn_mask": None, "is_causal": True})
    outputs = _call_with(candidate, hinted)
    if not outputs:
        yield Holds(holds=outputs is None, violation=hinted.accepted)
        return
    problem, tensors = candidate.case.problem, candidate.inputs.tensors
    keep = causal(problem.queries, problem.keys, tensors["query"].device, polarity="keep")
    if candidate.implementation.policies.causal == "bottom_right":
        keep = torch.ones_like(keep).tril(problem.keys - problem.queries)
    mask = _join_masks("causal", problem.padding_mask)
    inputs = replace(
        candidate.inputs, tensors=tensors | {"attn_mask": ~keep}, options=candidate.inputs.options | {"is_causal": True}
    )
    masked = candidate.run_on(candidate.case.with_problem(mask=mask, is_causal=True), inputs)
    yield Agree(
        value=outputs["output"].detach(), expected=masked["output"].detach(), quantity="output",
        how=phrase("hint_without_mask"),
    )  # fmt: skip
