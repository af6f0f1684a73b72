"""What padding does to a row, with the mask and without it, on a real sentence.

The first layer's attention is looked at: what reaches it are the embeddings of tokens and places, which do not depend
on padding. Padding has an embedding like any other token, so that its score is as large as another's; without the mask
it takes its share of every row, and the more of it there is the more.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from attnbench.oracle import sentence_encoder
from attnbench.study.attending import Attending, StudyError
from attnbench.study.maps import PADDING
from attnbench.study.rows import quartiles

__all__ = ["padding"]

SENTENCE = "Bread rises because yeast feeds on sugar."
FIRST_LAYER = 0
# Padded lengths as multiples of the sentence's own, up to 15/16 of padding.
MULTIPLES = (1, 1.25, 1.5, 2, 3, 4, 8, 16)
# The row that is shown: as much padding as there are tokens.
SHOWN_MULTIPLE = 2


def padding(*, implementation: str, head: int, token: str, texts: Sequence[str]) -> dict[str, Any]:
    """Weights of one token's row, and over all rows and heads what goes to padding and what that does to the output.

    Raises: StudyError.
    """
    if not 0 <= head < sentence_encoder.HEADS:
        raise StudyError(f"--head must be 0 to {sentence_encoder.HEADS - 1}, got {head}")
    if len(texts) > 1:
        raise StudyError(f"--text must be given once in this study, got {len(texts)} texts")
    attending = Attending(implementation, FIRST_LAYER)
    sentence = list(texts) or [SENTENCE]
    (words,) = sentence_encoder.words(sentence)
    if token not in words:
        raise StudyError(f"--token must be one of {' '.join(words)}, got {token!r}")
    alone = attending(attending.texts(sentence))
    rows: list[dict[str, Any]] = []
    shown: dict[str, list[float]] = {"alone": _row(alone[1], head, words.index(token))}
    for multiple in MULTIPLES:
        length = min(round(multiple * len(words)), sentence_encoder.POSITIONS)
        given = attending.texts(sentence, length)
        for masked in (True, False):
            found = attending(given, masked=masked)
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
    """Over the rows of real tokens: share of padding in the batch and in weights, and how far the output is off."""
    (output, weights), (right, _) = found, alone
    length = weights.shape[-1]
    off = (output[0, :real] - right[0]).norm(dim=-1) / right[0].norm(dim=-1)
    return {
        "padding_share": 1 - real / length,
        **quartiles("weight_on_padding", weights[0, :, :real, real:].sum(dim=-1)),
        **quartiles("output_off", off),
    }
