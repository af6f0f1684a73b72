"""The problem description of attention on split heads: sizes and arguments, named as in kernel papers."""

import math
from dataclasses import dataclass

from attnbench.cases import Problem, amount, flag, size
from attnbench.operators.sentence_lengths import demand_padding

__all__ = ["ADDED", "ALIGNED", "EXACT_REGIMES", "LOGIT_STD", "MASKS", "AttentionCoreProblem"]

# Names of causal masks. The diagonal of ``causal_tl`` (top left) starts at the first query and the first key. The
# diagonal of ``causal_br`` (bottom right) ends at the last query and the last key.
ALIGNED = ("causal_tl", "causal_br")
# Names of terms that are added to logits. ``bias2d`` is one bias for all sequences and heads; ``bias4d`` has one bias
# for each head of each sequence. ``alibi`` subtracts a slope times the distance of query and key.
ADDED = ("bias2d", "bias4d", "alibi")
# Names of the parts of a mask, in the order in which a case id has them. ``window`` hides keys whose distance from the
# query is larger than the size W. ``ragged`` gives each sequence its own number of keys.
MASKS = (*ALIGNED, "window", *ADDED, "ragged")
# Standard deviation of the scaled logits, by regime. The operator ``multihead`` has the same numbers.
LOGIT_STD = {"flat": 0.3, "plain": 2.0, "peaked": 8.0, "onehot": 30.0, "huge": 300.0}
# Regimes whose output is exact in every dtype, each with the masks for which its output is exact.
EXACT_REGIMES = {
    # All logits are equal, and values are small integers. The output is a mean over visible keys, and the number of
    # visible keys is a power of two.
    "uniform": ("none", "ragged"),
    # The window has width 0. A query sees at most one key, and the output is the value of this key.
    "selection": ("window", "causal_tl+window", "causal_br+window"),
    # Values of visible keys are 0, and values of hidden keys are large. The output is 0.
    "zeroleak": ("ragged", "causal_br+ragged"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCoreProblem(Problem):
    """Sizes and arguments of attention on queries, keys and values whose heads are split."""

    sequences: int = size("B")
    num_heads: int = size("H")
    # Number of key heads, which is also the number of value heads. Each key head serves the same number of query heads.
    # None means num_heads.
    kv_heads: int | None = size("K", optional=True)
    queries: int = size("L")
    keys: int = size("S")
    head_dim: int = size("D")
    # Width of one head of values; None means head_dim.
    head_dim_v: int | None = size("V", optional=True)
    # Largest distance from a query to a key that the query may see; None means no window.
    window: int | None = size("W", optional=True)
    # Logits are limited to between −softcap and softcap; 0 means no limit.
    softcap: float = amount()
    # Factor by which the logits q kᵀ are multiplied. 0 means that the call passes no scale; the factor is then
    # 1/√head_dim.
    scale: float = amount()
    # Share of the positions of the batch that key_lengths hides. The numbers of keys are then drawn from the lengths of
    # real sentences. 0 means that the numbers do not follow from a share.
    padding: float = amount()
    # If true, the bias is minus infinity at random keys, and at all keys of one query.
    bias_hides: bool = flag()
    # If true, the dtype of key_lengths is int32, otherwise int64.
    int32_lengths: bool = flag()

    def __post_init__(self) -> None:
        """Raise ValueError if the fields do not describe a valid problem."""
        if min(self.num_heads, self.key_heads, self.head_dim, self.value_dim) < 1:
            raise ValueError(
                f"num_heads, kv_heads, head_dim and head_dim_v must be at least 1, got H{self.num_heads}, "
                f"K{self.key_heads}, D{self.head_dim} and V{self.value_dim}"
            )
        if self.num_heads % self.key_heads:
            raise ValueError(f"num_heads must be a multiple of kv_heads, got H{self.num_heads} and K{self.key_heads}")
        if self.softcap < 0 or self.scale < 0 or not math.isfinite(self.softcap + self.scale):
            raise ValueError(f"softcap and scale must be finite and not negative, got {self.softcap} and {self.scale}")
        self._check_mask()
        self._check_regime()
        demand_padding(
            self.padding,
            sequences=self.sequences,
            mask=self.mask,
            padded="ragged",
            regime_fits=self.regime in LOGIT_STD,
        )

    def _check_mask(self) -> None:
        parts = [] if self.mask == "none" else self.mask.split("+")
        if unknown := [part for part in parts if part not in MASKS]:
            raise ValueError(f"unknown mask {unknown[0]!r}; available: none, {', '.join(MASKS)}")
        one_of_each = all(sum(part in kinds for part in parts) <= 1 for kinds in (ALIGNED, ADDED))
        if not one_of_each or parts != sorted(set(parts), key=MASKS.index):
            raise ValueError(
                "a mask can have these parts, each at most once and in this order: causal_tl or causal_br, window, "
                f"bias2d or bias4d or alibi, ragged; got {self.mask!r}"
            )
        if (self.window is not None) != ("window" in parts):
            raise ValueError(
                "the mask part 'window' needs a size W, and a size W needs this mask part; "
                f"got mask {self.mask!r} and W={self.window}"
            )
        if self.bias_hides and not self.bias:
            raise ValueError(f"bias_hides needs a mask whose name contains 'bias2d' or 'bias4d', got {self.mask!r}")
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
            raise ValueError(f"regime {self.regime} needs one of the masks {available}; got {self.mask!r}")
        if self.regime == "selection" and self.window:
            raise ValueError(f"regime selection needs a window of width 0, got W{self.window}")
        if self.regime == "uniform" and self.mask == "none" and self.keys & (self.keys - 1):
            raise ValueError(
                f"regime uniform needs a number of keys that is a power of two, or mask=ragged; got S{self.keys}"
            )

    @property
    def parts(self) -> frozenset[str]:
        """Names of the parts of the mask, out of ``MASKS``."""
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
        """Width of one head of values and of outputs."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def logit_scale(self) -> float:
        """Factor by which the logits q kᵀ are multiplied."""
        return self.scale or 1 / math.sqrt(self.head_dim)

    @property
    def causal(self) -> str | None:
        """Argument ``causal`` of the call: the corner at which the causal mask is aligned; None without such a mask."""
        return next((word for part, word in _CORNERS.items() if part in self.parts), None)

    @property
    def bias(self) -> str | None:
        """Name of the bias in the mask (``bias2d`` or ``bias4d``), or None if there is no bias."""
        return next((part for part in ("bias2d", "bias4d") if part in self.parts), None)

    @property
    def additive_masks(self) -> tuple[str, ...]:
        """Names of arguments that are added to logits and have gradients."""
        return ("bias",) if self.bias else ()

    @property
    def has_parameters(self) -> bool:
        """Whether the operator has parameters: always false."""
        return False

    @property
    def ordered(self) -> bool:
        """Whether the result depends on the positions of keys: false only if the mask is none or a bias."""
        return bool(self.parts - {"bias2d", "bias4d"})

    @property
    def probed(self) -> bool:
        """Whether checks estimate the softmax scale and the amplitude (the common factor) of whole tensors."""
        return self.regime == "plain"


_CORNERS = {"causal_tl": "top_left", "causal_br": "bottom_right"}
