"""Effect of padding on rows of attention weights, with the mask and without it, on a real sentence.

The study uses the attention of the first layer. The input of this layer, the embeddings of tokens and positions, does
not depend on padding. A padding token has an embedding like any other token, and scores of similar size. Without the
mask, padding therefore gets a part of the weight of every row. This part grows with the amount of padding.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from attnbench.oracle import sentence_encoder
from attnstudies import StudyError
from attnstudies.attending import EncoderAttention
from attnstudies.maps import PADDING
from attnstudies.rows import quartiles

__all__ = ["compute_padding"]

SENTENCE = "Bread rises because yeast feeds on sugar."
FIRST_LAYER = 0
# Padded lengths as multiples of the sentence's length. At the largest multiple, 15/16 of the tokens are padding.
MULTIPLES = (1, 1.25, 1.5, 2, 3, 4, 8, 16)
# The element of MULTIPLES for which the figure shows a row of attention weights. At 2, half of the tokens are padding.
SHOWN_MULTIPLE = 2


def compute_padding(*, implementation: str, head: int, token: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the attention weights of one token's row, and statistics over all rows.

    The statistics are the quartiles of the weight on padding (over all rows and heads) and the quartiles of the output
    error (over all rows).

    Raises: StudyError if an argument is invalid or the attention cannot be computed.
    """
    if not 0 <= head < sentence_encoder.HEADS:
        raise StudyError(f"--head must be 0 to {sentence_encoder.HEADS - 1}, got {head}")
    if len(texts) > 1:
        raise StudyError(f"--text may be given only once in this study, got {len(texts)} texts")
    attention = EncoderAttention(implementation, FIRST_LAYER)
    sentence = list(texts) or [SENTENCE]
    (words,) = sentence_encoder.tokenize(sentence)
    if token not in words:
        raise StudyError(f"--token must be one of {' '.join(words)}, got {token!r}")
    alone = attention(attention.make_input(sentence))
    rows: list[dict[str, Any]] = []
    shown: dict[str, list[float]] = {"alone": _row(alone[1], head, words.index(token))}
    for multiple in MULTIPLES:
        length = min(round(multiple * len(words)), sentence_encoder.POSITIONS)
        given = attention.make_input(sentence, length)
        for masked in (True, False):
            found = attention(given, masked=masked)
            rows.append({"length": length, "masked": masked, **_effects(found, alone, len(words))})
            if multiple == SHOWN_MULTIPLE:
                shown["masked" if masked else "unmasked"] = _row(found[1], head, words.index(token))
    padded = len(shown["masked"])
    return {
        "implementation": implementation, "head": head, "token": token, "real": len(words),
        "tokens": words + [PADDING] * (padded - len(words)), "shown": shown, "rows": rows,
    }  # fmt: skip


def _row(weights: Tensor, head: int, query: int) -> list[float]:
    return weights[0, head, query].tolist()


def _effects(found: tuple[Tensor, Tensor], alone: tuple[Tensor, Tensor], real: int) -> dict[str, float]:
    """Return the fraction of padding tokens, and quartiles over the rows of the ``real`` tokens that are not padding.

    There are quartiles of the weight on padding, and of the output error. The output error is the norm of the
    difference from the output without padding, divided by the norm of the output without padding.
    """
    (output, weights), (right, _) = found, alone
    length = weights.shape[-1]
    off = (output[0, :real] - right[0]).norm(dim=-1) / right[0].norm(dim=-1)
    return {
        "padding_share": 1 - real / length,
        **quartiles("weight_on_padding", weights[0, :, :real, real:].sum(dim=-1)),
        **quartiles("output_off", off),
    }
