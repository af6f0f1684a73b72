"""An operator of one's own in one file: attention without a softmax, and two implementations of it.

    output_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j)        with φ(x) = elu(x) + 1

Summed from the left it takes all pairs of queries and keys; summed from the right, none.

Source: Katharopoulos et al., Transformers are RNNs, 2020, https://arxiv.org/abs/2006.16236, section 3.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from torch import Tensor
from torch.nn.functional import elu

from attnbench.cases import Case, Level, Problem, size
from attnbench.interface import Inputs
from attnbench.kernel import from_call
from attnbench.operators.formula import FormulaOperator, Rounded
from attnbench.oracle.inputs import Draw

__all__ = ["FROM_THE_LEFT", "FROM_THE_RIGHT", "OPERATOR", "LinearProblem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearProblem(Problem):
    """Sizes: a case id reads ``linear_attention/B2.L5.S7.D8/-/mask=none/regime=plain/seed=0/float32/cpu/eval``."""

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

    def suite(self, level: Level) -> Sequence[Case]:
        """Every dtype in every mode, and beyond the level quick other sizes."""
        sizes = [SMALL] if level == "quick" else [SMALL, replace(SMALL, queries=1, keys=33), replace(SMALL, width=1)]
        dtypes, modes = ("float32", "float64", "bfloat16", "float16"), ("eval", "inference")
        return [
            Case(operator=self.name, problem=problem, dtype=dtype, mode=mode)
            for problem, dtype, mode in product(sizes, dtypes, modes)
        ]

    def profile(self, lengths: Sequence[int]) -> Sequence[Case]:
        """As many queries as keys, forward and with backward."""
        problems = [LinearProblem(sequences=1, queries=n, keys=n, width=64) for n in lengths]
        return [
            Case(operator=self.name, problem=problem, mode=mode)
            for problem, mode in product(problems, ("inference", "train"))
        ]

    def numbers(self, problem: LinearProblem, draw: Draw) -> Inputs:
        """Queries, keys and values."""
        lengths = {"query": problem.queries, "key": problem.keys, "value": problem.keys}
        tensors = {name: draw.normal(name, problem.sequences, n, problem.width) for name, n in lengths.items()}
        return Inputs(parameters={}, tensors=tensors)

    def formula(self, problem: LinearProblem, given: Mapping[str, Any], rounded: Rounded) -> Tensor:
        """As it stands above, from the left."""
        q, k = (rounded(elu(given[name]) + 1) for name in ("query", "key"))
        weights = rounded(q @ k.mT, problem.width)  # (batch, queries, keys)
        shares = rounded(weights / rounded(weights.sum(dim=-1, keepdim=True)))
        return rounded(shares @ given["value"], problem.keys)


def from_the_left(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Weights of all pairs, then values."""
    weights = (elu(query) + 1) @ (elu(key) + 1).mT
    return weights @ value / weights.sum(dim=-1, keepdim=True)


def from_the_right(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Keys and values first: time and memory are linear in their number."""
    q, k = elu(query) + 1, elu(key) + 1
    return q @ (k.mT @ value) / (q * k.sum(dim=-2, keepdim=True)).sum(dim=-1, keepdim=True)


OPERATOR = LinearAttention()
FROM_THE_LEFT = from_call(from_the_left, operator=OPERATOR.name, name="linear_from_the_left")
FROM_THE_RIGHT = from_call(from_the_right, operator=OPERATOR.name, name="linear_from_the_right")
