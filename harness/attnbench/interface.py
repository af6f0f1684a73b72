"""The base classes of implementations and operators, and the types of what they declare. Torch is not imported here."""

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

# Attention of a fully masked row, a query from which every key is hidden: zero or NaN.
HiddenRows = Literal["zero", "nan"]
# Alignment of the causal mask that the flag alone stands for, where queries and keys differ in number.
Alignment = Literal["top_left", "bottom_right"]
# Whether NaN in a hidden key or value reaches the output: 0 · NaN is NaN unless the kernel never reads hidden keys.
HiddenNan = Literal["propagates", "blocked"]
# Padded queries are queries whose token key_padding_mask hides. Their rows are computed like all others ("answered"),
# or unspecified ("own").
PaddedQueries = Literal["answered", "own"]
# From finest to coarsest. TF32 has as many mantissa bits as float16.
Precision = Literal["float64", "float32", "tf32", "float16", "bfloat16"]
# Takes the operator's arguments (multihead: those of the reference's forward) and returns its outputs.
Call = Callable[..., Any]


class Refusal(Exception):
    """Raised by an implementation, with the reason, for a case that it does not support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The choices of an implementation where the contract allows several, and its deviations by design."""

    hidden_rows: HiddenRows = "zero"
    # Alignment of the function's causal flag. Where the contract's differs, ``from_kernel`` passes a mask instead.
    causal: Alignment = "top_left"
    hidden_nan: HiddenNan = "propagates"
    # A token that key_padding_mask hides is also a query where query and key are the same tensor. With "own", its row
    # of the output is not compared with anything, and the loss whose gradients are compared leaves the row out.
    padded_queries: PaddedQueries = "answered"
    # It supports second derivatives.
    twice_differentiable: bool = False
    # Repeated calls return bitwise equal results.
    deterministic: bool = True
    # It has no backward: cases in a mode with gradients are refused.
    forward_only: bool = False
    # A call without gradients can be captured in a CUDA graph and replayed: it reads no tensor values on the host.
    capturable: bool = False
    # Precision of its arithmetic where that is coarser than the case's dtype; the error budget follows it.
    computes_in: Precision | None = None

    def precision(self, dtype: Dtype) -> Precision:
        """Return the precision of results in a dtype: the coarser of the dtype and ``computes_in``."""
        return max(self.computes_in or dtype, dtype, key=get_args(Precision).index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Parameters, arguments and cotangents of a case, rounded to the case's dtype."""

    # Parameters of the reference, by name.
    parameters: dict[str, "torch.Tensor"]
    # Tensor arguments of the call, by name. A tensor under two names is passed as one object.
    tensors: dict[str, "torch.Tensor"]
    # Other arguments of the call, by name.
    options: dict[str, Any] = field(default_factory=dict)
    # Cotangents by output name: the gradients that are compared are those of sum(output · cotangent).
    cotangents: dict[str, "torch.Tensor"] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the call."""
        return {**self.tensors, **self.options}

    def map_tensors(self, change: Callable[["torch.Tensor"], "torch.Tensor"]) -> "Inputs":
        """Return inputs with ``change`` applied to every tensor, once to a tensor that has several names."""
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
    """The words for the positions along one dimension of a quantity, such as batch, head or query."""

    dimension: int
    word: str
    # The number or the name of each position.
    positions: Sequence[int | str] | Sequence[int]
    # Whether this axis groups the positions of another axis of the same dimension, as heads group features.
    belongs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The least work that a case needs, by closed form.

    Unit: floating-point operations (an addition and a multiplication are two) and bytes.
    """

    # 0: not counted.
    flop: int
    # Query-key pairs over batch and heads, hidden pairs included: the elements that a materializing oracle stores.
    pairs: int
    # Bytes that are read and written when every input and every output is moved once; None: not known.
    bytes: int | None = None


class Implementation:
    """An implementation of an operator. Derive from this class, or make an instance with ``from_kernel``."""

    name: str = ""
    operator: str = "multihead"
    # URL of the paper or the code.
    source: str = ""
    policies: Policies = Policies()
    # The first call of each kind compiles. A call is made before calls are timed, and quick runs include the
    # implementation only if it is named.
    compiles: bool = False

    def unsupported(self, case: Case) -> str | None:  # noqa: ARG002
        """Return the reason why this case is refused, or None."""
        return None

    def untimed(self, case: Case) -> str | None:  # noqa: ARG002
        """Return the reason why this case is checked but never timed, such as an interpreted kernel, or None."""
        return None

    def predicted_s(self, case: Case) -> float | None:  # noqa: ARG002
        """Return the expected time of one call in seconds, or None if unknown; the work limit uses it."""
        return None

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that must be set before the worker process starts."""
        return {}

    def build(self, reference: Any) -> Any:
        """Return a module with the reference's forward signature and the reference's weights."""
        raise NotImplementedError(f"{type(self).__name__} does not define build(reference)")

    def weights(self, parameters: Mapping[str, "torch.Tensor"]) -> Mapping[str, "torch.Tensor"]:
        """Return this implementation's parameters by name, computed differentiably from the reference's parameters."""
        return parameters

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Call:  # noqa: ARG002
        """Return the callable that is checked and timed. Setup that is not part of attention belongs here."""
        if self.compiles:
            module(**inputs.arguments())
        return module  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        """Wait for asynchronous work that ``torch.cuda.synchronize`` does not wait for."""


class CaseTransforms(Protocol):
    """Transformations of a case into a related case: the metamorphic relations of checks.

    The checks of invariants, shapes and layouts need them. An operator that has case transforms names its inputs
    ``query``, ``key`` and ``value``.
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
        """Return the case with the sequences, queries or keys of these indices, in any order and with repetitions."""

    def pad(self, case: Case, inputs: Inputs, count: int) -> tuple[Case, Inputs]:
        """Return the case with ``count`` more keys at the end, which a mask hides from every query."""

    def reorder_heads(self, case: Case, inputs: Inputs, order: Sequence[int]) -> Inputs:
        """Return inputs whose head group i is head group ``order[i]`` of the given inputs."""

    def reorder_outputs(
        self, case: Case, outputs: Mapping[str, "torch.Tensor"], order: Sequence[int]
    ) -> dict[str, "torch.Tensor"]:
        """Return the outputs that follow from ``outputs`` if the head groups are reordered by ``reorder_heads``."""

    def shared_by_sequences(self, case: Case, name: str) -> tuple[int, int] | None:
        """Return an axis of an input and the index along it whose slice can replace all others, or None."""


# Chapters of checks that need only the inputs and the outputs of an operator.
GENERAL_CHAPTERS = ("forward", "gradients", "layouts", "hygiene", "determinism", "compilation")


class Operator:
    """A mathematical contract: problems, oracle, yardsticks, and the checks that apply.

    A subclass defines the methods that raise NotImplementedError here, such as ``suite``, ``inputs``, ``reference`` and
    ``evaluate``. All other methods have defaults that are valid for any operator. A subclass of
    ``attnbench.operators.formula.FormulaOperator`` defines fewer methods.
    """

    name: str = ""
    # Type of its problems, which parses and formats the middle of a case id.
    problem: type[Problem] = Problem
    # Name of the implementation that is the reference itself, with whose speed all others are compared.
    baseline: str = ""
    # Version of its case lists; results are comparable only between equal versions.
    list_version: str = "1"
    # Names of the outputs of a call, in order; the first is ``output``. A single output is returned without a tuple.
    outputs: tuple[str, ...] = ("output",)
    # Chapters of checks that apply: attnbench's by name, the operator's own as ``package.module``.
    chapters: tuple[str, ...] = GENERAL_CHAPTERS
    # ``package.module:ATTRIBUTE`` of the ``MutantSet`` that tests its checks; empty: it has none.
    mutants: str = ""
    # ``package:file.json`` with the mutation scores of its case lists, as ``conform --mutants --json`` writes them.
    mutation_scores: str = ""

    @property
    def case_transforms(self) -> CaseTransforms | None:
        """Transformations of its cases; None: checks that need them do not apply."""
        return None

    def suite(self, level: Level) -> Sequence[Case]:
        """Return the cases of a level, on the CPU; a level contains the cases of the level before it."""
        raise NotImplementedError(f"{type(self).__name__} does not define suite(level)")

    def profile(self, lengths: Sequence[int]) -> Sequence[Case]:  # noqa: ARG002
        """Return the cases of the suite ``perf``, one per length and pass; empty: the operator is not timed."""
        return ()

    def draw_case(self, draw: Any) -> Case:
        """Return a case on the CPU, drawn by Hypothesis' ``draw``, that shrinks towards small and plain cases.

        By default a case of the level ``full`` that is not compiled.
        """
        from hypothesis import strategies

        return draw(strategies.sampled_from([case for case in self.suite("full") if case.compiler is None]))  # type: ignore[no-any-return]

    def missing(self, case: Case) -> str | None:  # noqa: ARG002
        """Return what this machine lacks to generate the inputs of the case, with the remedy, or None."""
        return None

    def inputs(self, case: Case) -> Inputs:
        """Return the seeded inputs of the case, on the CPU, rounded to its dtype."""
        raise NotImplementedError(f"{type(self).__name__} does not define inputs(case)")

    def reference(self, case: Case, inputs: Inputs) -> Any:
        """Return the reference module with these inputs' parameters, in the case's dtype, device and mode."""
        raise NotImplementedError(f"{type(self).__name__} does not define reference(case, inputs)")

    def evaluate(
        self, case: Case, inputs: Inputs, *, noise: Any = None, keep: Any = None, fault: Any = None
    ) -> dict[str, Any]:
        """Compute outputs and gradients by name from the formula, in the dtype of the inputs (the oracle: float64).

        ``noise`` is applied after every step of the formula. ``keep`` is the dropout mask, where one is given.
        ``fault`` is one of the values of ``fault_models``: the mistake that the formula reproduces.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define evaluate(case, inputs)")

    def fault_models(self, case: Case, quantities: Collection[str]) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the known mistakes that can change these quantities of the case, by the words that users read."""
        return {}

    def axes(self, case: Case, quantity: str) -> Sequence[Axis]:  # noqa: ARG002
        """Return the axes of a quantity for messages; without axes, messages give an element by its index."""
        return ()

    def noise(self, roundoff: float, seed: int) -> Any:
        """Return the seeded noise of one roundoff that ``evaluate`` applies as its model of rounding."""
        raise NotImplementedError(f"{type(self).__name__} does not define noise(roundoff, seed)")

    def scale_logits(self, case: Case, inputs: Inputs, factor: float) -> Inputs | None:  # noqa: ARG002
        """Return inputs that multiply the logits by ``factor`` and change nothing else, or None.

        None: there are no such inputs. Checks then estimate the amplitude of a quantity, but no softmax scale.
        """
        return None

    def yardsticks(self, case: Case, inputs: Inputs) -> Iterator[dict[str, Any]]:
        """Yield the quantities of ``evaluate`` from each path of the reference, in the case's dtype.

        By default the formula is the only path.
        """
        yield self.evaluate(case, inputs)

    def hidden_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:  # noqa: ARG002
        """Return a boolean mask by output name, broadcastable to the output: true in fully masked rows."""
        return {}

    def padded_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:  # noqa: ARG002
        """Return a boolean mask by output name, broadcastable to the output: true in the rows of padded queries.

        It applies to implementations whose policy ``padded_queries`` is "own".
        """
        return {}

    def visible(self, case: Case, inputs: Inputs) -> Any:
        """Return which keys each query may attend to: boolean (batch, heads, queries, keys)."""
        raise NotImplementedError(f"{type(self).__name__} does not define visible(case, inputs)")

    def script(self, case: Case, load: str) -> str:  # noqa: ARG002
        """Return the case as a standalone program, which does not import the harness.

        ``load`` is source code that binds the name ``implementation``.

        Raises: ValueError, with the reason, where there is no such program.
        """
        raise ValueError(f"operator {self.name!r} has no standalone scripts: leave out --script")

    def length(self, case: Case) -> int:
        """Return the number of terms of the longest sum, on which accumulated rounding depends."""
        return int(case.problem.columns)

    def work(self, case: Case) -> Work:
        """Return the work of the case by closed form; by default its query-key pairs without operation counts."""
        problem = case.problem
        return Work(flop=0, pairs=problem.sequences * problem.num_heads * problem.queries * problem.columns)


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
