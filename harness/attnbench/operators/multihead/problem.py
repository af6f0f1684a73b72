"""What multi-head attention is asked to compute, in the words of ``torch.nn.MultiheadAttention``."""

from dataclasses import dataclass

from attnbench.cases import Problem, amount, flag, size

__all__ = [
    "ATTENTION_MASKS",
    "ENCODER_LAYERS",
    "EXACT_MASKS",
    "IDENTITY_REGIMES",
    "LOGIT_STD",
    "PADDING_MASKS",
    "MultiheadProblem",
]

# attn_mask by name: boolean or float; shared by the batch (2d) or one per batch element and head (3d);
# ``empty`` hides every key from one row (2d) or from one row of one head (3d); ``union`` does so only together with a
# padding mask; ``lowest`` adds large negative numbers, which are finite and hide nothing from a row that has no other.
ATTENTION_MASKS = (
    "bool2d", "float2d", "bool3d", "float3d", "causal", "empty2d", "floatempty2d", "empty3d", "union2d", "lowest2d",
)  # fmt: skip
# key_padding_mask by name; ``padempty`` hides one whole sequence.
PADDING_MASKS = ("pad", "padfloat", "padempty", "padlowest")

# Regime to the standard deviation of the logits: from nearly flat rows to nearly one-hot ones, and far beyond.
LOGIT_STD = {"flat": 0.3, "plain": 2.0, "peaked": 8.0, "onehot": 30.0, "huge": 300.0}
# Regimes without projections (W_q = 2 I, W_k = W_o = I, W_v a permutation): the core alone. All but ``identity`` have
# an output that every dtype holds exactly, with the masks that make it so.
EXACT_MASKS = {
    # Equal logits and small whole values: the mean over a power of two of visible keys.
    "uniform": ("none", "bool2d", "bool3d", "pad"),
    # One visible key for each row of each head: its value.
    "selection": ("bool3d",),
    # Visible values are 0, hidden ones are huge: 0.
    "zeroleak": ("pad", "padfloat"),
}
IDENTITY_REGIMES = ("identity", *EXACT_MASKS)

# The real encoder all-MiniLM-L6-v2 has six layers; regime ``minilm<n>`` is the attention of layer n on sentences.
ENCODER_LAYERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiheadProblem(Problem):
    """Sizes, constructor and forward arguments of the reference, one field each.

    ``self_attention`` passes one tensor as query, key and value; ``key_is_value`` and ``query_is_key`` pass one as
    the two that they name.
    """

    batch: int | None = size("B", optional=True)  # None: unbatched, two-dimensional input
    queries: int = size("L")
    keys: int = size("S")
    embed_dim: int = size("E")
    num_heads: int = size("H")
    kdim: int | None = size("K", optional=True)
    vdim: int | None = size("V", optional=True)
    bias: bool = flag()
    add_bias_kv: bool = flag()
    add_zero_attn: bool = flag()
    batch_first: bool = flag()
    self_attention: bool = flag()
    key_is_value: bool = flag()
    query_is_key: bool = flag()
    need_weights: bool = flag()
    average_attn_weights: bool = flag()
    is_causal: bool = flag()
    dropout: float = amount()

    def __post_init__(self) -> None:
        """Refuse what is no problem of this operator."""
        if min(self.embed_dim, self.num_heads) < 1:
            raise ValueError(f"embed_dim and num_heads must be at least 1, got E{self.embed_dim} and H{self.num_heads}")
        if self.embed_dim % self.num_heads:
            raise ValueError(f"embed_dim must be divisible by num_heads, got E{self.embed_dim} and H{self.num_heads}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, got {self.dropout:g}")
        self._check_aliases()
        self._check_mask()
        self._check_regime()

    def _check_aliases(self) -> None:
        if self.self_attention + self.key_is_value + self.query_is_key > 1:
            raise ValueError("self_attention, key_is_value and query_is_key exclude one another")
        if self.self_attention and (self.queries != self.keys or self.kdim or self.vdim):
            raise ValueError(f"self_attention needs L = S and neither K nor V, got L{self.queries} and S{self.keys}")
        if self.key_is_value and (self.kdim or self.embed_dim) != (self.vdim or self.embed_dim):
            raise ValueError(f"key_is_value needs keys and values of one width, got K{self.kdim} and V{self.vdim}")
        if self.query_is_key and (self.queries != self.keys or self.kdim):
            raise ValueError(f"query_is_key needs L = S and no K, got L{self.queries} and S{self.keys}")

    def _check_mask(self) -> None:
        known = {"none", *ATTENTION_MASKS, *PADDING_MASKS}
        unknown = [part for part in self.mask.split("+") if part not in known]
        if unknown:
            raise ValueError(f"unknown mask {unknown[0]!r}; available: {', '.join(sorted(known))}")
        named = [part for part in (self.attention_mask, self.padding_mask) if part]
        if self.mask.split("+") != (named or ["none"]):
            raise ValueError(f"a mask is an attn_mask, a key_padding_mask or both in this order, got {self.mask!r}")
        if self.is_causal and self.attention_mask != "causal":
            raise ValueError("is_causal promises a causal attn_mask: use mask=causal")

    def _check_regime(self) -> None:
        known = (*LOGIT_STD, *IDENTITY_REGIMES)
        if self.regime not in known and self.encoder_layer is None:
            raise ValueError(f"unknown regime {self.regime!r}; available: {', '.join(known)}, minilm0 to minilm5")
        if self.regime in IDENTITY_REGIMES and (
            self.kdim or self.vdim or self.bias or self.add_bias_kv or self.add_zero_attn
        ):
            raise ValueError(f"regime {self.regime} has no projections: no K, no V, no bias and no extra column")
        if self.regime in EXACT_MASKS:
            if self.mask not in EXACT_MASKS[self.regime]:
                raise ValueError(f"regime {self.regime} needs a mask of {', '.join(EXACT_MASKS[self.regime])}")
            if self.self_attention or self.key_is_value or self.query_is_key or self.dropout:
                raise ValueError(f"regime {self.regime} needs three tensors of its own and no dropout")

    @property
    def sequences(self) -> int:
        """Number of sequences: the batch, or one without it."""
        return 1 if self.batch is None else self.batch

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.embed_dim // self.num_heads

    @property
    def attention_mask(self) -> str | None:
        """Name of the attn_mask, or None."""
        return next((part for part in self.mask.split("+") if part in ATTENTION_MASKS), None)

    @property
    def padding_mask(self) -> str | None:
        """Name of the key_padding_mask, or None."""
        return next((part for part in self.mask.split("+") if part in PADDING_MASKS), None)

    @property
    def additive_masks(self) -> tuple[str, ...]:
        """Arguments of the reference that are masks to be added."""
        kinds = {"attn_mask": self.attention_mask, "key_padding_mask": self.padding_mask}
        return tuple(name for name, kind in kinds.items() if kind and ("float" in kind or "lowest" in kind))

    @property
    def probed(self) -> bool:
        """Whether nothing but the core's own rounding is in an output."""
        return self.regime == "identity"

    @property
    def encoder_layer(self) -> int | None:
        """Layer of the real encoder that is the reference here, or None for drawn weights."""
        number = self.regime.removeprefix("minilm")
        is_layer = self.regime.startswith("minilm") and number.isdecimal() and int(number) < ENCODER_LAYERS
        return int(number) if is_layer else None

    @property
    def columns(self) -> int:
        """Keys that a query may see: the given ones, the learned column and the zero column."""
        return self.keys + self.add_bias_kv + self.add_zero_attn
