"""Conventions: how a function or a module is called, where it is not called as the reference.

A key of the mapping ``projections`` says which projections a layer computes, and a value is the layer's name in the
module. The keys are ``"q"``, ``"k"``, ``"v"`` and ``"out"``, and letters of one layer that computes several: ``"qkv"``
has the features of all queries first. With ``" by head"``, each head has its own queries, keys and values, one after
the other.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

__all__ = [
    "OUT", "Convention", "Layout", "MaskKind", "ModuleConvention", "Token", "Word", "is_by_head", "read_letters",
]  # fmt: skip

# How tensors are arranged. "bhsd": (batch, heads, sequence, width). "bshd": (batch, sequence, heads, width). "sbhd":
# (sequence, batch, heads, width). "folded":
# (batch·heads, sequence, width). "bs3hd": one tensor (batch, sequence, 3, heads, width) of queries, keys and values.
Layout = Literal["bhsd", "bshd", "sbhd", "folded", "bs3hd"]
# "any": boolean masks with true = keep, and masks that are added to the logits. "keep": only the former. "hide":
# boolean masks with true = hide. "additive": only masks that are added.
MaskKind = Literal["any", "keep", "hide", "additive"]


# What a positional argument of a forward method can stand for, and a keyword.
Token = Literal["query", "key", "value"]
Word = Literal["mask", "key_padding_mask", "is_causal", "need_weights"]
# Key of the output projection.
OUT = "out"
_BY_HEAD = " by head"
_KEY = re.compile(rf"([qkv]+)({_BY_HEAD})?|{OUT}")


def _demand_word(name: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ValueError(f"{name} must be one of {', '.join(words)}; got {value!r}")


def _demand_projections(projections: Mapping[str, str]) -> None:
    """Check that every input projection is named once.

    Raises: ValueError for an unknown key, and where a projection is missing or named twice.
    """
    for key in projections:
        if not _KEY.fullmatch(key):
            raise ValueError(f"projections: a key is letters of 'qkv', these and {_BY_HEAD!r}, or {OUT!r}; got {key!r}")
    letters = sorted("".join(map(read_letters, projections)))
    if letters != ["k", "q", "v"]:
        raise ValueError(f"projections must name each of q, k and v once, got {dict(projections)!r}")


def read_letters(key: str) -> str:
    """Return the letters of a key in order; an empty text for the output projection."""
    return "" if key == OUT else key.removesuffix(_BY_HEAD)


def is_by_head(key: str) -> bool:
    """Whether the features of a head are together in the layer, in place of those of all queries."""
    return key.endswith(_BY_HEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """How a function takes its tensors and masks, and returns its output.

    The defaults are the call that ``from_kernel`` describes. A function returns its output in the layout of its
    queries. Of a tuple, other elements than the first are dropped, unless the function takes ``need_weights``.
    """

    layout: Layout = "bhsd"
    # Order of queries, keys and values among the positional arguments; not read if the layout has one tensor.
    order: tuple[Literal["q", "k", "v"], ...] = ("q", "k", "v")
    # The function's own keyword, by the keyword of ``from_kernel`` that it stands for.
    names: Mapping[str, str] = field(default_factory=dict)
    masks: MaskKind = "any"
    # Tensors whose memory is not contiguous are copied for the function.
    contiguous: bool = False
    # The function applies a causal mask in every call, and takes no flag for it.
    causal_only: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown layout or kind, and if ``order`` does not have each of q, k and v once."""
        _demand_word("layout", self.layout, get_args(Layout))
        _demand_word("masks", self.masks, get_args(MaskKind))
        if sorted(self.order) != ["k", "q", "v"]:
            raise ValueError(f"order must have each of 'q', 'k' and 'v' once, got {self.order!r}")

    @property
    def is_packed(self) -> bool:
        """Whether queries, keys and values are one tensor, so that they must have equal shapes."""
        return self.layout == "bs3hd"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleConvention:
    """How a module has its projections, and how its forward method is called."""

    # The module's layers, as ``attnbench.kernel.projections`` describes them. Without "out", the reference's output
    # projection is applied to what the module returns.
    projections: Mapping[str, str]
    # Weights are (inputs, outputs), and not (outputs, inputs) as those of ``torch.nn.Linear``.
    transposed: bool = False
    # The positional arguments. One: query, key and value are the same; two: key and value are.
    tokens: tuple[Token, ...] = ("query", "key", "value")
    # Whether tokens are (batch, length, width), or (length, batch, width).
    batch_first: bool = True
    # The module's own keyword, by what it stands for. Without a keyword for key_padding_mask, ``mask`` is attn_mask and
    # key_padding_mask in one tensor.
    names: Mapping[Word, str] = field(default_factory=dict)
    masks: MaskKind = "any"
    # Dimensions of ``mask``: 4: (batch, heads, queries, keys), or 1 for batch or heads; 3: (batch or 1, queries, keys);
    # 2: (queries, keys).
    mask_dimensions: Literal[2, 3, 4] = 4
    # Tokens whose memory is not contiguous are copied for the module.
    contiguous: bool = False
    # The module applies a causal mask in every call.
    causal_only: bool = False
    # What the second element of a returned tuple is: weights of each head, their mean over heads, or no weights.
    weights: Literal["none", "heads", "mean"] = "none"
    # Of a module whose maker takes no ``bias``: whether all its projections have biases.
    biased: bool = True

    @property
    def replaces_causal_mask(self) -> bool:
        """Whether a causal mask is not passed: every call is causal, or a flag stands for it."""
        return self.causal_only or "is_causal" in self.names

    @property
    def separates_padding(self) -> bool:
        """Whether key_padding_mask has a keyword of its own."""
        return "key_padding_mask" in self.names

    def __post_init__(self) -> None:
        """Raise ValueError for projections or tokens that are not possible."""
        _demand_projections(self.projections)
        _demand_word("masks", self.masks, get_args(MaskKind))
        if self.tokens[:1] != ("query",) and len(self.tokens) < 3:
            raise ValueError(
                f"tokens must be ('query',), ('query', 'key') or all three in any order, got {self.tokens!r}"
            )
