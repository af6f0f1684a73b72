"""Which situations a model has, and which of its calls belong to one."""

from collections.abc import Sequence
from typing import Any

from attnmodels.facts import Situation
from attnmodels.inputs import Features, find_arguments
from attnmodels.recording import Call

__all__ = ["find_reason", "has_feature"]

WITH_CACHE = ("cached-prefix", "chunks", "decoding", "padded-cache")
PADDED = ("right-padding", "left-padding")
FEATURES: dict[str, str] = {
    "window": "no window", "grouped-heads": "no grouped heads", "soft-cap": "no soft cap", "sinks": "no sinks",
}  # fmt: skip


def has_feature(situation: Situation, call: Call) -> bool:
    """Whether a call belongs to a situation: those of one feature have the calls with this feature alone."""
    has = {
        "window": call.window is not None,
        "grouped-heads": call.query.shape[1] != call.key.shape[1],
        "soft-cap": call.demand.softcap is not None,
        "sinks": call.demand.sinks is not None,
    }
    return has.get(situation, True)


def find_reason(
    situation: Situation, model: Any, calls: Sequence[Call], features: Features | None = None
) -> str | None:
    """Return why a model does not have a situation; None if it does. ``calls`` are those without padding."""
    if situation in FEATURES:
        return None if any(has_feature(situation, call) for call in calls) else FEATURES[situation]
    if situation in ("no-padding", "training", "dropout", "bfloat16", "float16"):
        return None
    if features is not None and situation == "right-padding":
        return None if features.padded else "no attention mask"
    if all(call.queries is None for call in calls):
        return "no tokens"
    return _find_missing(situation, model, calls)


def _find_missing(situation: Situation, model: Any, calls: Sequence[Call]) -> str | None:
    """Return what a model of tokens lacks for a situation."""
    arguments = find_arguments(model)
    if situation in (*PADDED, "padded-cache") and not {"attention_mask", "decoder_attention_mask"} & arguments:
        return "no attention mask"
    if situation in PADDED:
        return None
    if situation == "packed":
        if model.config.is_encoder_decoder:
            return "encoder and decoder"
        if "position_ids" not in arguments:
            return "no position ids"
    if situation in ("packed", *WITH_CACHE) and not _is_causal(calls):
        return "not causal"
    return "no cache" if situation in WITH_CACHE and "past_key_values" not in arguments else None


def _is_causal(calls: Sequence[Call]) -> bool:
    """Whether a layer is causal among the tokens that a pass is about."""
    return any(call.own_tokens and not bool(call.demand.visible.triu(1).any()) for call in calls)
