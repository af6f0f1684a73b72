"""One function for each deviation, which measures the difference that a situation makes, and that of rounding."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_flash_attention_utils import _process_flash_attention_kwargs

from research.models.tiny import FIRST, SECOND, largest, make_model, pad, run

__all__ = [
    "boolean_masks", "float16", "left_padding", "one_token_at_a_time", "packed", "right_padding", "text_alone",
    "text_alone_with_types", "two_sided_window",
]  # fmt: skip

# The largest difference in the situation, and in a control in which nothing but rounding may differ.
Measured = tuple[float, float]


def packed(name: str) -> Measured:
    """Two sequences in one row, divided by position ids, against each alone.

    Control: the first of the two, which sees nothing of the second in any causal model.
    """
    model = make_model(name, use_cache=False)
    positions = [torch.arange(one.shape[1])[None] for one in (FIRST, SECOND)]
    both = run(model, torch.cat([FIRST, SECOND], 1), position_ids=torch.cat(positions, 1))
    first, second = both[:, : FIRST.shape[1]], both[:, FIRST.shape[1] :]
    return largest(second, run(model, SECOND)), largest(first, run(model, FIRST))


def left_padding(name: str) -> Measured:
    """The encoder on a sequence with padding before it, against the sequence alone.

    Control: the padding behind it.
    """
    encoder = _find_encoder(make_model(name))
    alone, count = run(encoder, SECOND, attention_mask=torch.ones_like(SECOND)), SECOND.shape[1]
    (before, mask), (behind, other) = pad(SECOND, 5, left=True), pad(SECOND, 5, left=False)
    left, right = run(encoder, before, attention_mask=mask), run(encoder, behind, attention_mask=other)
    return largest(left[:, -count:], alone), largest(right[:, :count], alone)


def right_padding(name: str) -> Measured:
    """A sequence with padding behind it, against the sequence alone.

    Control: no trigrams of embeddings.
    """
    return _pad_behind(make_model(name)), _pad_behind(make_model(name, trigram_input=False))


def boolean_masks(name: str) -> Measured:
    """The encoder with padding behind a sequence, if a registered attention function asks for boolean masks.

    Control: eager, whose masks are numbers.
    """
    AttentionInterface.register("with_booleans", sdpa_attention_forward)
    AttentionMaskInterface.register("with_booleans", sdpa_mask)
    return _pad_behind(make_model(name, "with_booleans")), _pad_behind(make_model(name))


def float16(name: str) -> Measured:
    """The encoder in float16 with padding behind a sequence, against the sequence alone.

    Control: bfloat16.
    """
    return _pad_behind(make_model(name).half()), _pad_behind(make_model(name).bfloat16())


def text_alone(name: str) -> Measured:
    """The outputs of all tokens but the last in SDPA, before and after a change of the last.

    Control: eager.
    """
    return _change_last(make_model(name, "sdpa")), _change_last(make_model(name))


def text_alone_with_types(name: str) -> Measured:
    """As ``text_alone``, with token types that say that all tokens are causal."""
    types = {"token_type_ids": torch.ones_like(FIRST)}
    return _change_last(make_model(name, "sdpa"), **types), _change_last(make_model(name), **types)


def one_token_at_a_time(name: str) -> Measured:
    """A pass of one token at a time with a cache, against one whole pass, longer than the window of 4.

    Control: a window longer than the sequence.
    """
    return _decode(make_model(name)), _decode(make_model(name, sliding_window=64))


def two_sided_window(name: str) -> Measured:
    """The encoder in eager, against keys that FlashAttention shows for the window that the layers hand over.

    Control: one more key on each side.
    """
    eager = run(_find_encoder(make_model(name)), FIRST)
    return tuple(largest(run(_find_encoder(make_model(name, _window(plus))), FIRST), eager) for plus in (0, 1))  # type: ignore[return-value]


def _find_encoder(model: Any) -> Any:
    return model.get_encoder() if model.config.is_encoder_decoder else getattr(model, "question_encoder", model)


def _pad_behind(model: Any) -> float:
    encoder = _find_encoder(model)
    tokens, mask = pad(SECOND, 5, left=False)
    alone = run(encoder, SECOND, attention_mask=torch.ones_like(SECOND))
    return largest(run(encoder, tokens, attention_mask=mask)[:, : SECOND.shape[1]], alone)


def _change_last(model: Any, **given: Tensor) -> float:
    changed = FIRST.clone()
    changed[:, -1] = 8 + (changed[:, -1] - 7) % 56  # another token
    before, after = run(model, FIRST, **given), run(model, changed, **given)
    return largest(before[:, :-1], after[:, :-1])


def _decode(model: Any) -> float:
    cache, outputs = None, []
    for token in FIRST.unbind(1):
        with torch.no_grad():
            output = model(input_ids=token[:, None], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        outputs.append(output.last_hidden_state)
    return largest(torch.cat(outputs, 1), run(model, FIRST))


def _window(plus: int) -> str:
    """Register attention on the keys of the window that FlashAttention would get, and ``plus`` on each side."""

    def attend(
        _module: Any, queries: Tensor, keys: Tensor, values: Tensor, _mask: Any, **given: Any
    ) -> tuple[Tensor, None]:
        length, supported = queries.shape[2], defaultdict(bool, window_size=True)
        flash = _process_flash_attention_kwargs(
            length, length, is_causal=False, sliding_window=given["sliding_window"], supports_mapping=supported
        )
        reach, places = flash.get("window_size", (length, length))[0] + plus, torch.arange(length)
        seen = (places[:, None] - places).abs() <= reach
        output = scaled_dot_product_attention(queries, keys, values, seen, scale=given["scaling"], enable_gqa=True)
        return output.transpose(1, 2).contiguous(), None

    AttentionInterface.register(f"window_plus_{plus}", attend)
    return f"window_plus_{plus}"
