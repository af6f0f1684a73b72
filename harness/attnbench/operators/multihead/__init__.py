"""Multi-head attention; the reference is ``torch.nn.MultiheadAttention``. Importing this imports no torch."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attnbench.cases import Case, Level
from attnbench.interface import Axis, CaseTransforms, Inputs, Operator, Work
from attnbench.operators.multihead import suites
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["OPERATOR", "Multihead", "MultiheadProblem"]


class Multihead(Operator):
    """The operator ``multihead``. What needs torch is imported when it is called."""

    name = "multihead"
    problem = MultiheadProblem
    baseline = "torch_mha"
    outputs = ("output", "weights")
    list_version = suites.VERSION
    mutants = "attnbench.mutants.multihead:MUTANTS"
    mutation_scores = "attnbench.mutants:mutation_scores.json"
    chapters = (
        "forward", "exact", "weights", "gradients", "masks", "shapes", "layouts", "numerics", "invariants", "dropout",
        "paths", "hygiene", "protocol", "compilation", "autocast", "refusals", "determinism", "size",
    )  # fmt: skip

    @property
    def case_transforms(self) -> CaseTransforms:
        """The same problem with other sequences, queries, keys or heads."""
        from attnbench.operators.multihead import case_transforms

        return case_transforms

    def suite(self, level: Level) -> Sequence[Case]:
        """Cases of a level."""
        return suites.suite(level)

    def profile(self, lengths: Sequence[int]) -> Sequence[Case]:
        """One case per length and pass."""
        return suites.profile(lengths)

    def drawn(self, draw: Any) -> Case:
        """A case of any form but a compiled one."""
        from attnbench.operators.multihead.strategies import drawn

        return drawn(draw)

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

    def evaluate(
        self, case: Case, inputs: Inputs, *, noise: Any = None, keep: Any = None, fault: Any = None
    ) -> dict[str, Any]:
        """The oracle's quantities."""
        from attnbench.operators.multihead.oracle import RIGHT, evaluate

        return evaluate(case, inputs, noise=noise, keep=keep, steps=fault or RIGHT)

    def fault_models(self, case: Case, quantities: Collection[str]) -> Mapping[str, Any]:
        """Steps of the formula as they are often got wrong."""
        from attnbench.operators.multihead.fault_models import fault_models

        return fault_models(case, quantities)

    def axes(self, case: Case, quantity: str) -> Sequence[Axis]:
        """Batch, head, query, key and the rest, by dimension."""
        from attnbench.operators.multihead.axes import axes

        return axes(case, quantity)

    def noise(self, roundoff: float, seed: int) -> Any:
        """Rounding at every stage, for ``evaluate``."""
        from attnbench.operators.rounding import Noise

        return Noise(roundoff, seed)

    def scaled(self, case: Case, inputs: Inputs, factor: float) -> Inputs:
        """Inputs with another softmax scale, so to speak."""
        from attnbench.operators.multihead.inputs import scaled

        return scaled(case, inputs, factor)

    def yardsticks(self, case: Case, inputs: Inputs) -> Iterator[dict[str, Any]]:
        """Both paths of the reference in the case's dtype."""
        from attnbench.operators.multihead.reference import yardsticks

        return yardsticks(case, inputs)

    def hidden_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        """Rows from which every key is hidden, for output and weights."""
        from attnbench.operators.multihead.rows import hidden_rows

        return hidden_rows(case, inputs)

    def padded_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        """Rows of queries that key_padding_mask hides as keys, for output and weights."""
        from attnbench.operators.multihead.rows import padded_rows

        return padded_rows(case, inputs)

    def visible(self, case: Case, inputs: Inputs) -> Any:
        """Which keys each query of each head may see."""
        from attnbench.operators.multihead.rows import visible

        return visible(case, inputs)

    def script(self, case: Case, load: str) -> str:
        """The case as a standalone program."""
        from attnbench.operators.multihead.script import script

        return script(case, load)

    def length(self, case: Case) -> int:
        """Number of keys, over which softmax and weighted sum run."""
        problem: MultiheadProblem = case.problem
        return problem.columns

    def work(self, case: Case) -> Work:
        """Floating-point operations and bytes, masks counted exactly."""
        from attnbench.operators.multihead.work import work

        return work(case)


OPERATOR = Multihead()
