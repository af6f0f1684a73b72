"""Cases and their ids; ``Case.parse`` rebuilds a case from nothing but its id.

A case is one problem of one operator. The form of an id is
described in ``attnbench.case_id``. An operator describes its problems by a frozen
dataclass derived from ``Problem``, whose fields are declared with ``size``, ``flag`` and ``amount``. ``Problem`` then
parses and formats the part of an id that describes the problem.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

from attnbench.case_id import CaseId

__all__ = [
    "CALL_MODES",
    "COMPILED_MODES",
    "DEVICES",
    "DTYPES",
    "LEVELS",
    "MODES",
    "NESTED",
    "CallMode",
    "Case",
    "Compiler",
    "Device",
    "Dtype",
    "Level",
    "Mode",
    "Problem",
    "amount",
    "digest",
    "flag",
    "shard",
    "size",
]

Dtype = Literal["float32", "float64", "bfloat16", "float16"]
Device = Literal["cpu", "cuda"]
Mode = Literal[
    "inference",
    "eval",
    "train",
    "inference_mode",
    "sampling",
    "frozen",
    "tuning",
    "autocast",
    "aot",
    "inductor",
    "inductor_train",
    "exported",
]
Compiler = Literal["aot_eager", "inductor", "export"]
Level = Literal["quick", "core", "full", "slow", "gpu", "huge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMode:
    """How the module is called in one mode: gradients, train() or eval(), autocast, compiler."""

    # The module is in train(), not in eval().
    training: bool = False
    inputs_track: bool = False
    parameters_track: bool = False
    # The module is called under torch.autocast to the case's dtype; inputs and parameters are float32.
    autocast: bool = False
    # A call without gradients is made under torch.inference_mode instead of torch.no_grad.
    inference_mode: bool = False
    compiler: Compiler | None = None


_ALL_TRACK: dict[str, Any] = {"inputs_track": True, "parameters_track": True}
CALL_MODES: dict[Mode, CallMode] = {
    "inference": CallMode(),
    "eval": CallMode(**_ALL_TRACK),
    "train": CallMode(training=True, **_ALL_TRACK),
    "inference_mode": CallMode(inference_mode=True),
    # Dropout without gradients, as in Monte Carlo dropout.
    "sampling": CallMode(training=True),
    # A frozen layer inside a network in training: gradients with respect to the inputs only.
    "frozen": CallMode(training=True, inputs_track=True),
    # The first layer of a network: gradients with respect to the parameters only.
    "tuning": CallMode(parameters_track=True),
    "autocast": CallMode(training=True, autocast=True, **_ALL_TRACK),
    "aot": CallMode(compiler="aot_eager", **_ALL_TRACK),
    "inductor": CallMode(compiler="inductor"),
    "inductor_train": CallMode(training=True, compiler="inductor", **_ALL_TRACK),
    "exported": CallMode(compiler="export"),
}
# Modes in which the module is compiled.
COMPILED_MODES: frozenset[str] = frozenset(mode for mode, call_mode in CALL_MODES.items() if call_mode.compiler)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
DEVICES: tuple[Device, ...] = get_args(Device)
MODES: tuple[Mode, ...] = get_args(Mode)
LEVELS: tuple[Level, ...] = get_args(Level)
# Each of these levels contains the cases of the level before it. The other levels ("gpu", "huge") are
# separate, and run only if they are named.
NESTED: tuple[Level, ...] = ("quick", "core", "full", "slow")

T = TypeVar("T")
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
    # The problem class of any other operator declares a field, or a property, of the same name.

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
    def head_groups(self) -> int:
        """Number of head groups that can be permuted; query heads that share a key head form one group."""
        return self.num_heads

    @property
    def dropout(self) -> float:
        """Dropout probability of the attention weights in training."""
        return 0.0

    @property
    def attention_mask(self) -> str | None:
        """The part of ``mask`` that names the mask of pairs of queries and keys, or None."""
        return None

    @property
    def padding_mask(self) -> str | None:
        """The part of ``mask`` that names the mask of padded keys, or None."""
        return None

    @property
    def additive_masks(self) -> tuple[str, ...]:
        """Names of the inputs that are additive masks; these inputs have gradients."""
        return ()

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

    def id(self) -> str:
        """Return the part of a case id that describes the problem: ``sizes/flags/mask=…/regime=…/seed=…``."""
        sizes = ".".join(
            f"{f.metadata[_LABEL]}{getattr(self, f.name)}"
            for f in _select_fields(self, "size")
            if getattr(self, f.name) is not None
        )
        words = [f.name for f in _select_fields(self, "flag") if getattr(self, f.name)]
        amounts = {f.name: getattr(self, f.name) for f in _select_fields(self, "amount")}
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


def _select_fields(problem: Problem | type[Problem], kind: str) -> Iterator[Field[Any]]:
    return (f for f in fields(problem) if f.metadata.get(_KIND) == kind)


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
    by_label = {f.metadata[_LABEL]: f.name for f in _select_fields(cls, "size")}
    values: dict[str, Any] = {}
    for part in text.split("."):
        label = part.rstrip("0123456789")
        if label not in by_label:
            raise ValueError(f"unknown size {part!r}; the sizes of {cls.__name__} are {', '.join(by_label)}")
        values[by_label[label]] = _parse_int(part[len(label) :], part)
    return values


def _parse_flags(cls: type[Problem], text: str) -> dict[str, Any]:
    flags = {f.name for f in _select_fields(cls, "flag")}
    amounts = {f.name for f in _select_fields(cls, "amount")}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One problem of one operator, in one dtype, on one device, called in one mode."""

    operator: str
    problem: Any  # the operator's own subclass of Problem
    dtype: Dtype = "float32"
    device: Device = "cpu"
    mode: Mode = "eval"

    @property
    def id(self) -> str:
        """The complete description of this case; ``Case.parse`` is the inverse."""
        problem = self.problem.id()
        parts = CaseId(operator=self.operator, problem=problem, dtype=self.dtype, device=self.device, mode=self.mode)
        return str(parts)

    @property
    def seed(self) -> int:
        """Seed of the inputs: a stable hash of the id without dtype, device and mode.

        Cases that differ only in dtype, device or mode therefore have the same data.
        """
        text = f"{self.operator}/{self.problem.id()}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")

    @property
    def call_mode(self) -> CallMode:
        """How the module is called in this case's mode."""
        return CALL_MODES[self.mode]

    @property
    def given_dtype(self) -> Dtype:
        """Dtype of inputs and parameters: float32 under autocast, and the case's dtype in all other modes."""
        return "float32" if self.autocast else self.dtype

    @property
    def training(self) -> bool:
        """Whether the module is in train()."""
        return self.call_mode.training

    @property
    def tracks_inputs(self) -> bool:
        """Whether inputs and masks require gradients."""
        return self.call_mode.inputs_track

    @property
    def tracks_parameters(self) -> bool:
        """Whether parameters require gradients."""
        return self.call_mode.parameters_track

    @property
    def differentiates(self) -> bool:
        """Whether anything requires gradients."""
        return self.tracks_inputs or self.tracks_parameters

    @property
    def compiler(self) -> Compiler | None:
        """The compiler that compiles the module, or None."""
        return self.call_mode.compiler

    @property
    def autocast(self) -> bool:
        """Whether the module is called under autocast."""
        return self.call_mode.autocast

    def with_fields(self, **common: Any) -> "Case":
        """Return this case with changed values of the fields that every operator's cases have (dtype, device, mode)."""
        return replace(self, **common)

    def with_problem(self, **changes: Any) -> "Case":
        """Return this case with some fields of its problem changed."""
        return replace(self, problem=replace(self.problem, **changes))

    @classmethod
    def parse(cls, text: str, problems: dict[str, type[Problem]]) -> "Case":
        """Return the case whose id is ``text``; ``problems`` gives the problem type of each operator.

        Raises: ValueError that names the part that cannot be parsed.
        """
        parts = CaseId.parse(text)
        if parts.operator not in problems:
            raise ValueError(f"unknown operator {parts.operator!r}; available: {', '.join(sorted(problems))}")
        for name, allowed in (("dtype", DTYPES), ("device", DEVICES), ("mode", MODES)):
            value = getattr(parts, name)
            if value not in allowed:
                raise ValueError(f"unknown {name} {value!r}; available: {', '.join(allowed)}")
        problem = problems[parts.operator].parse(parts.problem)
        common: dict[str, Any] = {"dtype": parts.dtype, "device": parts.device, "mode": parts.mode}
        return cls(operator=parts.operator, problem=problem, **common)


def digest(case_ids: Iterable[str]) -> str:
    """Return a short hash of a list of case ids; two runs with equal hashes had the same cases."""
    return hashlib.sha256("\n".join(sorted(case_ids)).encode()).hexdigest()[:12]


def shard(cases: Sequence[T], index: int, count: int) -> Sequence[T]:
    """Split the cases into ``count`` parts, and return part number ``index``, counted from 1."""
    return cases[index - 1 :: count]
