"""Problems of the elementary mechanisms: a batch of padded sequences as one tensor of tokens."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from attnbench.cases import Problem, size

__all__ = ["REGIMES", "BlockProblem", "MaskedProblem", "MechanismProblem", "PoolingProblem", "ProjectedProblem"]

# Standard deviation of the tokens in each input regime. Larger tokens give larger scores and more peaked rows of
# attention weights. In the regime ``huge``, the exponential of a score overflows even in float64, except in the pooling
# mechanisms, whose scores are smaller.
REGIMES = {"flat": 0.3, "plain": 1.0, "peaked": 2.0, "huge": 30.0}
# Padding masks. ``pad`` hides the last tokens of each sequence; if there are several sequences, the
# first sequence has no padding. ``padleft`` hides as many tokens as ``pad``, at the beginning of a
# sequence. ``padholes`` hides random tokens. ``padempty`` hides all tokens of one sequence, and
# hides the same tokens as ``pad`` in the other sequences.
PADDING = ("pad", "padleft", "padholes", "padempty")
# Masks of pairs of queries and keys. ``causal`` hides keys after the query. ``bool2d`` hides random
# keys, but never the first key.
ATTENDING = ("causal", "bool2d")


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismProblem(Problem):
    """Self-attention over one tensor of tokens (batch, length, width)."""

    sequences: int = size("B")
    length: int = size("L")
    width: int = size("E")

    masks: ClassVar[tuple[str, ...]] = ("none", *PADDING)

    def __post_init__(self) -> None:
        """Refuse sizes below 1, and masks and input regimes that the operator does not have.

        Raises: ValueError.
        """
        if min(self.sequences, self.length, self.width) < 1:
            raise ValueError(f"B, L and E must be at least 1, got {self.sequences}, {self.length} and {self.width}")
        if self.mask not in self.masks:
            raise ValueError(f"unknown mask {self.mask!r}; available: {', '.join(self.masks)}")
        if self.regime not in REGIMES:
            raise ValueError(f"unknown regime {self.regime!r}; available: {', '.join(REGIMES)}")

    @property
    def queries(self) -> int:
        """Number of queries of a sequence: every token is a query."""
        return self.length

    @property
    def keys(self) -> int:
        """Number of keys of a sequence: every token is a key."""
        return self.length

    @property
    def padding_mask(self) -> str | None:
        """Name of the padding mask, or None if there is no padding mask."""
        return next((part for part in self.mask.split("+") if part in PADDING), None)

    @property
    def attention_mask(self) -> str | None:
        """Name of the mask of pairs of queries and keys, or None if there is no such mask."""
        return next((part for part in self.mask.split("+") if part in ATTENDING), None)

    @property
    def ordered(self) -> bool:
        """Whether the result depends on the order of the keys."""
        return self.attention_mask is not None

    @property
    def self_attention(self) -> bool:
        """Whether query, key and value are one tensor: always true for these operators."""
        return True

    def lengthen(self) -> Self:
        """Return the same problem with one more token in each sequence."""
        return replace(self, length=self.length + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingProblem(MechanismProblem):
    """Pooling with one learned query."""

    @property
    def queries(self) -> int:
        """Number of queries of a sequence: only the learned query."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectedProblem(MechanismProblem):
    """Self-attention whose output may be wider or narrower than the tokens."""

    out_width: int = size("O")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedProblem(MechanismProblem):
    """Self-attention with a mask of pairs of queries and keys, in addition to the padding mask."""

    # ``causal+padleft`` gives fully masked rows: the first queries see only padding.
    masks: ClassVar[tuple[str, ...]] = (
        "none", *PADDING, "causal", "causal+pad", "causal+padleft", "bool2d", "bool2d+pad",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProblem(MechanismProblem):
    """Multi-head self-attention inside a residual block."""

    heads: int = size("H")

    # Masks with fully masked rows are left out, because ``torch.nn.MultiheadAttention`` does not
    # specify the results of such rows.
    masks: ClassVar[tuple[str, ...]] = (
        "none", "pad", "padleft", "padholes", "causal", "causal+pad", "causal+padholes", "bool2d", "bool2d+pad",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse a number of heads that does not divide the width of a token.

        Raises: ValueError.
        """
        MechanismProblem.__post_init__(self)
        if self.heads < 1 or self.width % self.heads:
            raise ValueError(f"E must be divisible by H, got E{self.width} and H{self.heads}")
