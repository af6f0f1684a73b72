"""The elementary mechanisms as operators: six contracts of one class. Importing this imports no torch."""

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
    """Attention over one tensor of tokens, with a formula of its own. What needs torch is imported when it is called.

    A call takes ``tokens`` (batch, length, width) and, where the case has them, ``key_padding_mask`` (batch, length)
    and ``attn_mask`` (length, length), true hides; it returns output and weights.
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
        # The matrix products have the mechanism's own name, the loop that of the mechanism and ``_loop``.
        self.baseline = name

    def suite(self, level: Level) -> Sequence[Case]:
        """Cases of a level."""
        return suites.suite(self.name, self.problem, level)

    def numbers(self, problem: MechanismProblem, draw: "Draw") -> Inputs:
        """Tokens, parameters and masks."""
        from attnmechanisms.operators.numbers import numbers

        return numbers(self.name, problem, draw)

    def formula(self, problem: MechanismProblem, given: Mapping[str, Any], rounded: Rounded) -> Any:  # noqa: ARG002
        """Output and weights."""
        from attnmechanisms.operators.formulas import FORMULAS

        return FORMULAS[self.name](given, rounded)

    def paths(self) -> Sequence[Callable[..., Any]]:
        """By functions of torch that people take, where they add up otherwise."""
        from attnmechanisms.operators.formulas import PATHS

        path = PATHS.get(self.name)
        return (lambda problem, given, rounded: path(given, rounded),) if path else ()  # noqa: ARG005

    def axes(self, case: Case, quantity: str) -> Sequence[Axis]:
        """Batch, token and feature; of weights, query and key."""
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
        """Rows from which every token is hidden, for output and weights."""
        rows = ~self.visible(case, inputs)[:, 0].any(dim=-1, keepdim=True)  # (batch, queries, 1)
        rows = rows[:, 0] if isinstance(case.problem, PoolingProblem) else rows
        return {"output": rows, "weights": rows} if rows.any() else {}

    def visible(self, case: Case, inputs: Inputs) -> Any:
        """Which tokens each query may see: boolean (batch, 1, queries, keys)."""
        import torch

        from attnmechanisms.operators.formulas import hidden

        problem: MechanismProblem = case.problem
        hide = hidden(inputs.tensors)
        shape = (problem.sequences, problem.queries, problem.length)
        keep = torch.ones(shape, dtype=torch.bool) if hide is None else ~hide.expand(shape)
        return keep[:, None]


RAW_SELF_ATTENTION = Mechanism("raw_self_attention", MechanismProblem)
SCALED_SELF_ATTENTION = Mechanism("scaled_self_attention", ProjectedProblem)
ADDITIVE_POOLING = Mechanism("additive_pooling", PoolingProblem)
DOT_PRODUCT_POOLING = Mechanism("dot_product_pooling", PoolingProblem)
SINGLE_HEAD = Mechanism("single_head", MaskedProblem)
RESIDUAL_BLOCK = Mechanism("residual_block", BlockProblem)
# By name.
MECHANISMS = {
    one.name: one
    for one in (
        RAW_SELF_ATTENTION, SCALED_SELF_ATTENTION, ADDITIVE_POOLING, DOT_PRODUCT_POOLING, SINGLE_HEAD, RESIDUAL_BLOCK,
    )
}  # fmt: skip
