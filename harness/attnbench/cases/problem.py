"""Problems of an operator, and the part of a case id that describes a problem.

An operator derives a frozen dataclass from ``Problem``, whose fields are declared with ``size``, ``flag`` and
``amount``.
"""

from dataclasses import Field, dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Self

__all__ = ["Problem", "amount", "flag", "size"]

_KIND, _LABEL = "kind", "label"


def size(label: str, *, optional: bool = False) -> Any:
    """Declare a size, written ``<label><number>`` in the id; an optional size is left out of the id when it is None."""
    metadata = {_KIND: "size", _LABEL: label}
    return field(default=None, metadata=metadata) if optional else field(metadata=metadata)


def flag() -> Any:
    """Declare a boolean field, whose name is written in the id when the field is true."""
    return field(default=False, metadata={_KIND: "flag"})


def amount() -> Any:
    """Declare a number, written ``<name>=<number>`` in the id when it is not 0."""
    return field(default=0.0, metadata={_KIND: "amount"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What an operator has to compute in a case; each operator derives its own class."""

    mask: str = "none"
    regime: str = "plain"
    seed: int = 0

    _missing: ClassVar[str] = "-"

    # Checks read the properties below. The values here are defaults for operators to which a property does not apply.
    # If a property applies to an operator, the operator's problem class declares a field or a property of this name.

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return 1

    @property
    def batch(self) -> int | None:
        """Batch size; None in an unbatched case, and for an operator that takes no unbatched inputs."""
        return None

    @property
    def queries(self) -> int:
        """Number of queries of a sequence."""
        return 1

    @property
    def keys(self) -> int:
        """Number of keys of a sequence."""
        return 1

    @property
    def columns(self) -> int:
        """Number of keys of a sequence, including appended keys (bias_k, the zero key of add_zero_attn)."""
        return self.keys

    @property
    def num_heads(self) -> int:
        """Number of query heads."""
        return 1

    @property
    def pairs(self) -> int:
        """Number of query-key pairs of all sequences and heads, including appended keys."""
        return self.sequences * self.num_heads * self.queries * self.columns

    @property
    def head_groups(self) -> int:
        """Number of head groups that can be permuted; query heads that share a key head form one group."""
        return self.num_heads

    @property
    def dropout(self) -> float:
        """Dropout probability of the attention weights in training."""
        return 0.0

    @property
    def padding(self) -> float:
        """Share of padded positions in the batch; 0 if the lengths of the sequences do not follow from a share."""
        return 0.0

    @property
    def attention_mask(self) -> str | None:
        """The part of ``mask`` that names the mask of pairs of queries and keys; None without such a mask."""
        return None

    @property
    def padding_mask(self) -> str | None:
        """The part of ``mask`` that names the mask of padded keys; None without such a mask."""
        return None

    @property
    def additive_masks(self) -> tuple[str, ...]:
        """Names of the inputs that are additive masks; these inputs have gradients, except the constant masks."""
        return ()

    @property
    def constant_masks(self) -> tuple[str, ...]:
        """Names of the additive masks that never require gradients, because a model does not learn such a mask."""
        return ()

    @property
    def tracked_masks(self) -> tuple[str, ...]:
        """Names of the additive masks that have gradients."""
        return tuple(name for name in self.additive_masks if name not in self.constant_masks)

    @property
    def is_causal(self) -> bool:
        """Whether the call sets the flag ``is_causal``, which promises that the mask is causal."""
        return False

    @property
    def ordered(self) -> bool:
        """Whether the result depends on the order of the keys."""
        return self.is_causal

    @property
    def self_attention(self) -> bool:
        """Whether query, key and value are the same tensor."""
        return False

    @property
    def key_is_value(self) -> bool:
        """Whether key and value are the same tensor."""
        return False

    @property
    def query_is_key(self) -> bool:
        """Whether query and key are the same tensor."""
        return False

    @property
    def shares_queries(self) -> bool:
        """Whether each token is both a query and a key."""
        return self.self_attention or self.query_is_key

    @property
    def has_parameters(self) -> bool:
        """Whether the reference has parameters."""
        return True

    @property
    def probed(self) -> bool:
        """Whether checks estimate the softmax scale and the amplitude from all elements of an output or a gradient."""
        return False

    def lengthen(self) -> Self | None:
        """Return the problem with one more query and one more key, or None if it has no lengths to change."""
        lengths = {name: getattr(self, name) + 1 for name in ("queries", "keys") if name in self.__dataclass_fields__}
        return replace(self, **lengths) if lengths else None

    def change(self, **changes: Any) -> Self:
        """Return the problem with some fields changed.

        A problem with other sequences, keys or masks has no share of padding any more, unless ``changes`` name one.
        """
        if self.padding and {"batch", "sequences", "keys", "mask"} & changes.keys():
            changes = {"padding": 0.0} | changes
        return replace(self, **changes)

    def id(self) -> str:
        """Return the part of a case id that describes the problem: ``sizes/flags/mask=…/regime=…/seed=…``."""
        sizes = ".".join(
            f"{f.metadata[_LABEL]}{getattr(self, f.name)}"
            for f in self._select_fields("size")
            if getattr(self, f.name) is not None
        )
        words = [f.name for f in self._select_fields("flag") if getattr(self, f.name)]
        amounts = {f.name: getattr(self, f.name) for f in self._select_fields("amount")}
        words += [f"{name}={amount:g}" for name, amount in amounts.items() if amount]
        flags = "+".join(words) or self._missing
        return f"{sizes}/{flags}/mask={self.mask}/regime={self.regime}/seed={self.seed}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the problem whose ``id()`` is ``text``.

        Raises: ValueError that names the part that cannot be parsed.
        """
        parts = text.split("/")
        if len(parts) != 5:
            raise ValueError(f"a problem has 5 parts 'sizes/flags/mask=…/regime=…/seed=…', got {text!r}")
        sizes, flags, *named = parts
        values = _parse_sizes(cls, sizes) | _parse_flags(cls, flags)
        for part, name in zip(named, ("mask", "regime", "seed"), strict=True):
            key, _, value = part.partition("=")
            if key != name or not value:
                raise ValueError(f"expected '{name}=…', got {part!r} in {text!r}")
            values[name] = _parse_int(value, part) if name == "seed" else value
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"{text!r} lacks a size: {error}") from error

    @classmethod
    @cache  # a run parses and writes thousands of case ids
    def _select_fields(cls, kind: str) -> tuple[Field[Any], ...]:
        return tuple(f for f in fields(cls) if f.metadata.get(_KIND) == kind)


def _parse_int(text: str, part: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"expected a whole number in {part!r}")
    return int(text)


def _parse_float(text: str, part: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number in {part!r}") from None


def _parse_sizes(cls: type[Problem], text: str) -> dict[str, Any]:
    by_label = {f.metadata[_LABEL]: f.name for f in cls._select_fields("size")}
    values: dict[str, Any] = {}
    for part in text.split("."):
        label = part.rstrip("0123456789")
        if label not in by_label:
            raise ValueError(f"unknown size {part!r}; the sizes of {cls.__name__} are {', '.join(by_label)}")
        values[by_label[label]] = _parse_int(part[len(label) :], part)
    return values


def _parse_flags(cls: type[Problem], text: str) -> dict[str, Any]:
    flags = {f.name for f in cls._select_fields("flag")}
    amounts = {f.name for f in cls._select_fields("amount")}
    values: dict[str, Any] = {}
    for word in text.split("+"):
        name, _, value = word.partition("=")
        if word in flags:
            values[word] = True
        elif name in amounts:
            values[name] = _parse_float(value, word)
        elif word != cls._missing:
            raise ValueError(
                f"unknown flag {word!r}; the flags of {cls.__name__} are {', '.join(sorted(flags | amounts))}"
            )
    return values
