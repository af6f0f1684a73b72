"""What an implementation and an operator declare. Importing this imports no torch."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from attnbench.cases import Case, Dtype, Level, Problem

if TYPE_CHECKING:
    import torch

__all__ = [
    "GENERAL_CHAPTERS",
    "Alignment",
    "Axis",
    "Call",
    "CaseTransforms",
    "HiddenNan",
    "HiddenRows",
    "Implementation",
    "Inputs",
    "Operator",
    "PaddedQueries",
    "Policies",
    "Precision",
    "Refusal",
    "Work",
    "reference_arguments",
]

# What a row of queries gets when every key is hidden from it: zero attention, or NaN.
HiddenRows = Literal["zero", "nan"]
# Which key the first query sees under a causal flag without a mask, where queries and keys differ in number.
Alignment = Literal["top_left", "bottom_right"]
# What NaN in a hidden key or value does: 0 · NaN is NaN unless a kernel never reads what is hidden.
HiddenNan = Literal["propagates", "blocked"]
# Whether the row of a query that is itself padding is computed like any other, or is the implementation's own affair.
PaddedQueries = Literal["answered", "own"]
# TF32 keeps as many digits as float16.
Precision = Literal["float64", "float32", "tf32", "float16", "bfloat16"]
# Takes the operator's arguments (of multihead: those of the reference's forward), returns its outputs.
Call = Callable[..., Any]


class Refusal(Exception):
    """Raised by an implementation, with the reason, for a problem that it does not compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What an implementation does where the contract leaves a choice, or where it deviates by design."""

    hidden_rows: HiddenRows = "zero"
    # How its causal flag is aligned; ``from_kernel`` hands over a mask where that is not what the contract says.
    causal: Alignment = "top_left"
    hidden_nan: HiddenNan = "propagates"
    # A token that key_padding_mask hides is a query too where query and key are one tensor. What is "own" is compared
    # with nothing: neither that row of the output, nor what would come back through it.
    padded_queries: PaddedQueries = "answered"
    # Its gradients have gradients.
    twice_differentiable: bool = False
    # The same call gives the same bits.
    deterministic: bool = True
    # No backward: cases in a mode with gradients are refused.
    forward_only: bool = False
    # Its call without gradients may be captured in a CUDA graph and replayed: it looks at no value on the host.
    capturable: bool = False
    # Precision it computes in where that is coarser than the case's dtype: its errors are budgeted by that.
    computes_in: Precision | None = None

    def precision(self, dtype: Dtype) -> Precision:
        """Precision that results in a dtype have: the coarser of both."""
        return max(self.computes_in or dtype, dtype, key=get_args(Precision).index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything that a case feeds in, already rounded to the case's dtype."""

    # Parameters of the reference, by its names.
    parameters: dict[str, "torch.Tensor"]
    # Tensor arguments of the call, by name; the same object under two names is passed as the same object.
    tensors: dict[str, "torch.Tensor"]
    # Other arguments of the call, by name.
    options: dict[str, Any] = field(default_factory=dict)
    # Random weights of the outputs in the loss whose gradients are compared, by output name.
    cotangents: dict[str, "torch.Tensor"] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the call."""
        return {**self.tensors, **self.options}

    def mapped(self, change: Callable[["torch.Tensor"], "torch.Tensor"]) -> "Inputs":
        """These inputs with every tensor changed once, however many names it has."""
        seen: dict[int, torch.Tensor] = {}

        def once(tensor: "torch.Tensor") -> "torch.Tensor":
            if id(tensor) not in seen:
                seen[id(tensor)] = change(tensor)
            return seen[id(tensor)]

        return Inputs(
            parameters={name: once(tensor) for name, tensor in self.parameters.items()},
            tensors={name: once(tensor) for name, tensor in self.tensors.items()},
            options=dict(self.options),
            cotangents={name: once(tensor) for name, tensor in self.cotangents.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What the positions along one dimension of a quantity are, in words."""

    dimension: int
    word: str
    # Of each position its number, or a name of its own.
    positions: Sequence[int | str] | Sequence[int]
    # Tells what a position belongs to, beside another axis that tells which it is.
    belongs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a case needs at the least, by closed form.

    Unit: floating-point operations (an addition and a multiplication are two) and bytes.
    """

    # 0: not counted.
    flop: int
    # Query-key pairs over batch and heads, hidden ones too: what an oracle that holds all of them has to hold.
    pairs: int
    # Bytes that are read and written when every tensor that goes in or comes out moves once; None: not known.
    bytes: int | None = None


class Implementation:
    """One way to compute an operator. Derive from it, or let ``from_kernel`` make one."""

    name: str = ""
    operator: str = "multihead"
    # URL of the paper or the code.
    source: str = ""
    policies: Policies = Policies()
    # Its first call of a kind compiles: one is made before calls are timed; a quick run takes it in by name only.
    compiles: bool = False

    def unsupported(self, case: Case) -> str | None:  # noqa: ARG002
        """Why this case is refused, or None."""
        return None

    def untimed(self, case: Case) -> str | None:  # noqa: ARG002
        """Why this case is checked but never timed, or None (an interpreted kernel, say)."""
        return None

    def predicted_s(self, case: Case) -> float | None:  # noqa: ARG002
        """Expected time of one call in seconds where that is known beforehand; it guards the work limit."""
        return None

    def environment(self) -> Mapping[str, str]:
        """Environment variables that must be set before its worker starts."""
        return {}

    def build(self, reference: Any) -> Any:
        """Module with the reference's forward and the reference's weights."""
        raise NotImplementedError(f"{type(self).__name__} does not define build(reference)")

    def weights(self, parameters: Mapping[str, "torch.Tensor"]) -> Mapping[str, "torch.Tensor"]:
        """Its own parameters by name, computed differentiably from the reference's."""
        return parameters

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Call:  # noqa: ARG002
        """The call that is checked and timed; whatever is not attention happens here."""
        if self.compiles:
            module(**inputs.arguments())
        return module  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        """Wait for work that is asynchronous outside torch's knowledge."""


