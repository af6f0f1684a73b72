"""Attention on tensors that are already split into heads, as in kernel papers.

Importing this module imports no torch.
"""

from collections.abc import Collection, Sequence
from typing import Any

from attnbench.cases import Case, Shape
from attnbench.interface import FaultModel, Inputs
from attnbench.operators.attention_core import suites
from attnbench.operators.attention_core.problem import AttentionCoreProblem
from attnbench.operators.case_lists import ListedOperator
from attnbench.operators.imported import imported

__all__ = ["OPERATOR", "AttentionCore", "AttentionCoreProblem"]


class AttentionCore(ListedOperator):
    """The operator ``attention_core``. Modules that need torch are imported when they are used."""

    name = "attention_core"
    problem = AttentionCoreProblem
    baseline = "core_sdpa"
    lists = suites.LISTS
    list_version = lists.version
    mutants = "attnbench.mutants.attention_core:MUTANTS"
    mutation_scores = "attnbench.mutants:mutation_scores.json"
    chapters = (
        "forward", "exact", "gradients", "grouping", "positions", "shapes", "layouts", "numerics", "invariants",
        "hygiene", "sequences", "threads", "transforms", "compilation", "determinism",
    )  # fmt: skip
    case_transforms = imported("attnbench.operators.attention_core.case_transforms")
    covering = imported("attnbench.operators.attention_core.generate_cases:COVERING")
    draw_case = imported("attnbench.operators.attention_core.strategies:draw_case")
    inputs = imported("attnbench.operators.attention_core.inputs:draw_inputs")
    axes = imported("attnbench.operators.attention_core.axes:describe_axes")
    yardsticks = imported("attnbench.operators.attention_core.reference:run_yardsticks")
    hidden_rows = imported("attnbench.operators.attention_core.oracle:find_hidden_rows")
    work = imported("attnbench.operators.attention_core.work:count_work")

    def profile(self, lengths: Sequence[int]) -> Sequence[Case]:
        """Return two cases to time for each length: one with a forward pass only, and one with forward and backward."""
        return suites.make_profile_cases(lengths)

    def shape_cases(self, shape: Shape) -> Sequence[Case]:
        """Return the two cases of this shape; a causal mask is aligned at the last query and the last key.

        Raises: ValueError for a size or a mask that the operator does not have.
        """
        return suites.make_shape_cases(shape)

    def reference(self, case: Case, inputs: Inputs) -> Any:  # noqa: ARG002
        """Return the reference, a module without parameters that computes attention in a few lines of torch."""
        from attnbench.operators.attention_core.reference import CoreReference

        return CoreReference().train(case.training)

    def evaluate(
        self, case: Case, inputs: Inputs, *, noise: Any = None, keep: Any = None, fault: Any = None
    ) -> dict[str, Any]:
        """Return the oracle's outputs and gradients, keyed by name.

        ``keep`` is a dropout mask; it must be None, because the operator has no dropout.
        """
        from attnbench.operators.attention_core.oracle import CORRECT_STEPS, evaluate

        if keep is not None:
            raise ValueError("keep must be None: attention_core has no dropout, got a dropout mask")
        return evaluate(case, inputs, noise=noise, steps=fault or CORRECT_STEPS)

    def fault_models(self, case: Case, quantities: Collection[str]) -> Sequence[FaultModel]:  # noqa: ARG002
        """Return the fault models of the case."""
        from attnbench.operators.attention_core.fault_models import list_fault_models

        return list_fault_models(case)

    def scale_logits(self, case: Case, inputs: Inputs, factor: float) -> Inputs:  # noqa: ARG002
        """Return inputs with which the logits are ``factor`` times as large, as with a larger softmax scale."""
        from attnbench.operators.attention_core.inputs import scale_logits

        return scale_logits(inputs, factor)

    def visible(self, case: Case, inputs: Inputs) -> Any:
        """Return a boolean mask that is true where a query of a head may see a key."""
        from attnbench.operators.attention_core.positions import find_visible

        return find_visible(case.problem, inputs)


OPERATOR = AttentionCore()
