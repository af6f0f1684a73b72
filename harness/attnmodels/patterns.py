"""The pattern of each layer's mask, and what a model's own masks and numbers do to it in a situation."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from attnbench.records.value_facts import store_number
from attnmodels.facts import ModelFact, PathsDiffer, Visibility
from attnmodels.recording import Call
from attnmodels.tokens import Asked, Pattern, compare_visible, derive_visible, find_cause

__all__ = ["compare_alone", "find_patterns", "judge_mask"]

TENSORS = ("query", "key", "value", "output")


def find_patterns(calls: Sequence[Call]) -> dict[tuple[str, int], Pattern | None]:
    """Return the patterns of the calls of a pass on one whole sequence, by layer and occurrence; None if unknown.

    If one layer is causal among some tokens, then every layer is causal among them. The window is that of the layer's
    attributes. A mask without the one or the other is not the layer's pattern.
    """
    causal = {id(one.queries) for one in calls if one.own_tokens and not bool(one.demand.visible.triu(1).any())}
    return {
        (one.layer, one.occurrence): _find_pattern(one, causal=id(one.queries) in causal) for one in calls
    }  # fmt: skip


def _find_pattern(call: Call, *, causal: bool) -> Pattern | None:
    visible = call.demand.visible
    if call.queries is None or call.keys is None or not call.own_tokens:
        diagonal = visible.shape[-1] - visible.shape[-2]
        plain = bool(visible.all()) or bool((visible == torch.ones_like(visible).tril(diagonal)).all())
        return Pattern(causal=not bool(visible.all()), window=None) if plain else None
    pattern = Pattern(causal=causal, window=call.window)
    derived = derive_visible(pattern, call.queries, call.keys)
    if torch.equal(derived.expand_as(visible), visible):
        return pattern
    asked = Asked(visible=derived, judged=call.judged, pattern=pattern, queries=call.queries, keys=call.keys)
    cause = find_cause(visible, asked, masked=False)
    return pattern if cause is not None and cause.change in ("ignored", "shifted") else None


def judge_mask(call: Call, pattern: Pattern) -> Visibility | None:
    """Compare the mask that a layer hands to exact attention with the pattern, on the tokens of a situation."""
    if call.queries is None or call.keys is None:
        return None
    asked = derive_visible(pattern, call.queries, call.keys)
    judged = asked.any(-1, keepdim=True) & call.queries.real[:, None, :, None]
    known = Asked(visible=asked, judged=judged, pattern=pattern, queries=call.queries, keys=call.keys)
    return compare_visible(call.demand.visible, known, masked=True)


def compare_alone(calls: Iterable[Call], alone: Iterable[Call], relative: float) -> Iterator[tuple[Call, ModelFact]]:
    """Yield each call whose numbers differ from those of its sequences alone, by more than ``relative``."""
    expected = {place: row for call in alone for name in TENSORS for place, row in _collect_rows(call, name).items()}
    for call in calls:
        for name in TENSORS:
            pairs = [(row, expected[at]) for at, row in _collect_rows(call, name).items() if at in expected]
            if not pairs:
                continue
            one, other = (torch.stack(rows) for rows in zip(*pairs, strict=True))
            apart, allowed = float((one - other).abs().amax()), relative * max(1.0, float(other.abs().amax()))
            if not apart <= allowed:
                yield call, PathsDiffer(tensor=name, apart=store_number(apart), allowed=store_number(allowed))
                break


def _collect_rows(call: Call, name: str) -> dict[tuple[object, ...], Tensor]:
    """Return the numbers of each token of a call: by layer, tensor, sequence and position."""
    tokens = call.queries if name in ("query", "output") else call.keys
    if tokens is None:
        return {}
    rows: Tensor = getattr(call, name)
    return {
        (call.layer, call.occurrence, name, int(tokens.sequence[batch, column]), int(tokens.position[batch, column])):
        rows[batch, :, column]
        for batch in range(len(tokens.column)) for column in range(len(tokens)) if bool(tokens.real[batch, column])
    }  # fmt: skip
