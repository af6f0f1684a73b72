"""Attention maps: who looks at whom in a batch of real sentences, padded to the longest."""

from collections.abc import Sequence
from typing import Any

from attnbench.oracle import sentence_encoder
from attnbench.oracle.sentence_encoder import HEADS
from attnbench.study.attending import Attending, StudyError
from attnbench.study.rows import entropy_bits

__all__ = ["PADDING", "maps"]

# How the tokenizer writes padding.
PADDING = "[PAD]"
# Sentences of the shipped text that are shown unless others are given: 10, 7 and 6 tokens.
SHOWN = ("Bread rises because yeast feeds on sugar.", "The kettle is boiling.", "Snow fell all night.")


def maps(*, implementation: str, layer: int, heads: Sequence[int], texts: Sequence[str]) -> dict[str, Any]:
    """Weights of these heads (all if none is named) for these texts (three sentences if none is given).

    Raises: StudyError.
    """
    wanted = list(heads) or list(range(HEADS))
    unknown = [head for head in wanted if not 0 <= head < HEADS]
    if unknown:
        raise StudyError(f"--head must be 0 to {HEADS - 1}, got {unknown[0]}")
    attending = Attending(implementation, layer)
    given = attending.texts(list(texts) or list(SHOWN))
    _, weights = attending(given)  # (batch, heads, length, length)
    length = given.hidden.shape[1]
    sentences = []
    for number, own in enumerate(sentence_encoder.words(list(texts) or list(SHOWN))):
        rows = weights[number, wanted]
        real = entropy_bits(rows[:, : len(own)]).mean(dim=1)  # over queries that are no padding
        sentences.append(
            {
                "tokens": own + [PADDING] * (length - len(own)),
                "real": len(own),
                "weights": rows.tolist(),
                "entropy_bits": real.tolist(),
            }
        )
    return {"implementation": implementation, "layer": layer, "heads": wanted, "sentences": sentences}
