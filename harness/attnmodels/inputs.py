"""The inputs of a model in a situation: one or more forward passes, with the tokens of each."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnmodels.facts import Situation
from attnmodels.tokens import Tokens

__all__ = ["Features", "Forward", "Plan", "find_arguments", "list_alone", "plan_batch", "plan_situation"]

# Sequences of tokens: longer than the window of a small configuration, and of lengths that no two streams share.
LENGTH, SHORTER, ENCODER_LENGTH, ENCODER_SHORTER = 12, 7, 10, 5
# A prefix that is cached, and the tokens of a chunk.
PREFIX, CHUNK = 7, 4
# Positions of audio features for each position of the encoder, in Whisper and its relatives.
FRAMES = 2


@dataclass(frozen=True, slots=True)
class Forward:
    """The arguments of a forward pass, and the tokens of its queries, of its keys and of the encoder, where known."""

    arguments: dict[str, Any]
    queries: Tokens | None = None
    keys: Tokens | None = None
    encoder: Tokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The forward passes of a situation; with ``cached``, each continues the cache of the one before."""

    forwards: list[Forward]
    cached: bool = False
    training: bool = False
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True)
class Features:
    """The arguments of a model that is not given tokens: whole, and with a mask of padding if it takes one."""

    arguments: dict[str, Any]
    padded: dict[str, Any] | None = None


def find_arguments(model: nn.Module) -> frozenset[str]:
    """Return the names of the arguments of a model's forward; ``use_cache`` may be one that it passes on."""
    parameters = inspect.signature(model.forward).parameters
    passes_on = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return frozenset(parameters) | ({"use_cache"} if passes_on else set())


@dataclass(frozen=True, slots=True)
class _Text:
    """Draws sequences of tokens, and lays them out for a model's forward."""

    model: Any
    arguments: frozenset[str]

    def lay_out(
        self, rows: Sequence[Sequence[tuple[int, int] | None]], *, mask: bool = False, positions: bool = False
    ) -> Forward:
        """Return the forward pass on rows of (sequence, position), with None for padding.

        ``mask`` and ``positions``: whether the model is given a mask of padding, and position ids, if it takes them.
        """
        tokens = Tokens.arrange(rows)
        config = self.model.config
        given: dict[str, Any] = {"use_cache": False}
        if config.is_encoder_decoder:
            return self._lay_out_decoder(tokens, given, mask=mask, positions=positions)
        given["input_ids"] = self._draw(tokens)
        if mask:
            given["attention_mask"] = tokens.real.long()
        if positions:
            given["position_ids"] = tokens.position
        return Forward(self._keep(given), tokens, tokens)

    def _lay_out_decoder(self, tokens: Tokens, given: dict[str, Any], *, mask: bool, positions: bool) -> Forward:
        given["decoder_input_ids"] = self._draw(tokens)
        if mask:
            given["decoder_attention_mask"] = tokens.real.long()
        if positions:
            given["decoder_position_ids"] = tokens.position
        if self.model.main_input_name != "input_ids":
            audio = _draw_features(self.model.config, tokens.sequence.amax(1).tolist())
            return Forward(self._keep(given | {self.model.main_input_name: audio}), tokens, tokens)
        lengths = [ENCODER_LENGTH if int(row.sum()) > SHORTER else ENCODER_SHORTER for row in tokens.real]
        rows = [
            [(int(sequence.max()), position) for position in range(length)] + [None] * (max(lengths) - length)
            for length, sequence in zip(lengths, tokens.sequence, strict=True)
        ]  # fmt: skip
        if mask and not bool(tokens.real[:, 0].all()):
            rows = [[one for one in row if one is None] + [one for one in row if one is not None] for row in rows]
        encoder = Tokens.arrange(rows)
        given["input_ids"] = self._draw(encoder)
        if mask:
            given["attention_mask"] = encoder.real.long()
        return Forward(self._keep(given), tokens, tokens, encoder)

    def _draw(self, tokens: Tokens) -> Tensor:
        """Return ids that depend on sequence and position alone, and are no special tokens."""
        config = self.model.config.get_text_config(decoder=True)
        special = {str(value) for name, value in vars(config).items() if name.endswith("_token_id")}
        plain = torch.tensor([one for one in range(min(config.vocab_size, 4096)) if str(one) not in special])
        generator = torch.Generator().manual_seed(7)
        drawn = torch.randint(len(plain), (16, 64), generator=generator)
        ids = plain[drawn[tokens.sequence % 16, tokens.position % 64]]
        padding = config.pad_token_id if isinstance(config.pad_token_id, int) else 0
        return torch.where(tokens.real, ids, padding)

    def _keep(self, given: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if name in self.arguments}


