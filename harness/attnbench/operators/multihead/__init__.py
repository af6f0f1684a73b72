"""Multi-head attention; the reference is ``torch.nn.MultiheadAttention``. Importing this module imports no torch."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attnbench.cases import Case, Shape
from attnbench.interface import Axis, CaseTransforms, Choices, Covering, FaultModel, Inputs, Work
from attnbench.operators.case_lists import ListedOperator
from attnbench.operators.multihead import suites
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["OPERATOR", "Multihead", "MultiheadProblem"]


class Multihead(ListedOperator):
    """The operator ``multihead``. Modules that need torch are imported by the methods that use them."""

    name = "multihead"
    problem = MultiheadProblem
    baseline = "torch_mha"
    outputs = ("output", "weights")
    lists = suites.LISTS
    list_version = lists.version
    row_policies = frozenset(
        {("nan", "exact"), ("mean", "exact"), ("mean", "softmax"), ("zero", "nan"), ("nan", "nan"), ("mean", "nan")}
    )
    mutants = "attnbench.mutants.multihead:MUTANTS"
    mutation_scores = "attnbench.mutants:mutation_scores.json"
    chapters = (
        "forward", "exact", "weights", "gradients", "masks", "shapes", "layouts", "numerics", "invariants", "dropout",
        "paths", "hygiene", "protocol", "calls", "compilation", "autocast", "refusals", "determinism", "size",
    )  # fmt: skip

    @property
    def case_transforms(self) -> CaseTransforms:
        """Case transforms: select sequences, queries or keys, add keys, or reorder heads."""
        from attnbench.operators.multihead import case_transforms

        return case_transforms

    @property
    def covering(self) -> Covering:
        """The covering array of the suites ``core`` (pairs) and ``full`` (triples)."""
        from attnbench.operators.multihead.generate_cases import COVERING

        return COVERING

    def profile(self, lengths: Sequence[int]) -> Sequence[Case]:
        """Return two cases to time for each length: one with a forward pass only, and one with forward and backward."""
        return suites.make_profile_cases(lengths)

    def shape_cases(self, shape: Shape) -> Sequence[Case]:
        """Return the two cases of this shape; with as many queries as keys, they are self-attention.

        Raises: ValueError for a size or a mask that the reference does not have.
        """
        return suites.make_shape_cases(shape)

    def draw_case(self, draw: Any) -> Case:
        """Draw a case of any kind, except compiled cases."""
        from attnbench.operators.multihead.strategies import draw_case

        return draw_case(draw)

    def missing(self, case: Case) -> str | None:
        """Return what this machine lacks to run the case and how to get it, or None if it lacks nothing."""
        from attnbench.operators.multihead.inputs import describe_missing

        return describe_missing(case)

    def inputs(self, case: Case) -> Inputs:
        """Draw the seeded inputs of the case."""
        from attnbench.operators.multihead.inputs import draw_inputs

        return draw_inputs(case)

    def reference(self, case: Case, inputs: Inputs) -> Any:
        """Return the reference, a ``torch.nn.MultiheadAttention`` with the parameters of the inputs."""
        from attnbench.operators.multihead.reference import build_reference

        return build_reference(case, inputs)

    def initial_parameters(self, case: Case, inputs: Inputs) -> Mapping[str, Any]:
        """Return the parameters as the reference's constructor initialises them, with the seed of the case."""
        from attnbench.operators.multihead.reference import initialise_parameters

        return initialise_parameters(case, inputs)

    def evaluate(
        self, case: Case, inputs: Inputs, *, noise: Any = None, keep: Any = None, fault: Any = None
    ) -> dict[str, Any]:
        """Return the oracle's outputs and gradients, keyed by name."""
        from attnbench.operators.multihead.oracle import CORRECT_STEPS, evaluate

        return evaluate(case, inputs, noise=noise, keep=keep, steps=fault or CORRECT_STEPS)

    def fault_models(self, case: Case, quantities: Collection[str]) -> Sequence[FaultModel]:
        """Return the fault models that may change these quantities."""
        from attnbench.operators.multihead.fault_models import list_fault_models

        return list_fault_models(case, quantities)

    def axes(self, case: Case, quantity: str) -> Sequence[Axis]:
        """Return the axes of a quantity: batch, head, query, key and so on."""
        from attnbench.operators.multihead.axes import describe_axes

        return describe_axes(case, quantity)

    def scale_logits(self, case: Case, inputs: Inputs, factor: float) -> Inputs:
        """Return inputs with which the logits are ``factor`` times as large, as with a larger softmax scale."""
        from attnbench.operators.multihead.inputs import scale_logits

        return scale_logits(case, inputs, factor)

    def yardsticks(self, case: Case, inputs: Inputs) -> Iterator[dict[str, Any]]:
        """Yield the quantities of both paths of the reference, in the case's dtype.

        One path returns attention weights, and the other path returns none.
        """
        from attnbench.operators.multihead.reference import run_yardsticks

        return run_yardsticks(case, inputs)

    def hidden_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        """Return masks of the hidden rows (fully masked rows) of output and weights."""
        from attnbench.operators.multihead.rows import find_hidden_rows

        return find_hidden_rows(case, inputs)

    def declare_hidden_rows(self, choices: Choices, fault: Any = None) -> Any:
        """Return the steps of the formula, with fully masked rows as ``choices`` declare them."""
        from attnbench.operators.multihead.rows import declare_hidden_rows

        return declare_hidden_rows(choices, fault)

    def padded_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        """Return masks of the rows of padded queries in output and weights."""
        from attnbench.operators.multihead.rows import find_padded_rows

        return find_padded_rows(case, inputs)

    def visible(self, case: Case, inputs: Inputs) -> Any:
        """Return a boolean mask that is true where a query of a head may see a key."""
        from attnbench.operators.multihead.rows import find_visible

        return find_visible(case, inputs)

    def length(self, case: Case) -> int:
        """Return the number of terms in the softmax and the weighted sum: the number of keys, including extra keys."""
        problem: MultiheadProblem = case.problem
        return problem.columns

    def work(self, case: Case) -> Work:
        """Count the least floating-point operations and bytes of a case, from the number of visible query-key pairs."""
        from attnbench.operators.multihead.work import count_work

        return count_work(case)


OPERATOR = Multihead()
