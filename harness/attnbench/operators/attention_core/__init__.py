"""Attention on split heads alone, which is what kernel papers report. Importing this imports no torch."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attnbench.cases import Case, Level
from attnbench.interface import Axis, CaseTransforms, Inputs, Operator, Work
from attnbench.operators.attention_core import suites
from attnbench.operators.attention_core.problem import AttentionCoreProblem

__all__ = ["OPERATOR", "AttentionCore", "AttentionCoreProblem"]


class AttentionCore(Operator):
    """The operator ``attention_core``. What needs torch is imported when it is called."""

    name = "attention_core"
    problem = AttentionCoreProblem
    baseline = "core_sdpa"
    list_version = suites.VERSION
    mutants = "attnbench.mutants.attention_core:MUTANTS"
    mutation_scores = "attnbench.mutants:mutation_scores.json"
    chapters = (
        "forward", "exact", "gradients", "grouping", "positions", "shapes", "layouts", "numerics", "invariants",
        "hygiene", "compilation", "determinism",
    )  # fmt: skip

    @property
    def case_transforms(self) -> CaseTransforms:
        """The same problem with other sequences, queries, keys or heads."""
        from attnbench.operators.attention_core import case_transforms

        return case_transforms

    def suite(self, level: Level) -> Sequence[Case]:
        """Cases of a level."""
        return suites.suite(level)

    def profile(self, lengths: Sequence[int]) -> Sequence[Case]:
        """One case per length and pass."""
        return suites.profile(lengths)

    def drawn(self, draw: Any) -> Case:
        """A case of any form but an exact or a compiled one."""
        from attnbench.operators.attention_core.strategies import drawn

        return drawn(draw)

    def inputs(self, case: Case) -> Inputs:
        """Seeded inputs of the case."""
        from attnbench.operators.attention_core.inputs import inputs

        return inputs(case)

    def reference(self, case: Case, inputs: Inputs) -> Any:  # noqa: ARG002
        """Attention as it is written down, in a few lines of torch; it has no parameters."""
        from attnbench.operators.attention_core.reference import CoreReference

        return CoreReference().train(case.training)

    def evaluate(
        self, case: Case, inputs: Inputs, *, noise: Any = None, keep: Any = None, fault: Any = None
    ) -> dict[str, Any]:
        """The oracle's quantities; there is no dropout to keep anything from."""
        from attnbench.operators.attention_core.oracle import RIGHT, evaluate

        if keep is not None:
            raise ValueError("attention_core has no dropout, got a mask of what it keeps")
        return evaluate(case, inputs, noise=noise, steps=fault or RIGHT)

    def fault_models(self, case: Case, quantities: Collection[str]) -> Mapping[str, Any]:  # noqa: ARG002
        """Steps of the formula as they are often got wrong."""
        from attnbench.operators.attention_core.fault_models import fault_models

        return fault_models(case)

    def axes(self, case: Case, quantity: str) -> Sequence[Axis]:
        """Batch, head, query, key and feature, by dimension."""
        from attnbench.operators.attention_core.axes import axes

        return axes(case, quantity)

    def noise(self, roundoff: float, seed: int) -> Any:
        """Rounding at every stage, for ``evaluate``."""
        from attnbench.operators.rounding import Noise

        return Noise(roundoff, seed)

    def scaled(self, case: Case, inputs: Inputs, factor: float) -> Inputs:  # noqa: ARG002
        """Inputs with another softmax scale, so to speak."""
        from attnbench.operators.attention_core.inputs import scaled

        return scaled(inputs, factor)

    def yardsticks(self, case: Case, inputs: Inputs) -> Iterator[dict[str, Any]]:
        """The reference, and torch's fused function where it knows all that the case asks for."""
        from attnbench.operators.attention_core.reference import yardsticks

        return yardsticks(case, inputs)

    def hidden_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        """Queries from which every key is hidden."""
        from attnbench.operators.attention_core.oracle import hidden_rows

        return hidden_rows(case, inputs)

    def visible(self, case: Case, inputs: Inputs) -> Any:
        """Which keys each query of each head may see."""
        from attnbench.operators.attention_core.positions import visible

        return visible(case.problem, inputs)

    def work(self, case: Case) -> Work:
        """Floating-point operations and bytes, masks counted exactly."""
        from attnbench.operators.attention_core.work import work

        return work(case)


OPERATOR = AttentionCore()