def plan_situation(model: Any, situation: Situation, features: Features | None = None) -> Plan:
    """Return the forward passes of a situation that the model has; ``features`` are those of one without tokens."""
    if features is not None:
        padded = situation in ("right-padding", "training", "dropout", "bfloat16", "float16") and features.padded
        return _in_mode(Plan(forwards=[Forward(padded or features.arguments)]), situation)
    if not _has_tokens(model):
        drawn = _draw_features(model.config, [0, 1])
        return _in_mode(Plan(forwards=[Forward({model.main_input_name: drawn})]), situation)
    text = _Text(model, find_arguments(model))
    whole = [_sequence(number, LENGTH) for number in range(2)]
    ragged = [_sequence(0, LENGTH), _sequence(1, SHORTER)]
    padding: list[None] = [None] * (LENGTH - SHORTER)
    if situation == "alone":
        return Plan(forwards=[text.lay_out([row]) for row in ragged])
    if situation == "no-padding":
        window = getattr(model.config.get_text_config(decoder=True), "sliding_window", None)
        length = window if window and window < LENGTH else LENGTH
        return Plan(forwards=[text.lay_out([row[:length] for row in whole])])
    if situation in ("left-padding", "padded-cache"):
        left = text.lay_out([ragged[0], [*padding, *ragged[1]]], mask=True, positions=True)
        return (
            Plan(forwards=[left]) if situation == "left-padding" else _divide(left, [PREFIX, *[1] * (LENGTH - PREFIX)])
        )
    if situation == "packed":
        return Plan(forwards=[text.lay_out([[*ragged[0], *ragged[1]]], positions=True)])
    if situation in ("right-padding", "training", "dropout", "bfloat16", "float16"):
        return _in_mode(Plan(forwards=[text.lay_out([ragged[0], [*ragged[1], *padding]], mask=True)]), situation)
    plan = Plan(forwards=[text.lay_out(whole)])
    sizes = {
        "cached-prefix": [PREFIX, LENGTH - PREFIX],
        "chunks": [CHUNK] * (LENGTH // CHUNK),
        "decoding": [1] * LENGTH,
    }
    return _divide(plan.forwards[0], sizes[situation]) if situation in sizes else plan


def plan_batch(model: Any, batch: int, length: int) -> Plan:
    """Return one forward pass on ``batch`` sequences of up to ``length`` tokens; half of all tokens are padding.

    There is no padding if the model takes no mask.
    """
    if not _has_tokens(model):
        return Plan(forwards=[Forward({model.main_input_name: _draw_features(model.config, range(batch))})])
    text = _Text(model, find_arguments(model))
    masked = bool({"attention_mask", "decoder_attention_mask"} & text.arguments)
    lengths = [length - number * length // batch if masked else length for number in range(batch)]
    rows = [[*_sequence(number, own), *[None] * (length - own)] for number, own in enumerate(lengths)]
    return Plan(forwards=[text.lay_out(rows, mask=masked)])


def list_alone(model: Any, plan: Plan) -> list[Forward]:
    """Return a forward pass on each sequence of a plan alone, without masks; with position ids if the plan has them."""
    text = _Text(model, find_arguments(model))
    positions = bool({"position_ids", "decoder_position_ids"} & set(plan.forwards[0].arguments))
    lengths: dict[int, int] = {}
    for forward in plan.forwards:
        if forward.queries is not None:
            for sequence, position in zip(
                forward.queries.sequence[forward.queries.real].tolist(),
                forward.queries.position[forward.queries.real].tolist(), strict=True,
            ):  # fmt: skip
                lengths[sequence] = max(lengths.get(sequence, 0), position + 1)
    return [text.lay_out([_sequence(number, length)], positions=positions) for number, length in lengths.items()]


def _sequence(number: int, length: int) -> list[tuple[int, int] | None]:
    return [(number, position) for position in range(length)]


def _has_tokens(model: Any) -> bool:
    return model.main_input_name == "input_ids" or bool(model.config.is_encoder_decoder)


def _in_mode(plan: Plan, situation: Situation) -> Plan:
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(situation, torch.float32)
    return replace(plan, dtype=dtype, training=situation in ("training", "dropout"))


def _divide(whole: Forward, sizes: Sequence[int]) -> Plan:
    """Return forward passes on consecutive tokens, which share a cache."""
    assert whole.queries is not None
    decoder = "decoder_" if "decoder_input_ids" in whole.arguments else ""
    forwards, begin = [], 0
    for size in sizes:
        columns = slice(begin, begin + size)
        parts = {"input_ids": columns, "position_ids": columns, "attention_mask": slice(begin + size)}
        given = whole.arguments | {"use_cache": True}
        given |= {name: given[name][:, part] for end, part in parts.items() if (name := decoder + end) in given}
        keys = whole.queries.take(slice(begin + size))
        forwards.append(Forward(given, whole.queries.take(columns), keys, whole.encoder))
        begin += size
    return Plan(forwards=forwards, cached=True)


def _draw_features(config: Any, sequences: Sequence[int]) -> Tensor:
    """Return random pixels, or random features of audio, of each sequence.

    Raises: ValueError where the sizes of the input are not in the configuration.
    """
    generator = torch.Generator().manual_seed(7)
    if bins := getattr(config, "num_mel_bins", None):
        return torch.randn(16, bins, FRAMES * config.max_source_positions, generator=generator)[list(sequences)]
    size = getattr(config, "image_size", None)
    if size is None:
        raise ValueError("the sizes of the model's inputs are not in its configuration")
    sizes = list(size) if isinstance(size, list | tuple) else [size, size]
    return torch.randn(16, getattr(config, "num_channels", 3), *sizes, generator=generator)[list(sequences)]