class CaseTransforms(Protocol):
    """The same problem put otherwise: what checks of invariants, shapes and layouts ask an operator for.

    An operator that has them calls its tokens ``query``, ``key`` and ``value``.
    """

    def sequence_axis(self, case: Case) -> int:
        """Axis of tokens and output that counts sequences."""

    def length_axis(self, case: Case) -> int:
        """Axis of tokens and output that counts tokens."""

    def selected(
        self,
        case: Case,
        inputs: Inputs,
        *,
        sequences: Sequence[int] | None = None,
        queries: Sequence[int] | None = None,
        keys: Sequence[int] | None = None,
    ) -> tuple[Case, Inputs]:
        """Some sequences, queries or keys, by number, in any order and as often as they are named."""

    def padded(self, case: Case, inputs: Inputs, count: int) -> tuple[Case, Inputs]:
        """So many further keys at the end, hidden from every query."""

    def reordered_heads(self, case: Case, inputs: Inputs, order: Sequence[int]) -> Inputs:
        """Inputs whose group of heads i is group ``order[i]`` of these."""

    def outputs_of_heads(
        self, case: Case, outputs: Mapping[str, "torch.Tensor"], order: Sequence[int]
    ) -> dict[str, "torch.Tensor"]:
        """What these outputs are where the heads stand in another order."""

    def shared_by_sequences(self, case: Case, name: str) -> tuple[int, int] | None:
        """Axis of an input along which one part can stand for all, and that part; None: it stays as it is."""


# Chapters of checks that know nothing of an operator but its inputs and its outputs.
GENERAL_CHAPTERS = ("forward", "gradients", "layouts", "hygiene", "determinism", "compilation")


