"""What the elementary mechanisms are asked to compute: a batch of padded sequences, one tensor of tokens."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from attnbench.cases import Problem, size

__all__ = ["REGIMES", "BlockProblem", "MaskedProblem", "MechanismProblem", "PoolingProblem", "ProjectedProblem"]

# Regime to the standard deviation of tokens: scores grow with it from nearly flat rows to peaked ones; in ``huge``
# their exponential is infinite, in float64, too.
REGIMES = {"flat": 0.3, "plain": 1.0, "peaked": 2.0, "huge": 30.0}
# Mask by name: ``pad`` hides the end of all sequences but one, ``padleft`` the beginning, ``padholes`` some tokens of
# each, ``padempty`` all tokens of one of them.
PADDING = ("pad", "padleft", "padholes", "padempty")
# The later tokens, or any but the first.
ATTENDING = ("causal", "bool2d")


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismProblem(Problem):
    """Sizes of self-attention from one tensor of tokens (batch, length, width)."""

    sequences: int = size("B")
    length: int = size("L")
    width: int = size("E")

    masks: ClassVar[tuple[str, ...]] = ("none", *PADDING)

    def __post_init__(self) -> None:
        """Refuse what is no problem of this operator."""
        if min(self.sequences, self.length, self.width) < 1:
            raise ValueError(f"B, L and E must be at least 1, got {self.sequences}, {self.length} and {self.width}")
        if self.mask not in self.masks:
            raise ValueError(f"unknown mask {self.mask!r}; available: {', '.join(self.masks)}")
        if self.regime not in REGIMES:
            raise ValueError(f"unknown regime {self.regime!r}; available: {', '.join(REGIMES)}")

    @property
    def queries(self) -> int:
        """As many as tokens: each asks."""
        return self.length

    @property
    def keys(self) -> int:
        """As many as tokens."""
        return self.length

    @property
    def padding_mask(self) -> str | None:
        """Name of the mask of padded tokens, if there is one."""
        return next((part for part in self.mask.split("+") if part in PADDING), None)

    @property
    def attention_mask(self) -> str | None:
        """Name of the mask of queries and keys, if there is one."""
        return next((part for part in self.mask.split("+") if part in ATTENDING), None)

    @property
    def ordered(self) -> bool:
        """Whether it matters where a token stands."""
        return self.attention_mask is not None

    @property
    def self_attention(self) -> bool:
        """One tensor is queries, keys and values."""
        return True

    def one_longer(self) -> Self:
        """The same with one token more."""
        return replace(self, length=self.length + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingProblem(MechanismProblem):
    """Pooling with one learned query."""

    @property
    def queries(self) -> int:
        """The learned one."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectedProblem(MechanismProblem):
    """Self-attention into another width."""

    out_width: int = size("O")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedProblem(MechanismProblem):
    """Self-attention that takes a mask of queries and keys beside the padding mask."""

    # Beside a causal mask, padding on the left leaves rows without any token.
    masks: ClassVar[tuple[str, ...]] = (
        "none", *PADDING, "causal", "causal+pad", "causal+padleft", "bool2d", "bool2d+pad",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProblem(MechanismProblem):
    """Multi-head self-attention inside a residual block."""

    heads: int = size("H")

    # A row without any token is what the reference inside leaves open.
    masks: ClassVar[tuple[str, ...]] = (
        "none", "pad", "padleft", "padholes", "causal", "causal+pad", "causal+padholes", "bool2d", "bool2d+pad",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse heads that do not divide the width."""
        MechanismProblem.__post_init__(self)
        if self.heads < 1 or self.width % self.heads:
            raise ValueError(f"E must be divisible by H, got E{self.width} and H{self.heads}")
