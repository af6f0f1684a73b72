"""Multi-head attention; the reference is ``torch.nn.MultiheadAttention``. Importing this imports no torch."""

from collections.abc import Iterator, Sequence
from typing import Any

from attnbench.cases import Case, Level
from attnbench.interface import Inputs, Work
from attnbench.operators.multihead import suites
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["OPERATOR", "Multihead", "MultiheadProblem"]


class Multihead:
    """The operator ``multihead``. What needs torch is imported when it is called."""

    name = "multihead"
    problem = MultiheadProblem
    baseline = "torch_mha"
    outputs = ("output", "weights")
    chapters = ("forward", "weights", "gradients", "masks", "dropout", "hygiene")

    def suite(self, level: Level) -> Sequence[Case]:
        """Cases of a level."""
        return suites.suite(level)

    def profile(self, lengths: Sequence[int]) -> Sequence[Case]:
        """One case per length and pass."""
        return suites.profile(lengths)

    def missing(self, case: Case) -> str | None:
        """What this machine lacks for the case, with the remedy."""
        from attnbench.operators.multihead.inputs import missing

        return missing(case)

    def inputs(self, case: Case) -> Inputs:
        """Seeded inputs of the case."""
        from attnbench.operators.multihead.inputs import inputs

        return inputs(case)

    def reference(self, case: Case, inputs: Inputs) -> Any:
        """``torch.nn.MultiheadAttention`` with these parameters."""
        from attnbench.operators.multihead.reference import reference

        return reference(case, inputs)

    def evaluate(self, case: Case, inputs: Inputs, *, noise: Any = None, keep: Any = None) -> dict[str, Any]:
        """The oracle's quantities."""
        from attnbench.operators.multihead.oracle import evaluate

        return evaluate(case, inputs, noise=noise, keep=keep)

    def noise(self, roundoff: float, seed: int) -> Any:
        """Rounding at every stage, for ``evaluate``."""
        from attnbench.operators.multihead.oracle import Noise

        return Noise(roundoff, seed)

    def yardsticks(self, case: Case, inputs: Inputs) -> Iterator[dict[str, Any]]:
        """Both paths of the reference in the case's dtype."""
        from attnbench.operators.multihead.reference import yardsticks

        return yardsticks(case, inputs)

    def hidden_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        """Rows from which every key is hidden, for output and weights."""
        from attnbench.operators.multihead.rows import hidden_rows

        return hidden_rows(case, inputs)

    def script(self, case: Case, load: str) -> str:
        """The case as a standalone program."""
        from attnbench.operators.multihead.script import script

        return script(case, load)

    def length(self, case: Case) -> int:
        """Number of keys, over which softmax and weighted sum run."""
        problem: MultiheadProblem = case.problem
        return problem.columns

    def work(self, case: Case) -> Work:
        """Matrix products of the four projections and of the two products per query-key pair.

        Two operations per multiply-add; backward costs twice forward. Pairs that a mask hides are counted: the
        reference computes them.
        """
        problem: MultiheadProblem = case.problem
        batch, embed = problem.batch or 1, problem.embed_dim
        pairs = batch * problem.num_heads * problem.queries * problem.columns
        projections = (
            2
            * batch
            * embed
            * (problem.queries * 2 * embed + problem.keys * ((problem.kdim or embed) + (problem.vdim or embed)))
        )
        forward = projections + 4 * pairs * problem.head_dim
        return Work(flop=forward * (3 if case.mode == "train" else 1), pairs=pairs)


OPERATOR = Multihead()