class Operator:
    """A mathematical contract: its problems, its oracle, its yardsticks and the checks that apply.

    A class of one's own derives from it and says what raises NotImplementedError here: its suite, its inputs, its
    reference and its formula. Everything else has an answer that is right for an operator that knows no better.
    ``attnbench.operators.formula.FormulaOperator`` asks for less.
    """

    name: str = ""
    # Type of its problem descriptions, the middle of a case id.
    problem: type[Problem] = Problem
    # Name of the implementation that is the reference itself: what others' speed is told against.
    baseline: str = ""
    # Version of its case lists: results are comparable at an equal one.
    list_version: str = "1"
    # Names of what a call returns, in order; the first one is ``output``. A single one is returned as it is.
    outputs: tuple[str, ...] = ("output",)
    # Chapters of checks that apply: those of attnbench by name, an operator's own as ``package.module``.
    chapters: tuple[str, ...] = GENERAL_CHAPTERS
    # ``package.module:ATTRIBUTE`` of the ``MutantSet`` that tests its checks; empty: it has none.
    mutants: str = ""
    # ``package:file.json`` with the mutation scores of its case lists, as ``conform --mutants --json`` writes them.
    mutation_scores: str = ""

    @property
    def case_transforms(self) -> CaseTransforms | None:
        """Its problems put otherwise; None: checks that need them do not apply."""
        return None

    def suite(self, level: Level) -> Sequence[Case]:
        """Cases of a level, on the CPU; a level holds those of the one before it."""
        raise NotImplementedError(f"{type(self).__name__} does not define suite(level)")

    def profile(self, lengths: Sequence[int]) -> Sequence[Case]:  # noqa: ARG002
        """Cases of the suite ``perf``: one per length and pass. None: its speed is not asked for."""
        return ()

    def drawn(self, draw: Any) -> Case:
        """A case on the CPU as Hypothesis' ``draw`` makes it; it shrinks towards what is small and plain.

        By default one of its own list that is not compiled.
        """
        from hypothesis import strategies

        return draw(strategies.sampled_from([case for case in self.suite("full") if case.compiler is None]))  # type: ignore[no-any-return]

    def missing(self, case: Case) -> str | None:  # noqa: ARG002
        """What this machine lacks to draw the inputs of the case, with the remedy, or None."""
        return None

    def inputs(self, case: Case) -> Inputs:
        """Seeded inputs of the case, on the CPU, rounded to its dtype."""
        raise NotImplementedError(f"{type(self).__name__} does not define inputs(case)")

    def reference(self, case: Case, inputs: Inputs) -> Any:
        """The reference with these inputs' parameters, in the case's dtype, device and mode."""
        raise NotImplementedError(f"{type(self).__name__} does not define reference(case, inputs)")

    def evaluate(
        self, case: Case, inputs: Inputs, *, noise: Any = None, keep: Any = None, fault: Any = None
    ) -> dict[str, Any]:
        """Quantities by name from the formula, in the inputs' own precision (the oracle: float64).

        ``noise`` rounds at every stage; ``keep`` is the dropout mask where one is known; ``mistake`` is one of
        ``mistakes``, made on purpose.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define evaluate(case, inputs)")

    def fault_models(self, case: Case, quantities: Collection[str]) -> Mapping[str, Any]:  # noqa: ARG002
        """Known mistakes that may show in these quantities of the case, by what a user reads of each."""
        return {}

    def axes(self, case: Case, quantity: str) -> Sequence[Axis]:  # noqa: ARG002
        """What the dimensions of a quantity are, in words; without any, an element is told by its index."""
        return ()

    def noise(self, roundoff: float, seed: int) -> Any:
        """Rounding for ``evaluate``: relative noise of one roundoff, from a seed."""
        raise NotImplementedError(f"{type(self).__name__} does not define noise(roundoff, seed)")

    def scaled(self, case: Case, inputs: Inputs, factor: float) -> Inputs | None:  # noqa: ARG002
        """Inputs of which the logits are ``factor`` times as large, and everything else is the same.

        None: there are none, and only the amplitude of a quantity is looked at as a whole.
        """
        return None

    def yardsticks(self, case: Case, inputs: Inputs) -> Iterator[dict[str, Any]]:
        """The same quantities from each path of the reference, in the case's own dtype.

        By default those of the formula itself.
        """
        yield self.evaluate(case, inputs)

    def hidden_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:  # noqa: ARG002
        """For each output, where it belongs to a row from which every key is hidden (boolean, broadcastable)."""
        return {}

    def padded_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:  # noqa: ARG002
        """For each output, where it belongs to a query that a mask says is padding (boolean, broadcastable).

        Asked for implementations whose rows of padded queries are their own.
        """
        return {}

    def visible(self, case: Case, inputs: Inputs) -> Any:
        """Which keys each query may see: boolean (batch, heads, queries, keys)."""
        raise NotImplementedError(f"{type(self).__name__} does not define visible(case, inputs)")

    def script(self, case: Case, load: str) -> str:  # noqa: ARG002
        """The case as a standalone program without the harness; ``load`` binds the name ``implementation``.

        Raises: ValueError, with the reason, where there is none.
        """
        raise ValueError(f"cases of {self.name} cannot be told without the harness: leave out --script")

    def length(self, case: Case) -> int:
        """Length of the longest sum, on which accumulated rounding depends."""
        return int(case.problem.columns)

    def work(self, case: Case) -> Work:
        """What the case needs by closed form; by default its query-key pairs, and no count of operations."""
        problem = case.problem
        return Work(flop=0, pairs=problem.sequences * problem.num_heads * problem.queries * problem.columns)


def reference_arguments(reference: Any) -> dict[str, Any]:
    """Constructor arguments of a ``torch.nn.MultiheadAttention``, read from the instance."""
    return {
        "embed_dim": reference.embed_dim,
        "num_heads": reference.num_heads,
        "dropout": reference.dropout,
        "bias": reference.in_proj_bias is not None,
        "add_bias_kv": reference.bias_k is not None,
        "add_zero_attn": reference.add_zero_attn,
        "kdim": reference.kdim,
        "vdim": reference.vdim,
        "batch_first": reference.batch_first,
    }


def accepted(function: Callable[..., Any]) -> frozenset[str] | None:
    """Names that a function takes as keywords, or None where it takes any."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
