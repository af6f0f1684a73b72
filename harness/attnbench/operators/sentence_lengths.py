"""Lengths of the sequences of a padded batch, drawn from the lengths of real sentences. Importing this needs no torch.

The lengths of the shipped sentences are counted in words, which needs no tokenizer, and drawn with Python's own
generator. A case therefore has the same lengths on every machine.
"""

import math
from collections.abc import Sequence
from functools import cache
from random import Random

from attnbench.oracle.sentences import load_sentences

__all__ = ["compute_padded_share", "demand_padding", "draw_sentence_lengths"]


def demand_padding(share: float, *, sequences: int, mask: str, padded: str, regime_fits: bool) -> None:
    """Check the share of padding of a problem; ``padded`` is the mask part that a share other than 0 needs.

    Raises: ValueError if there is no batch whose lengths could be drawn with this share.
    """
    if not share:
        return
    if not 0 < share < 1:
        raise ValueError(f"padding must be a share above 0 and below 1, got {share:g}")
    if sequences < 2:
        raise ValueError(f"padding={share:g} needs a batch of at least 2 sequences, got {sequences}")
    if padded not in mask.split("+"):
        raise ValueError(f"padding={share:g} needs a mask whose name contains {padded!r}, got {mask!r}")
    if not regime_fits:
        raise ValueError(f"padding={share:g} needs a regime with random inputs, such as plain")


@cache
def draw_sentence_lengths(share: float, batch: int, keys: int, seed: int) -> tuple[int, ...]:
    """Draw the lengths of ``batch`` sequences, so that a share of ``batch`` times ``keys`` positions is padding.

    A sentence is drawn for each sequence. The lengths are proportional to the lengths of the sentences, but at least 1
    and at most ``keys``. The longest sentence has ``keys`` positions, since a batch is padded to its longest sequence.
    The number of padded positions is the nearest one that such lengths can have: it is smaller than asked for if even
    sequences of length 1 have too little padding.
    """
    words = [len(sentence.split()) for sentence in load_sentences()]
    random = Random(f"{seed}/padding")  # noqa: S311  # lengths of sentences, not a secret
    drawn = [words[int(random.random() * len(words))] for _ in range(batch)]
    longest = drawn.index(max(drawn))
    others = drawn[:longest] + drawn[longest + 1 :]
    visible = max(round((1 - share) * batch * keys), keys + len(others))
    lengths = _apportion(others, visible - keys, most=keys)
    return (*lengths[:longest], keys, *lengths[longest:])


def compute_padded_share(lengths: Sequence[int], keys: int) -> float:
    """Return the share of padded positions in a batch with these lengths, padded to ``keys`` positions."""
    return 1 - sum(lengths) / (len(lengths) * keys)


def _apportion(weights: Sequence[int], total: int, *, most: int) -> list[int]:
    """Return integers from 1 to ``most``, in proportion to the weights, whose sum is ``total``.

    ``total`` must be from ``len(weights)`` to ``most`` times ``len(weights)``.
    """

    def cut(scale: float) -> list[int]:
        return [min(most, max(1, math.floor(scale * weight))) for weight in weights]

    low, high = 0.0, most + 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if sum(cut(middle)) <= total else (low, middle)
    lengths = cut(low)
    # The remaining positions, at most one for each sequence, go to those that are closest to one more.
    nearest = sorted(range(len(weights)), key=lambda i: (lengths[i] == most, lengths[i] + 1 - low * weights[i], i))
    for i in nearest[: total - sum(lengths)]:
        lengths[i] += 1
    return lengths
