"""The problem description of multi-head attention: sizes and arguments of ``torch.nn.MultiheadAttention``."""

from dataclasses import dataclass

from attnbench.cases import Problem, amount, flag, size
from attnbench.operators.sentence_lengths import demand_padding

__all__ = [
    "ATTENTION_MASKS",
    "CAUSAL_MASKS",
    "ENCODER_LAYERS",
    "EXACT_MASKS",
    "FINITE_MASKS",
    "IDENTITY_REGIMES",
    "LOGIT_STD",
    "NAMED_MASKS",
    "OVERFLOW_LOGIT",
    "PADDING_MASKS",
    "SIDE_PADDING",
    "MultiheadProblem",
]

# Names of the forms of attn_mask. A form is boolean or float. A 2d mask is shared by all sequences and heads; a 3d mask
# has one matrix for each head of each sequence. ``empty`` masks hide every key in one row (2d) or in one row of one
# head (3d). A ``union`` mask hides every key in a row only together with a padding mask. ``window2d`` shows each query
# the few keys up to its position, so that late queries see none of the first keys. ``lowest`` masks add large negative
# finite numbers; a row with such a number at every key is not fully masked. In ``lowestrows2d``, every second row is at
# the lowest number.
# The values of ``FINITE_MASKS`` look as if they hid nothing, and change every logit: those of ``floatnegative2d`` are
# negative and finite, and those of ``floatzerosum2d`` are finite, with a sum of exactly 0.
FINITE_MASKS = ("floatnegative2d", "floatzerosum2d")
ATTENTION_MASKS = (
    "bool2d", "float2d", "bool3d", "float3d", "causal", "empty2d", "floatempty2d", "empty3d", "union2d", "window2d",
    "lowest2d", "lowestrows2d", *FINITE_MASKS,
)  # fmt: skip
# Forms of attn_mask that no list of cases has, and that are not drawn: they are named to time them. ``floatcausal``
# hides what ``causal`` hides, and is a float mask, as ``nn.Transformer.generate_square_subsequent_mask`` makes it. The
# reference computes the two in different ways, so their times differ.
NAMED_MASKS = ("floatcausal",)
# Forms of attn_mask for which ``is_causal`` may be set.
CAUSAL_MASKS = ("causal", "floatcausal")
# Names of the forms of key_padding_mask. ``pad`` is boolean and hides keys at the end of a sequence; ``padleft`` hides
# keys at the start, and ``padholes`` hides keys at random positions. ``padfloat`` is minus infinity at hidden keys and
# random at visible keys. ``padempty`` is boolean, and hides every key of one sequence. ``padlowest`` is a large
# negative finite number at hidden keys. Of the boolean ``SIDE_PADDING``, ``padall`` hides the last keys of every
# sequence, two of them in all sequences, and ``padlast`` hides the last key of the last sequence, and no other.
SIDE_PADDING = ("padall", "padlast")
PADDING_MASKS = ("pad", "padleft", "padholes", "padfloat", "padempty", "padlowest", *SIDE_PADDING)

# Standard deviation of the logits, by regime. Rows of attention weights are nearly uniform in ``flat`` and nearly
# one-hot in ``onehot``. The logits of ``huge`` are ten times as large as those of ``onehot``.
LOGIT_STD = {"flat": 0.3, "plain": 2.0, "peaked": 8.0, "onehot": 30.0, "huge": 300.0}
# Regimes whose output is exact in every dtype, each with the masks for which its output is exact. In these regimes and
# in ``identity``, the projections are fixed and exact (W_q = 2 I, W_k = W_o = I, W_v a permutation).
EXACT_MASKS = {
    # All logits are equal, and values are small integers. The output is a mean over visible keys, and the number of
    # visible keys is a power of two.
    "uniform": ("none", "bool2d", "bool3d", "pad", "padleft", "padholes"),
    # Each head of a query sees one key, and the output of the head is the value of this key.
    "selection": ("bool3d",),
    # Values of visible keys are 0, and values of hidden keys are large. The output is 0.
    "zeroleak": ("pad", "padleft", "padholes", "padfloat"),
    # One logit of each row is ``OVERFLOW_LOGIT`` and the others are 0, so the output is the value of one key. The
    # product of query and key before the scale 1/√D exceeds the largest number of float16; the logit does not.
    "overflow": ("none",),
}
# The largest logit of a row in the regime ``overflow``. Twice this number exceeds 65504, the largest number of float16.
OVERFLOW_LOGIT = 2.0**15
IDENTITY_REGIMES = ("identity", *EXACT_MASKS)

