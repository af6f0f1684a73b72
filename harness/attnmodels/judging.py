"""One call of an attention function, judged on the numbers of the call."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench.records.value_facts import ValueFact, ValuesOff, store_number
from attnbench.testing.assertions import judge_call
from attnmodels.facts import (
    Cause,
    ModelFact,
    NotDropped,
    NotFiniteAtPadding,
    NumbersDiffer,
    Unrepeatable,
    Visibility,
    WrongResult,
)
from attnmodels.formula import Demand, attend, list_faults
from attnmodels.recording import Call, Function, Given
from attnmodels.tokens import Asked, Pattern, compare_visible

__all__ = ["judge", "judge_dropout"]

# Weights below this are 0. With one-hot values, queries are so small that logits without a mask are within 1 of each
# other, and weights of visible keys are near 1 / keys.
HIDDEN_WEIGHT = 1e-6
# Relative difference of the numbers that reach a function in float32 from those of the model in float64. Rounding of
# two layers is about 1e-6; another position, scale or head gives 1e-2 and more.
NUMBERS = 1e-3
# How many times as much as in the outputs casts may change the numbers of a layer: 2.3 was measured in LTX-Video.
CASTS = 4
# Errors up to this multiple of the budget of a single call are rounding. Where attention is saturated, as in the deep
# layers of a model with random weights, the gradients of a blockwise softmax by autograd reach 1.2.
MARGIN = 2.0
# A fault model is the cause if it leaves this share of the error.
EXPLAINED = 0.05


def judge(
    function: Function, given: Given, call: Call, pattern: Pattern | None, cast_floor: float, *, gradients: bool
) -> list[ModelFact]:
    """Return what is wrong with a call of a function, by what its layer asked for in ``call``.

    ``pattern`` is the pattern of the layer's mask, if it is known; ``cast_floor`` is the relative difference that casts
    to float32 inside the model make.

    Raises: what the function raises.
    """
    if differing := next(_compare_numbers(given, call, NUMBERS + CASTS * cast_floor), None):
        return [differing]
    if dropped := _judge_repeat(function, given, call):
        return [dropped]
    if seen := _judge_visibility(function, given, call, pattern):
        return [seen]
    return list(_judge_result(function, given, call, gradients=gradients))


def judge_dropout(function: Function, given: Given, dropout: float) -> list[ModelFact]:
    """Return whether a function drops weights in training, where its layer asks for it.

    Raises: what the function raises.
    """
    one, other = (_run(function, given) for _ in range(2))
    return [NotDropped(dropout=dropout)] if torch.equal(one, other) else []


def _judge_repeat(function: Function, given: Given, call: Call) -> Unrepeatable | None:
    one, other = (_run(function, given) for _ in range(2))
    apart = _find_difference(one, other, call.judged)
    return Unrepeatable(apart=store_number(apart)) if apart > _noise(one) else None


def _compare_numbers(given: Given, call: Call, relative: float) -> Iterator[NumbersDiffer]:
    for name in ("query", "key", "value"):
        one, expected = getattr(given, name), getattr(call, name)
        real = call.queries if name == "query" else call.keys
        rows = torch.ones(one.shape[0], one.shape[2], dtype=torch.bool) if real is None else real.real
        precise = one.dtype == torch.float32
        apart = (one.double() - expected)[rows[:, None, :].expand(one.shape[:3])].abs().amax().item()
        # Narrower numbers need only be finite: their rounding errors have no bound that is derived.
        allowed = relative * expected.abs().amax().item() if precise else torch.finfo(torch.float32).max
        if not apart <= allowed:
            yield NumbersDiffer(tensor=name, apart=store_number(apart), allowed=store_number(allowed))


def _judge_visibility(function: Function, given: Given, call: Call, pattern: Pattern | None) -> Visibility | None:
    asked = Asked(
        visible=call.demand.visible, judged=call.judged, pattern=pattern, queries=call.queries, keys=call.keys
    )  # fmt: skip
    return compare_visible(_measure_seen(function, given, call), asked, masked=given.mask is not None)


def _measure_seen(function: Function, given: Given, call: Call) -> Tensor:
    """Return which keys have a weight, which one-hot values show.

    Shape: (batch, heads, queries, keys).
    """
    width, keys = given.value.shape[-1], given.key.shape[2]
    longest = [float(one.detach().double().norm(dim=-1).amax()) for one in (given.query, given.key)]
    flat = replace(given, query=given.query / (2 + 2 * longest[0] * longest[1] * max(1.0, call.demand.scale)))
    columns = []
    for begin in range(0, keys, width):
        values = torch.zeros_like(given.value)
        count = min(width, keys - begin)
        values[:, :, range(begin, begin + count), range(count)] = 1
        columns.append(_run(function, replace(flat, value=values))[..., :count])
    return torch.cat(columns, dim=-1).abs() > HIDDEN_WEIGHT


def _run(function: Function, given: Given, **tensors: Any) -> Tensor:
    """Return the output. Shape: (batch, heads, queries, width)."""
    given = replace(given, **tensors)
    output = function(given.module, given.query, given.key, given.value, given.mask, **given.others)[0]
    return output.transpose(1, 2)


def _judge_result(function: Function, given: Given, call: Call, *, gradients: bool) -> Iterator[ModelFact]:
    leaves = {
        name: getattr(given, name).detach().clone().requires_grad_(gradients) for name in ("query", "key", "value")
    }
    with torch.set_grad_enabled(gradients):
        output = _run(function, given, **leaves)
    judged = call.judged
    finite = all(bool(one.isfinite().all()) for one in leaves.values())
    if finite and (unknown := int((~output.isfinite() & ~judged).any(-1).any(1).sum())):
        yield NotFiniteAtPadding(queries=unknown)
        return
    arguments = _as_arguments(call.demand, judged, output.dtype)
    kept = torch.where(judged, output.detach(), torch.zeros((), dtype=output.dtype))
    q, k, v = (leaves[name].detach() for name in ("query", "key", "value"))
    asked: dict[str, Any] = {}
    if gradients:
        generator = torch.Generator().manual_seed(7)
        cotangent = torch.where(judged, torch.randn(output.shape, generator=generator), 0.0).to(output.dtype)
        found = torch.autograd.grad(output, list(leaves.values()), cotangent)
        asked = {"gradients": dict(zip("qkv", found, strict=True)), "cotangent": cotangent}
    with torch.set_grad_enabled(gradients):
        found_wrong = judge_call(kept, q, k, v, **arguments, **asked)
    facts = tuple(one for one in found_wrong if not _is_rounding(one))
    if facts:
        yield WrongResult(facts=facts, cause=_find_cause(kept, call.demand, judged, q, k, v))


def _is_rounding(fact: ValueFact) -> bool:
    return isinstance(fact, ValuesOff) and float(fact.worst) <= MARGIN * float(fact.limit.allowed)


def _as_arguments(demand: Demand, judged: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """Return a demand as the arguments of ``attnbench.testing``; queries that are not judged see no key."""
    mask = demand.visible & judged
    cap = demand.softcap
    return {
        "mask": mask if demand.bias is None else torch.where(mask, demand.bias.to(dtype), float("-inf")),
        "scale": demand.scale,
        "score_mod": None if cap is None else lambda logits, *_: cap * (logits / cap).tanh(),
        "enable_gqa": True,
        "sinks": None if demand.sinks is None else demand.sinks.to(dtype),
    }


def _find_cause(output: Tensor, demand: Demand, judged: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Cause | None:
    """Return the argument without which the exact formula gives the output."""
    q, k, v = (one.double() for one in (q, k, v))
    away = _find_difference(output, attend(demand, q, k, v), judged)
    left = [
        (_find_difference(output, attend(fault, q, k, v), judged), number, cause)
        for number, (cause, fault) in enumerate(list_faults(demand, q, k))
    ]
    best = min(left, default=None)
    return best[2] if best is not None and best[0] <= EXPLAINED * away else None


def _find_difference(one: Tensor, other: Tensor, judged: Tensor) -> float:
    apart = (one.detach().double() - other.detach().double()).abs()
    return float(apart.masked_fill(~judged, 0.0).amax())


def _noise(output: Tensor) -> float:
    """Return how far two equal calls may be apart, whose sums are in another order."""
    return 64 * torch.finfo(output.dtype).eps * float(output.detach().abs().amax())
