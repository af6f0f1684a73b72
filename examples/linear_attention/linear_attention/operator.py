"""The operator of linear attention: its problems and suites. Importing this module does not import torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from attnbench.cases import Case, Level, Problem, size
from attnbench.interface import GENERAL_CHAPTERS, Inputs
from attnbench.operators.formula import FormulaOperator, Rounded

if TYPE_CHECKING:
    from attnbench.oracle.inputs import Draw

__all__ = ["OPERATOR", "SMALL", "LinearProblem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearProblem(Problem):
    """Sizes of a problem of linear attention.

    Example of a case id: ``linear_attention/B2.L5.S7.D8/-/mask=none/regime=plain/seed=0/float32/cpu/eval``.
    """

    sequences: int = size("B")
    queries: int = size("L")
    keys: int = size("S")
    width: int = size("D")


SMALL = LinearProblem(sequences=2, queries=5, keys=7, width=8)


class LinearAttention(FormulaOperator):
    """Attention whose weights are products of features."""

    name = "linear_attention"
    problem = LinearProblem
    baseline = "linear_from_the_left"
    # The general chapters of attnbench, and the module with this operator's own check.
    chapters = (*GENERAL_CHAPTERS, "linear_attention.averaging")
    mutants = "linear_attention.mutants:MUTANTS"
    mutation_scores = "linear_attention:mutation_scores.json"

    def suite(self, level: Level) -> Sequence[Case]:
        """Return cases in four dtypes and two modes, with one problem in ``quick`` and three in the larger suites."""
        sizes = [SMALL] if level == "quick" else [SMALL, replace(SMALL, queries=1, keys=33), replace(SMALL, width=1)]
        dtypes, modes = ("float32", "float64", "bfloat16", "float16"), ("eval", "inference")
        return [
            Case(operator=self.name, problem=problem, dtype=dtype, mode=mode)
            for problem, dtype, mode in product(sizes, dtypes, modes)
        ]

    def profile(self, lengths: Sequence[int]) -> Sequence[Case]:
        """Return cases with as many queries as keys, each without and with a backward pass."""
        problems = [LinearProblem(sequences=1, queries=n, keys=n, width=64) for n in lengths]
        return [
            Case(operator=self.name, problem=problem, mode=mode)
            for problem, mode in product(problems, ("inference", "train"))
        ]

    def numbers(self, problem: LinearProblem, draw: "Draw") -> Inputs:
        """Draw queries, keys and values."""
        lengths = {"query": problem.queries, "key": problem.keys, "value": problem.keys}
        tensors = {name: draw.normal(name, problem.sequences, n, problem.width) for name, n in lengths.items()}
        return Inputs(parameters={}, tensors=tensors)

    def formula(self, problem: LinearProblem, given: Mapping[str, Any], rounded: Rounded) -> Any:
        """Compute the formula in the package's docstring; ``rounded`` is applied to the result of every step."""
        from torch.nn.functional import elu

        q, k = (rounded(elu(given[name]) + 1) for name in ("query", "key"))
        weights = rounded(q @ k.mT, problem.width)  # (batch, queries, keys)
        shares = rounded(weights / rounded(weights.sum(dim=-1, keepdim=True)))
        return rounded(shares @ given["value"], problem.keys)


OPERATOR = LinearAttention()