# The sentence encoder all-MiniLM-L6-v2 has six layers. Regime ``minilm<n>`` is the attention of layer n on real
# sentences.
ENCODER_LAYERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiheadProblem(Problem):
    """Sizes, constructor arguments and forward arguments of the reference, one field each.

    ``self_attention`` passes one tensor as query, key and value; ``key_is_value`` and ``query_is_key`` pass one tensor
    as the two arguments in their name.
    """

    batch: int | None = size("B", optional=True)  # None means unbatched, two-dimensional input
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
    # Share of the positions of the batch that key_padding_mask hides. The lengths of the sequences are then drawn from
    # those of real sentences. 0 means that the lengths do not follow from a share.
    padding: float = amount()

    def __post_init__(self) -> None:
        """Raise ValueError if the fields do not describe a valid problem."""
        if min(self.embed_dim, self.num_heads) < 1:
            raise ValueError(f"embed_dim and num_heads must be at least 1, got E{self.embed_dim} and H{self.num_heads}")
        if self.embed_dim % self.num_heads:
            raise ValueError(f"embed_dim must be divisible by num_heads, got E{self.embed_dim} and H{self.num_heads}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, got {self.dropout:g}")
        self._check_aliases()
        self._check_mask()
        self._check_regime()
        demand_padding(
            self.padding, sequences=self.sequences, mask=self.mask, padded="pad", regime_fits=self.regime in LOGIT_STD
        )

    def _check_aliases(self) -> None:
        if self.self_attention + self.key_is_value + self.query_is_key > 1:
            raise ValueError("self_attention, key_is_value and query_is_key exclude one another: set at most one")
        if self.self_attention and (self.queries != self.keys or self.kdim or self.vdim):
            raise ValueError(
                "self_attention needs as many queries as keys, and neither kdim nor vdim; "
                f"got L{self.queries} and S{self.keys}"
            )
        if self.key_is_value and (self.kdim or self.embed_dim) != (self.vdim or self.embed_dim):
            raise ValueError(f"key_is_value needs equal kdim and vdim, got K={self.kdim} and V={self.vdim}")
        if self.query_is_key and (self.queries != self.keys or self.kdim):
            raise ValueError(
                f"query_is_key needs as many queries as keys, and no kdim; got L{self.queries} and S{self.keys}"
            )

    def _check_mask(self) -> None:
        masks = {"none", *ATTENTION_MASKS, *NAMED_MASKS, *PADDING_MASKS}
        unknown = [part for part in self.mask.split("+") if part not in masks]
        if unknown:
            raise ValueError(f"unknown mask {unknown[0]!r}; available: {', '.join(sorted(masks))}")
        named = [part for part in (self.attention_mask, self.padding_mask) if part]
        if self.mask.split("+") != (named or ["none"]):
            raise ValueError(f"mask must be an attn_mask, a key_padding_mask or both in this order, got {self.mask!r}")
        if self.is_causal and not self.has_causal_mask:
            raise ValueError(f"is_causal needs a mask whose name contains 'causal', got {self.mask!r}")

    def _check_regime(self) -> None:
        regimes = (*LOGIT_STD, *IDENTITY_REGIMES)
        if self.regime not in regimes and self.encoder_layer is None:
            raise ValueError(f"unknown regime {self.regime!r}; available: {', '.join(regimes)}, minilm0 to minilm5")
        if self.regime in IDENTITY_REGIMES and (
            self.kdim or self.vdim or self.bias or self.add_bias_kv or self.add_zero_attn
        ):
            raise ValueError(
                f"regime {self.regime} has fixed projections: remove the sizes K and V and the flags bias, "
                "add_bias_kv and add_zero_attn"
            )
        if self.regime in EXACT_MASKS:
            if self.mask not in EXACT_MASKS[self.regime]:
                available = ", ".join(EXACT_MASKS[self.regime])
                raise ValueError(f"regime {self.regime} needs one of the masks {available}; got {self.mask!r}")
            if self.self_attention or self.key_is_value or self.query_is_key or self.dropout:
                raise ValueError(
                    f"regime {self.regime} needs distinct query, key and value and no dropout: remove self_attention, "
                    "key_is_value, query_is_key and dropout"
                )
        if self.regime == "overflow":
            self._check_overflow()

    def _check_overflow(self) -> None:
        # The scale 1/√D must be a power of two of at most 1/2. Each key needs a feature that no other key has.
        if self.head_dim not in (4, 16, 64, 256):
            raise ValueError(f"regime overflow needs heads of width 4, 16, 64 or 256, got {self.head_dim}")
        if not 1 <= self.keys <= self.head_dim:
            raise ValueError(
                f"regime overflow needs from 1 key to as many keys as a head is wide; got S{self.keys} and heads of "
                f"width {self.head_dim}"
            )

    @property
    def sequences(self) -> int:
        """Number of sequences: the batch size, or 1 if unbatched."""
        return 1 if self.batch is None else self.batch

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.embed_dim // self.num_heads

    @property
    def attention_mask(self) -> str | None:
        """Name of the form of attn_mask (of ``ATTENTION_MASKS`` or ``NAMED_MASKS``), or None without attn_mask."""
        masks = (*ATTENTION_MASKS, *NAMED_MASKS)
        return next((part for part in self.mask.split("+") if part in masks), None)

    @property
    def has_causal_mask(self) -> bool:
        """Whether attn_mask is a causal mask, boolean or float."""
        return self.attention_mask in CAUSAL_MASKS

    @property
    def padding_mask(self) -> str | None:
        """Name of the form of key_padding_mask (one of ``PADDING_MASKS``), or None without key_padding_mask."""
        return next((part for part in self.mask.split("+") if part in PADDING_MASKS), None)

    @property
    def additive_masks(self) -> tuple[str, ...]:
        """Names of the arguments (attn_mask, key_padding_mask) that are additive masks."""
        kinds = {"attn_mask": self.attention_mask, "key_padding_mask": self.padding_mask}
        return tuple(name for name, kind in kinds.items() if kind and ("float" in kind or "lowest" in kind))

    @property
    def constant_masks(self) -> tuple[str, ...]:
        """``attn_mask`` where it is a float mask that only says what is hidden: no gradient of it is asked for."""
        return ("attn_mask",) if self.attention_mask in NAMED_MASKS else ()

    @property
    def probed(self) -> bool:
        """Whether checks estimate the softmax scale and the amplitude (the common factor) of whole tensors."""
        # In the regime ``identity`` the projections are exact, so only the attention has rounding errors.
        return self.regime == "identity"

    @property
    def encoder_layer(self) -> int | None:
        """Index of the encoder layer whose parameters the case uses, or None if the parameters are random."""
        number = self.regime.removeprefix("minilm")
        is_layer = self.regime.startswith("minilm") and number.isdecimal() and int(number) < ENCODER_LAYERS
        return int(number) if is_layer else None

    @property
    def columns(self) -> int:
        """Length of a row of attention weights: the given keys and the extra keys of add_bias_kv and add_zero_attn."""
        return self.keys + self.add_bias_kv + self.add_zero_attn
