"""Base classes of implementations and operators, and the types of their declarations. Torch is not imported here."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from attnbench.cases import NESTED, Case, Level, Precision, Problem, Shape
from attnbench.interface.policies import (
    DEFAULT_CHOICES,
    Alignment,
    Choices,
    EmptyBatches,
    HiddenNan,
    HiddenRowGradients,
    HiddenRows,
    Invariance,
    PaddedQueries,
    Policies,
    ReturnedWeights,
    Transforms,
)

if TYPE_CHECKING:
    import torch

    # Not imported when a command starts, because typed refusals need msgspec.
    from attnbench.refusals import TypedRefusal

__all__ = [
    "DEFAULT_CHOICES",
    "GENERAL_CHAPTERS",
    "Alignment",
    "Axis",
    "Call",
    "CaseTransforms",
    "Choices",
    "Covering",
    "EmptyBatches",
    "FaultModel",
    "HiddenNan",
    "HiddenRowGradients",
    "HiddenRows",
    "Implementation",
    "Inputs",
    "Invariance",
    "Operator",
    "PaddedQueries",
    "Policies",
    "Precision",
    "Refusal",
    "ReturnedWeights",
    "Transforms",
    "Work",
    "reference_arguments",
]

# A function that takes the operator's arguments and returns the operator's outputs. The arguments of ``multihead`` are
# the arguments of the reference's forward.
Call = Callable[..., Any]


class Refusal(Exception):
    """Raised where an implementation does not support a case, or a check cannot judge it.

    Its argument is a text or a typed refusal; of a built-in check, a phrase of ``attnbench.words``.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Parameters, arguments and cotangents of a case, rounded to the case's dtype."""

    # Parameters of the reference, by name.
    parameters: dict[str, "torch.Tensor"]
    # Tensor arguments of the call, by name. If two arguments are the same tensor, both names have the same object.
    tensors: dict[str, "torch.Tensor"]
    # Other arguments of the call, by name.
    options: dict[str, Any] = field(default_factory=dict)
    # Cotangents of the outputs, by output name. The compared gradients are the gradients of sum(output · cotangent).
    cotangents: dict[str, "torch.Tensor"] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the call."""
        return {**self.tensors, **self.options}

    def map_tensors(self, change: Callable[["torch.Tensor"], "torch.Tensor"]) -> "Inputs":
        """Return inputs with ``change`` applied to every tensor; a tensor with several names is changed only once."""
        seen: dict[int, torch.Tensor] = {}

        def change_once(tensor: "torch.Tensor") -> "torch.Tensor":
            if id(tensor) not in seen:
                seen[id(tensor)] = change(tensor)
            return seen[id(tensor)]

        return Inputs(
            parameters={name: change_once(tensor) for name, tensor in self.parameters.items()},
            tensors={name: change_once(tensor) for name, tensor in self.tensors.items()},
            options=dict(self.options),
            cotangents={name: change_once(tensor) for name, tensor in self.cotangents.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """How messages name the positions along one dimension of a quantity, for example as batch, head or query."""

    dimension: int
    word: str
    # Number or name of each position along the dimension, such as the head of each feature.
    positions: Sequence[int | str] | Sequence[int]
    # True if this axis groups the positions of another axis of the same dimension. For example, an axis of heads groups
    # the positions of the axis of features.
    belongs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultModel:
    """A known mistake in the formula, with which the oracle evaluates a case to diagnose a failure."""

    # The text that users read, as in "looks like …". Of a built-in operator: the key of a template of
    # ``attnbench.words``, which is filled with ``values``.
    name: str
    values: Mapping[str, int | float | str] = field(default_factory=dict)
    # The mistake, as ``Operator.evaluate`` takes it.
    fault: Any
    # The factor by which the mistake changes the softmax scale of the case, if it changes nothing else.
    scale: float | None = None
    # The mistake is one of a mask, so that hidden tokens may have an effect.
    of_mask: bool = False
    # The mistake is one of the backward pass; the outputs are right.
    of_backward: bool = False

    @property
    def identity(self) -> tuple[object, ...]:
        """What tells the fault model from the others of a case."""
        return (self.name, *sorted(self.values.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The least work that a case needs, computed by a closed formula.

    Unit: floating-point operations (an addition and a multiplication are two) and bytes.
    """

    # Floating-point operations; 0 if they are not counted.
    flop: int
    # Number of query-key pairs in all sequences and heads, including hidden pairs. An oracle that stores the attention
    # weights stores this many elements.
    pairs: int
    # Bytes that are read and written if every input is read once and every output is written once; None if unknown.
    bytes: int | None = None


