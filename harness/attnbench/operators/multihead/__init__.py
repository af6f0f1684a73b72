"""Multi-head attention; the reference is ``torch.nn.MultiheadAttention``. Importing this module imports no torch."""

from collections.abc import Sequence
from typing import Any

from attnbench.cases import Case, Shape
from attnbench.interface import Inputs
from attnbench.operators.case_lists import ListedOperator
from attnbench.operators.imported import imported
from attnbench.operators.multihead import suites
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["OPERATOR", "Multihead", "MultiheadProblem"]


class Multihead(ListedOperator):
    """The operator ``multihead``. Modules that need torch are imported when they are used."""

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
        "paths", "hygiene", "protocol", "calls", "sequences", "threads", "transforms", "compilation", "autocast",
        "refusals",
        "determinism", "size",
    )  # fmt: skip
    case_transforms = imported("attnbench.operators.multihead.case_transforms")
    covering = imported("attnbench.operators.multihead.generate_cases:COVERING")
    draw_case = imported("attnbench.operators.multihead.strategies:draw_case")
    missing = imported("attnbench.operators.multihead.inputs:describe_missing")
    inputs = imported("attnbench.operators.multihead.inputs:draw_inputs")
    reference = imported("attnbench.operators.multihead.reference:build_reference")
    initial_parameters = imported("attnbench.operators.multihead.reference:initialise_parameters")
    fault_models = imported("attnbench.operators.multihead.fault_models:list_fault_models")
    axes = imported("attnbench.operators.multihead.axes:describe_axes")
    scale_logits = imported("attnbench.operators.multihead.inputs:scale_logits")
    yardsticks = imported("attnbench.operators.multihead.reference:run_yardsticks")
    hidden_rows = imported("attnbench.operators.multihead.rows:find_hidden_rows")
    declare_hidden_rows = imported("attnbench.operators.multihead.rows:declare_hidden_rows")
    padded_rows = imported("attnbench.operators.multihead.rows:find_padded_rows")
    visible = imported("attnbench.operators.multihead.rows:find_visible")
    work = imported("attnbench.operators.multihead.work:count_work")

    def profile(self, lengths: Sequence[int]) -> Sequence[Case]:
        """Return two cases to time for each length: one with a forward pass only, and one with forward and backward."""
        return suites.make_profile_cases(lengths)

    def shape_cases(self, shape: Shape) -> Sequence[Case]:
        """Return the two cases of this shape; with as many queries as keys, they are self-attention.

        Raises: ValueError for a size or a mask that the reference does not have.
        """
        return suites.make_shape_cases(shape)

    def evaluate(
        self, case: Case, inputs: Inputs, *, noise: Any = None, keep: Any = None, fault: Any = None
    ) -> dict[str, Any]:
        """Return the oracle's outputs and gradients, keyed by name."""
        from attnbench.operators.multihead.oracle import CORRECT_STEPS, evaluate

        return evaluate(case, inputs, noise=noise, keep=keep, steps=fault or CORRECT_STEPS)


OPERATOR = Multihead()
