"""Attention maps: the weight of each query on each key, in a batch of real sentences padded to the longest one."""

from collections.abc import Sequence
from typing import Any

from attnbench.oracle import sentence_encoder
from attnbench.oracle.sentence_encoder import HEADS
from attnstudies import StudyError
from attnstudies.attending import EncoderAttention
from attnstudies.rows import entropy_bits

__all__ = ["PADDING", "compute_maps"]

# Padding token of the tokenizer.
PADDING = "[PAD]"
# Default sentences, from the text that attnbench ships. They have 10, 7 and 6 tokens.
SHOWN = ("Bread rises because yeast feeds on sugar.", "The kettle is boiling.", "Snow fell all night.")


def compute_maps(*, implementation: str, layer: int, heads: Sequence[int], texts: Sequence[str]) -> dict[str, Any]:
    """Return the attention weights of these heads (default: all heads) for these texts (default: three sentences).

    Raises: StudyError if a head does not exist or the attention cannot be computed.
    """
    wanted = list(heads) or list(range(HEADS))
    unknown = [head for head in wanted if not 0 <= head < HEADS]
    if unknown:
        raise StudyError(f"--head must be 0 to {HEADS - 1}, got {unknown[0]}")
    attention = EncoderAttention(implementation, layer)
    given = attention.make_input(list(texts) or list(SHOWN))
    _, weights = attention(given)  # (batch, heads, length, length)
    length = given.hidden.shape[1]
    sentences = []
    for number, own in enumerate(sentence_encoder.tokenize(list(texts) or list(SHOWN))):
        rows = weights[number, wanted]
        real = entropy_bits(rows[:, : len(own)]).mean(dim=1)  # mean over queries that are not padding
        sentences.append(
            {
                "tokens": own + [PADDING] * (length - len(own)),
                "real": len(own),
                "weights": rows.tolist(),
                "entropy_bits": real.tolist(),
            }
        )
    return {"implementation": implementation, "layer": layer, "heads": wanted, "sentences": sentences}