class Implementation:
    """An implementation of an operator. Derive from this class, or make an instance with ``from_kernel``."""

    name: str = ""
    operator: str = "multihead"
    # URL of the paper or the code.
    source: str = ""
    policies: Policies = Policies()
    # Whether the first call of each kind compiles code. ``prepare`` then makes one call before calls are timed. Quick
    # runs leave out an implementation that compiles, unless the user names it.
    compiles: bool = False
    # The same implementation with other splits of the keys, by the number of keys that are summed at a time.
    key_splits: Mapping[int, "Implementation"] = {}

    def unsupported(self, case: Case) -> "TypedRefusal | str | None":  # noqa: ARG002
        """Return the reason why this case is refused; None if it is not refused."""
        return None

    def untimed(self, case: Case) -> "TypedRefusal | str | None":  # noqa: ARG002
        """Return why this case is checked but never timed, as for an interpreted kernel; None if it may be timed."""
        return None

    def predicted_s(self, case: Case) -> float | None:  # noqa: ARG002
        """Return the expected time of one call in seconds, or None if unknown; the work limit uses it."""
        return None

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that must be set before the worker process starts."""
        return {}

    def build(self, reference: Any) -> Any:
        """Return a module with the reference's forward signature and the reference's parameters."""
        raise NotImplementedError(f"{type(self).__name__} does not define build(reference)")

    def construct(self, reference: Any) -> Any:  # noqa: ARG002
        """Return a new module with the reference's sizes and the parameters that its own constructor gives it.

        None if there is no such constructor, as if parameters always come from ``build``.
        """
        return None

    def weights(self, parameters: Mapping[str, "torch.Tensor"]) -> Mapping[str, "torch.Tensor"]:
        """Return this implementation's parameters, keyed by parameter name, computed from the reference's parameters.

        The computation must be differentiable.
        """
        return parameters

    def weights_of(self, module: Any, parameters: Mapping[str, "torch.Tensor"]) -> Mapping[str, "torch.Tensor"]:  # noqa: ARG002
        """Return ``weights(parameters)``; for implementations whose mapping depends on the built module."""
        return self.weights(parameters)

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Call:  # noqa: ARG002
        """Return the callable that is checked and timed. Setup that is not part of attention belongs here."""
        if self.compiles:
            module(**inputs.arguments())
        return module  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        """Wait for asynchronous work that torch's synchronization of the device does not wait for."""


