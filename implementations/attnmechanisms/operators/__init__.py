"""The elementary mechanisms as operators: six instances of one class. Importing this module does not import torch."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.cases import Case, Level
from attnbench.interface import GENERAL_CHAPTERS, Axis, Inputs
from attnbench.operators.formula import FormulaOperator, Rounded
from attnmechanisms.operators import suites
from attnmechanisms.operators.problem import (
    BlockProblem,
    MaskedProblem,
    MechanismProblem,
    PoolingProblem,
    ProjectedProblem,
)

if TYPE_CHECKING:
    from attnbench.oracle.inputs import Draw

__all__ = [
    "ADDITIVE_POOLING",
    "DOT_PRODUCT_POOLING",
    "MECHANISMS",
    "RAW_SELF_ATTENTION",
    "RESIDUAL_BLOCK",
    "SCALED_SELF_ATTENTION",
    "SINGLE_HEAD",
    "Mechanism",
]


class Mechanism(FormulaOperator):
    """The operator of one mechanism: attention over one tensor of tokens. Its methods import torch when called.

    A call takes ``tokens`` (batch, length, width). If the case has masks, the call also takes ``key_padding_mask``
    (batch, length) and ``attn_mask`` (length, length), which are true where a key is hidden. A call returns output and
    attention weights.
    """

    problem: type[MechanismProblem]
    list_version = suites.VERSION
    outputs = ("output", "weights")
    chapters = (*GENERAL_CHAPTERS, "attnmechanisms.checks.mechanisms")
    mutation_scores = "attnmechanisms:mutation_scores.json"

    def __init__(self, name: str, problem: type[MechanismProblem]) -> None:
        self.name = name
        self.problem = problem
        self.mutants = f"attnmechanisms.mutants:{name.upper()}"
        # The baseline is the implementation by matrix products. Its name is the name of the
        # mechanism. The implementation by loops has the same name with ``_loop`` appended.
        self.baseline = name

    def suite(self, level: Level) -> Sequence[Case]:
        """Return the cases of a suite, such as ``core``."""
        return suites.make_suite(self.name, self.problem, level)

    def numbers(self, problem: MechanismProblem, draw: "Draw") -> Inputs:
        """Draw the tokens, parameters and masks of a problem."""
        from attnmechanisms.operators.numbers import draw_inputs

        return draw_inputs(self.name, problem, draw)

    def formula(self, problem: MechanismProblem, given: Mapping[str, Any], rounded: Rounded) -> Any:  # noqa: ARG002
        """Compute output and attention weights by the mechanism's formula."""
        from attnmechanisms.operators.formulas import FORMULAS

        return FORMULAS[self.name](given, rounded)

    def paths(self) -> Sequence[Callable[..., Any]]:
        """Return the mechanism's second formula, which rounds differently, or an empty sequence if there is none."""
        from attnmechanisms.operators.formulas import PATHS

        path = PATHS.get(self.name)
        return (lambda problem, given, rounded: path(given, rounded),) if path else ()  # noqa: ARG005

    def axes(self, case: Case, quantity: str) -> Sequence[Axis]:
        """Name the dimensions of a quantity: batch, token and feature. For attention weights: batch, query, key."""
        problem: MechanismProblem = case.problem
        name = quantity.removeprefix("grad.")
        if name not in ("output", "weights", "tokens"):
            return ()
        out_width = problem.out_width if isinstance(problem, ProjectedProblem) else problem.width
        last = {"weights": ("key", problem.length), "output": ("feature", out_width)}
        named = [("batch", problem.sequences)]
        if name == "tokens" or not isinstance(problem, PoolingProblem):
            named.append(("query" if name == "weights" else "token", problem.length))
        named.append(last.get(name, ("feature", problem.width)))
        return [Axis(dimension=i, word=word, positions=range(extent)) for i, (word, extent) in enumerate(named)]

    def hidden_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        """Return which rows of output and attention weights are fully masked (their query sees no token)."""
        rows = ~self.visible(case, inputs)[:, 0].any(dim=-1, keepdim=True)  # (batch, queries, 1)
        rows = rows[:, 0] if isinstance(case.problem, PoolingProblem) else rows
        return {"output": rows, "weights": rows} if rows.any() else {}

    def visible(self, case: Case, inputs: Inputs) -> Any:
        """Return which tokens each query may see: boolean (batch, 1, queries, keys)."""
        import torch

        from attnmechanisms.operators.formulas import combine_masks

        problem: MechanismProblem = case.problem
        hidden = combine_masks(inputs.tensors)
        shape = (problem.sequences, problem.queries, problem.length)
        keep = inputs.tensors["tokens"].new_ones(shape, dtype=torch.bool) if hidden is None else ~hidden.expand(shape)
        return keep[:, None]


RAW_SELF_ATTENTION = Mechanism("raw_self_attention", MechanismProblem)
SCALED_SELF_ATTENTION = Mechanism("scaled_self_attention", ProjectedProblem)
ADDITIVE_POOLING = Mechanism("additive_pooling", PoolingProblem)
DOT_PRODUCT_POOLING = Mechanism("dot_product_pooling", PoolingProblem)
SINGLE_HEAD = Mechanism("single_head", MaskedProblem)
RESIDUAL_BLOCK = Mechanism("residual_block", BlockProblem)
# All operators of this package. The key of an operator is its name.
MECHANISMS = {
    one.name: one
    for one in (
        RAW_SELF_ATTENTION, SCALED_SELF_ATTENTION, ADDITIVE_POOLING, DOT_PRODUCT_POOLING, SINGLE_HEAD, RESIDUAL_BLOCK,
    )
}  # fmt: skip
