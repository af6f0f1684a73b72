"""The problem description of attention on split heads: sizes and arguments, named as in kernel papers."""

import math
from dataclasses import dataclass

from attnbench.cases import Problem, amount, flag, size

__all__ = ["ADDED", "ALIGNED", "EXACT_REGIMES", "LOGIT_STD", "MASKS", "AttentionCoreProblem"]

# Causal masks by the alignment of their diagonal: at the top left (first query, first key) or the bottom right (last
# query, last key).
ALIGNED = ("causal_tl", "causal_br")
# Terms that are added to logits: a bias, shared by the whole batch (2d) or one per head of every sequence (4d), or a
# slope times the distance (ALiBi).
ADDED = ("bias2d", "bias4d", "alibi")
# Parts of a mask, in the order in which a case id names them. ``window`` hides keys at a distance above W. ``ragged``
# gives each sequence its own number of keys.
MASKS = (*ALIGNED, "window", *ADDED, "ragged")
# Standard deviation of the scaled logits, by regime; the same numbers as in ``multihead``.
LOGIT_STD = {"flat": 0.3, "plain": 2.0, "peaked": 8.0, "onehot": 30.0, "huge": 300.0}
# Regimes whose output is exact in every dtype, with the masks for which that holds.
EXACT_REGIMES = {
    # Equal logits and small integer values: the output is a mean over visible keys, whose number is a power of two.
    "uniform": ("none", "ragged"),
    # A window of width 0: at most one visible key per query, whose value is the output.
    "selection": ("window", "causal_tl+window", "causal_br+window"),
    # Visible values are 0 and hidden values are large: the output is 0.
    "zeroleak": ("ragged", "causal_br+ragged"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCoreProblem(Problem):
    """Sizes and arguments of attention on queries, keys and values whose heads are split."""

    sequences: int = size("B")
    num_heads: int = size("H")
    # Number of heads of keys and values. Each is shared by an equal number of query heads. None: num_heads.
    kv_heads: int | None = size("K", optional=True)
    queries: int = size("L")
    keys: int = size("S")
    head_dim: int = size("D")
    # Width of values; None: head_dim.
    head_dim_v: int | None = size("V", optional=True)
    # Largest distance between a query and a key that is visible to it.
    window: int | None = size("W", optional=True)
    # Logits are limited to between −softcap and softcap; 0: there is no limit.
    softcap: float = amount()
    # Factor on logits; 0: no scale is given, and the factor is 1/√head_dim.
    scale: float = amount()
    # The bias is minus infinity in places, and in one whole row.
    bias_hides: bool = flag()
    # key_lengths are int32, not int64.
    int32_lengths: bool = flag()

    def __post_init__(self) -> None:
        """Raise ValueError if the fields do not describe a valid problem."""
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
                "mask must be a causal mask, window, a bias or alibi, and ragged, each at most once and in this order, "
                f"got {self.mask!r}"
            )
        if (self.window is not None) != ("window" in parts):
            raise ValueError(f"a window needs a mask with window and a width W, got {self.mask!r} and {self.window}")
        if self.bias_hides and not self.bias:
            raise ValueError(f"bias_hides needs a mask with bias2d or bias4d, got {self.mask!r}")
        if self.int32_lengths and "ragged" not in parts:
            raise ValueError(f"int32_lengths needs a mask whose name contains 'ragged', got {self.mask!r}")

    def _check_regime(self) -> None:
        regimes = (*LOGIT_STD, *EXACT_REGIMES)
        if self.regime not in regimes:
            raise ValueError(f"unknown regime {self.regime!r}; available: {', '.join(regimes)}")
        if self.regime not in EXACT_REGIMES:
            return
        if self.mask not in EXACT_REGIMES[self.regime]:
            available = ", ".join(EXACT_REGIMES[self.regime])
            raise ValueError(f"regime {self.regime} needs one of the masks {available}, got {self.mask!r}")
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
        """Number of heads of keys and values."""
        return self.num_heads if self.kv_heads is None else self.kv_heads

    @property
    def head_groups(self) -> int:
        """Number of groups of heads that can be reordered: the query heads that share a key head are one group."""
        return self.key_heads

    @property
    def value_dim(self) -> int:
        """Width of values and outputs."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def logit_scale(self) -> float:
        """Factor on logits."""
        return self.scale or 1 / math.sqrt(self.head_dim)

    @property
    def causal(self) -> str | None:
        """Value of the call's argument ``causal``, the alignment of the causal mask; None: there is no causal mask."""
        return next((word for part, word in _CORNERS.items() if part in self.parts), None)

    @property
    def bias(self) -> str | None:
        """Name of the bias in the mask, or None."""
        return next((part for part in ("bias2d", "bias4d") if part in self.parts), None)

    @property
    def additive_masks(self) -> tuple[str, ...]:
        """Names of arguments that are added to logits and have gradients."""
        return ("bias",) if self.bias else ()

    @property
    def has_parameters(self) -> bool:
        """Whether the operator has parameters: it has none."""
        return False

    @property
    def ordered(self) -> bool:
        """Whether the result depends on the positions of keys: false only if the mask is none or a bias."""
        return bool(self.parts - {"bias2d", "bias4d"})

    @property
    def probed(self) -> bool:
        """Whether checks estimate the softmax scale and the common factor of all elements from a whole tensor."""
        return self.regime == "plain"


_CORNERS = {"causal_tl": "top_left", "causal_br": "bottom_right"}