class CaseTransforms(Protocol):
    """Metamorphic relations: transformations of a case such that the new result follows from the original result.

    Checks that are marked with ``case_transforms=True`` need these transformations. An operator that has case
    transforms names its inputs ``query``, ``key`` and ``value``.
    """

    def sequence_axis(self, case: Case) -> int:
        """Return the batch axis of query, key, value and output."""

    def length_axis(self, case: Case) -> int:
        """Return the axis of query, key, value and output that counts tokens."""

    def select(
        self,
        case: Case,
        inputs: Inputs,
        *,
        sequences: Sequence[int] | None = None,
        queries: Sequence[int] | None = None,
        keys: Sequence[int] | None = None,
    ) -> tuple[Case, Inputs]:
        """Return the case with only these sequences, queries and keys; None selects all of them.

        The indices may be in any order and may repeat.
        """

    def pad(self, case: Case, inputs: Inputs, count: int) -> tuple[Case, Inputs]:
        """Return the case with ``count`` more keys at the end, which a mask hides from every query."""

    def reorder_heads(self, case: Case, inputs: Inputs, order: Sequence[int]) -> Inputs:
        """Return inputs whose head group i is head group ``order[i]`` of the given inputs.

        A head group is one key head with the query heads that use it.
        """

    def reorder_outputs(
        self, case: Case, outputs: Mapping[str, "torch.Tensor"], order: Sequence[int]
    ) -> dict[str, "torch.Tensor"]:
        """Return the outputs that inputs reordered by ``order`` must give, if the original inputs give ``outputs``."""

    def shared_by_sequences(self, case: Case, name: str) -> tuple[int, int] | None:
        """Return (axis, index) of the slice of an input that the check ``expanded_inputs`` repeats along this axis.

        None means that the check leaves the input ``name`` unchanged.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Covering:
    """The covering array behind an operator's suites: the factors of a case, and the values that are combined.

    A row has one value for each factor, by the factor's name. For an implementation that declares cases unsupported,
    cases of the operator's pool cover the combinations of values that only those cases have in the suite.
    """

    # Values by factor; a value is hashable.
    factors: Mapping[str, Sequence[Any]]
    # Return whether a row describes a valid case. For a partial row, which lacks some factors: whether an allowed row
    # contains it.
    is_allowed: Callable[[Mapping[str, Any]], bool]
    # Return the case of a complete row, on the CPU.
    row_to_case: Callable[[Mapping[str, Any]], Case]
    # Return the row of any case of the operator. A value that is not among the values of its factor counts for nothing.
    case_to_row: Callable[[Case], Mapping[str, Any]]
    # Number of factors whose values are combined, by suite: with 2, every pair of values is in some case.
    strengths: Mapping[Level, int] = field(default_factory=lambda: {"core": 2, "full": 3})


# Chapters of checks that need only the inputs and the outputs of an operator.
GENERAL_CHAPTERS = ("forward", "gradients", "layouts", "hygiene", "determinism", "compilation")


class Operator:
    """A mathematical contract: problems, oracle, yardsticks, and the checks that apply.

    A subclass defines the methods that raise NotImplementedError here, such as ``suite``, ``inputs``, ``reference`` and
    ``evaluate``. All other methods have defaults that are valid for any operator. A subclass of
    ``attnbench.operators.formula.FormulaOperator`` defines fewer methods.
    """

    name: str = ""
    # Class of the operator's problems. It parses and formats the part of a case id from the sizes to the seed.
    problem: type[Problem] = Problem
    # Name of the implementation that is the reference itself. The speed of all other implementations is compared with
    # the speed of the baseline.
    baseline: str = ""
    # Version of the operator's case lists. Results are comparable only if they were made with equal versions.
    list_version: str = "1"
    # Names of the outputs of a call, in order; the first is ``output``. A single output is returned without a tuple.
    outputs: tuple[str, ...] = ("output",)
    # Chapters of checks that apply: a chapter of attnbench by its name, a chapter of the operator's author as
    # ``package.module``.
    chapters: tuple[str, ...] = GENERAL_CHAPTERS
    # The ``MutantSet`` that tests the operator's checks, as ``package.module:ATTRIBUTE``; empty if there is none.
    mutants: str = ""
    # Policies on fully masked rows for which the operator has expected values, beside the default ones: pairs of
    # ``hidden_rows`` and ``hidden_row_gradients``.
    row_policies: frozenset[tuple[HiddenRows, HiddenRowGradients]] = frozenset({("nan", "exact")})
    # File with the mutation scores of the operator's case lists, as ``package:file.json``; ``conform --mutants --json``
    # writes such a file.
    mutation_scores: str = ""

    @property
    def case_transforms(self) -> CaseTransforms | None:
        """Metamorphic relations of the operator; None if there are none: checks that need them then do not apply."""
        return None

    @property
    def covering(self) -> Covering | None:
        """The covering array behind the suites; None if there is none: no combinations are then covered or counted."""
        return None

    def suite(self, level: Level) -> Sequence[Case]:
        """Return the cases of a suite, on the CPU; each suite of ``NESTED`` contains all cases of the previous one."""
        raise NotImplementedError(f"{type(self).__name__} does not define suite(level)")

    def pool(self, level: Level) -> Sequence[Case]:
        """Return the cases, on the CPU, from which a suite is supplemented for an implementation that refuses cases.

        The order is that of the cost, the cheapest case first. The default returns the cases of the next larger suite.
        """
        larger = NESTED[NESTED.index(level) + 1 : NESTED.index("slow")] if level in NESTED else ()
        return self.suite(larger[0]) if larger else ()

    def profile(self, lengths: Sequence[int]) -> Sequence[Case]:  # noqa: ARG002
        """Return the cases of the suite ``perf``, one per length and pass; no cases if the operator is not timed."""
        return ()

    def shape_cases(self, shape: Shape) -> Sequence[Case]:
        """Return the cases of the suite ``perf`` with this shape, one per pass.

        Raises: ValueError for a size or a mask that the operator does not have.
        """
        raise ValueError(f"the operator {self.name} has no sizes that can be chosen, got {shape}")

    def draw_case(self, draw: Any) -> Case:
        """Return a case on the CPU, drawn by Hypothesis' ``draw``; failing cases shrink towards small and plain cases.

        The default draws from the cases of the suite ``full`` that are not compiled.
        """
        from hypothesis import strategies

        return draw(strategies.sampled_from([case for case in self.suite("full") if case.compiler is None]))  # type: ignore[no-any-return]

    def missing(self, case: Case) -> str | None:  # noqa: ARG002
        """Return what this machine lacks to generate the case's inputs, with the remedy; None if it lacks nothing."""
        return None

    def inputs(self, case: Case) -> Inputs:
        """Return the seeded inputs of the case, on the CPU, rounded to the case's dtype."""
        raise NotImplementedError(f"{type(self).__name__} does not define inputs(case)")

    def reference(self, case: Case, inputs: Inputs) -> Any:
        """Return the reference module with these inputs' parameters, in the case's dtype, device and mode."""
        raise NotImplementedError(f"{type(self).__name__} does not define reference(case, inputs)")

    def initial_parameters(self, case: Case, inputs: Inputs) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Return the parameters as the reference's constructor initialises them, by name; None if it initialises none.

        They have the dtype and the device of the parameters of ``inputs``, and are the same in every call.
        """
        return None

    def evaluate(
        self, case: Case, inputs: Inputs, *, noise: Any = None, keep: Any = None, fault: Any = None
    ) -> dict[str, Any]:
        """Return outputs and gradients, keyed by name, computed from the formula in the dtype of the inputs.

        The oracle calls this method with inputs in float64. ``noise`` is applied after every step of the formula.
        ``keep`` is the dropout mask; None means no dropout. ``fault`` is the mistake to make, the ``fault`` of a
        ``FaultModel``; None means the correct formula.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define evaluate(case, inputs)")

    def fault_models(self, case: Case, quantities: Collection[str]) -> Sequence[FaultModel]:  # noqa: ARG002
        """Return the known mistakes that can change these quantities of the case."""
        return ()

    def axes(self, case: Case, quantity: str) -> Sequence[Axis]:  # noqa: ARG002
        """Return the axes of a quantity, for messages; without axes, messages give the index of an element."""
        return ()

    def noise(self, roundoff: float, seed: int) -> Any:
        """Return seeded relative noise of size ``roundoff``, with which ``evaluate`` models rounding."""
        raise NotImplementedError(f"{type(self).__name__} does not define noise(roundoff, seed)")

    def scale_logits(self, case: Case, inputs: Inputs, factor: float) -> Inputs | None:  # noqa: ARG002
        """Return inputs with which the logits are ``factor`` times as large, and nothing else changes.

        None means that there are no such inputs. Checks then estimate the amplitude of a quantity, but not the softmax
        scale.
        """
        return None

    def yardsticks(self, case: Case, inputs: Inputs) -> Iterator[dict[str, Any]]:
        """Yield, for each path of the reference, the quantities of ``evaluate`` that this path computes.

        A path computes in the case's dtype. By default the formula is the only path.
        """
        yield self.evaluate(case, inputs)

    def hidden_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:  # noqa: ARG002
        """Return a boolean mask for each output, keyed by output name: true in fully masked rows.

        Each mask is broadcastable to its output. By default no row counts as fully masked.
        """
        return {}

    def declare_hidden_rows(self, choices: Choices, fault: Any = None) -> Any:
        """Return the ``fault`` with which ``evaluate`` computes fully masked rows as ``choices`` says.

        ``fault`` is a further mistake to make, as for ``evaluate``, or None. An operator needs this
        method if its ``row_policies`` have more than the default.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define declare_hidden_rows(choices)")

    def padded_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:  # noqa: ARG002
        """Return a boolean mask for each output, keyed by output name: true in the rows of padded queries.

        Each mask is broadcastable to its output. By default no query counts as padded. The masks
        are used only for implementations whose policy ``padded_queries`` is "own".
        """
        return {}

    def visible(self, case: Case, inputs: Inputs) -> Any:
        """Return which keys each query may attend to: boolean (batch, heads, queries, keys)."""
        raise NotImplementedError(f"{type(self).__name__} does not define visible(case, inputs)")

    def length(self, case: Case) -> int:
        """Return the number of terms of the longest sum; accumulated rounding depends on this number."""
        return int(case.problem.columns)

    def work(self, case: Case) -> Work:
        """Compute the work of the case by a closed formula; the default counts query-key pairs, and no operations."""
        return Work(flop=0, pairs=case.problem.pairs)


def reference_arguments(reference: Any) -> dict[str, Any]:
    """Return the constructor arguments of a ``torch.nn.MultiheadAttention``, read from the instance."""
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


def find_accepted_keywords(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the names of the keywords that a function accepts, or None if it accepts any keyword."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
