"""What attention on split heads is asked to compute, in the words of kernel papers."""

import math
from dataclasses import dataclass

from attnbench.cases import Problem, amount, flag, size

__all__ = ["ADDED", "ALIGNED", "EXACT_REGIMES", "LOGIT_STD", "MASKS", "AttentionCoreProblem"]

# Causal masks by where their diagonal ends: at the first key of the first query, or at the last key of the last one.
ALIGNED = ("causal_tl", "causal_br")
# What is added to logits: a bias of numbers, the same for the whole batch (2d) or its own for every head of every
# sequence (4d), or a slope times the distance (ALiBi).
ADDED = ("bias2d", "bias4d", "alibi")
# Parts of a mask, in the order in which they are named. ``window`` hides what is further away than W; ``ragged`` gives
# each sequence a number of keys of its own.
MASKS = (*ALIGNED, "window", *ADDED, "ragged")
# Regime to the standard deviation of scaled logits, as in multi-head attention.
LOGIT_STD = {"flat": 0.3, "plain": 2.0, "peaked": 8.0, "onehot": 30.0, "huge": 300.0}
# Regimes whose output every dtype holds exactly, with the masks that make it so.
EXACT_REGIMES = {
    # Equal logits and small whole values: the mean over a power of two of visible keys.
    "uniform": ("none", "ragged"),
    # A window of width 0: one visible key for each query, or none.
    "selection": ("window", "causal_tl+window", "causal_br+window"),
    # Visible values are 0, hidden ones are huge: 0.
    "zeroleak": ("ragged", "causal_br+ragged"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCoreProblem(Problem):
    """Sizes and arguments of attention on queries, keys and values whose heads are split."""

    sequences: int = size("B")
    num_heads: int = size("H")
    # Heads of keys and values, each shared by as many heads of queries; None: as many as of queries.
    kv_heads: int | None = size("K", optional=True)
    queries: int = size("L")
    keys: int = size("S")
    head_dim: int = size("D")
    # Width of values; None: that of queries and keys.
    head_dim_v: int | None = size("V", optional=True)
    # Largest distance between a query and a key that it sees.
    window: int | None = size("W", optional=True)
    # Logits are bent to stay between −softcap and softcap; 0: they are not.
    softcap: float = amount()
    # What logits are multiplied by; 0: none is given, which is 1/√head_dim.
    scale: float = amount()
    # The bias is minus infinity in places, and all along one row.
    bias_hides: bool = flag()
    # Lengths of sequences come in 32 bits, not in 64.
    int32_lengths: bool = flag()

    def __post_init__(self) -> None:
        """Refuse what is no problem of this operator."""
        if min(self.num_heads, self.key_heads, self.head_dim, self.value_dim) < 1:
            raise ValueError(
                f"heads and their widths must be at least 1, got H{self.num_heads}, K{self.key_heads}, "
                f"D{self.head_dim} and V{self.value_dim}"
            )
        if self.num_heads % self.key_heads:
            raise ValueError(f"H must be a multiple of K, got H{self.num_heads} and K{self.key_heads}")
        if self.softcap < 0 or self.scale < 0 or not math.isfinite(self.softcap + self.scale):
            raise ValueError(f"softcap and scale must be finite and not negative, got {self.softcap} and {self.scale}")
        self._check_mask()
        self._check_regime()

    def _check_mask(self) -> None:
        parts = [] if self.mask == "none" else self.mask.split("+")
        if unknown := [part for part in parts if part not in MASKS]:
            raise ValueError(f"unknown mask {unknown[0]!r}; available: none, {', '.join(MASKS)}")
        one_of_each = all(sum(part in kinds for part in parts) <= 1 for kinds in (ALIGNED, ADDED))
        if not one_of_each or parts != sorted(set(parts), key=MASKS.index):
            raise ValueError(
                f"a mask is a causal one, window, a bias or alibi, and ragged, each at most once and in this order, "
                f"got {self.mask!r}"
            )
        if (self.window is not None) != ("window" in parts):
            raise ValueError(f"a window has a mask with window and a width W, got {self.mask!r} and {self.window}")
        if self.bias_hides and not self.bias:
            raise ValueError(f"bias_hides needs a mask with bias2d or bias4d, got {self.mask!r}")
        if self.int32_lengths and "ragged" not in parts:
            raise ValueError(f"int32_lengths needs a mask with ragged, got {self.mask!r}")

    def _check_regime(self) -> None:
        known = (*LOGIT_STD, *EXACT_REGIMES)
        if self.regime not in known:
            raise ValueError(f"unknown regime {self.regime!r}; available: {', '.join(known)}")
        if self.regime not in EXACT_REGIMES:
            return
        if self.mask not in EXACT_REGIMES[self.regime]:
            raise ValueError(f"regime {self.regime} needs a mask of {', '.join(EXACT_REGIMES[self.regime])}")
        if self.regime == "selection" and self.window:
            raise ValueError(f"regime selection needs a window of width 0, got W{self.window}")
        if self.regime == "uniform" and self.mask == "none" and self.keys & (self.keys - 1):
            raise ValueError(f"regime uniform needs a power of two of keys, or mask=ragged, got S{self.keys}")

    @property
    def parts(self) -> frozenset[str]:
        """Parts of the mask."""
        return frozenset(self.mask.split("+")) - {"none"}

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_heads if self.kv_heads is None else self.kv_heads

    @property
    def head_groups(self) -> int:
        """Heads that share keys stay together."""
        return self.key_heads

    @property
    def value_dim(self) -> int:
        """Width of values and outputs."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def logit_scale(self) -> float:
        """What logits are multiplied by."""
        return self.scale or 1 / math.sqrt(self.head_dim)

    @property
    def causal(self) -> str | None:
        """Where the causal mask is aligned, as the call is told; None: there is none."""
        return next((word for part, word in _CORNERS.items() if part in self.parts), None)

    @property
    def bias(self) -> str | None:
        """Name of the bias that is given, or None."""
        return next((part for part in ("bias2d", "bias4d") if part in self.parts), None)

    @property
    def additive_masks(self) -> tuple[str, ...]:
        """Arguments that are added to logits and have gradients."""
        return ("bias",) if self.bias else ()

    @property
    def has_parameters(self) -> bool:
        """It has none: what it computes from is given."""
        return False

    @property
    def ordered(self) -> bool:
        """Whether it matters where a key stands: everywhere but under no mask, or one of numbers given by key."""
        return bool(self.parts - {"bias2d", "bias4d"})

    @property
    def probed(self) -> bool:
        """Whether scale and amplitude are looked at as a whole."""
        return self.regime == "plain"


_CORNERS = {"causal_tl": "top_left", "causal_br": "bottom_right"}
