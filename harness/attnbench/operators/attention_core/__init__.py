"""Attention on tensors whose heads are split, as kernel papers report it. Importing this module imports no torch."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attnbench.cases import Case, Level
from attnbench.interface import Axis, CaseTransforms, Inputs, Operator, Work
from attnbench.operators.attention_core import suites
from attnbench.operators.attention_core.problem import AttentionCoreProblem

__all__ = ["OPERATOR", "AttentionCore", "AttentionCoreProblem"]


class AttentionCore(Operator):
    """The operator ``attention_core``. Modules that need torch are imported by the methods that use them."""

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
        """Case transforms: select sequences, queries or keys, add keys, or reorder heads."""
        from attnbench.operators.attention_core import case_transforms

        return case_transforms

    def suite(self, level: Level) -> Sequence[Case]:
        """Return the cases of a level."""
        return suites.load_suite(level)

    def profile(self, lengths: Sequence[int]) -> Sequence[Case]:
        """Return the cases to time: for each length one forward pass, and one forward and backward pass."""
        return suites.make_profile_cases(lengths)

    def draw_case(self, draw: Any) -> Case:
        """Draw any case except those in an exact regime or a compiled mode."""
        from attnbench.operators.attention_core.strategies import draw_case

        return draw_case(draw)

    def inputs(self, case: Case) -> Inputs:
        """Draw the seeded inputs of the case."""
        from attnbench.operators.attention_core.inputs import draw_inputs

        return draw_inputs(case)

    def reference(self, case: Case, inputs: Inputs) -> Any:  # noqa: ARG002
        """Return the reference, attention in a few lines of torch; it has no parameters."""
        from attnbench.operators.attention_core.reference import CoreReference

        return CoreReference().train(case.training)

    def evaluate(
        self, case: Case, inputs: Inputs, *, noise: Any = None, keep: Any = None, fault: Any = None
    ) -> dict[str, Any]:
        """Compute the oracle's quantities; ``keep`` must be None, because the operator has no dropout."""
        from attnbench.operators.attention_core.oracle import CORRECT_STEPS, evaluate

        if keep is not None:
            raise ValueError("keep must be None: attention_core has no dropout, got a dropout mask")
        return evaluate(case, inputs, noise=noise, steps=fault or CORRECT_STEPS)

    def fault_models(self, case: Case, quantities: Collection[str]) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the fault models of the case by name."""
        from attnbench.operators.attention_core.fault_models import list_fault_models

        return list_fault_models(case)

    def axes(self, case: Case, quantity: str) -> Sequence[Axis]:
        """Return the axes of a quantity: batch, head, query, key and feature."""
        from attnbench.operators.attention_core.axes import describe_axes

        return describe_axes(case, quantity)

    def noise(self, roundoff: float, seed: int) -> Any:
        """Return the rounding noise that ``evaluate`` adds at every stage."""
        from attnbench.operators.rounding import Noise

        return Noise(roundoff, seed)

    def scale_logits(self, case: Case, inputs: Inputs, factor: float) -> Inputs:  # noqa: ARG002
        """Return inputs with the logits multiplied by ``factor``, which has the effect of another softmax scale."""
        from attnbench.operators.attention_core.inputs import scale_logits

        return scale_logits(inputs, factor)

    def yardsticks(self, case: Case, inputs: Inputs) -> Iterator[dict[str, Any]]:
        """Yield the quantities of the reference and, if it supports the case, of torch's fused function."""
        from attnbench.operators.attention_core.reference import run_yardsticks

        return run_yardsticks(case, inputs)

    def hidden_rows(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        """Return a mask of the output's hidden rows: the fully masked rows, in which no key is visible."""
        from attnbench.operators.attention_core.oracle import find_hidden_rows

        return find_hidden_rows(case, inputs)

    def visible(self, case: Case, inputs: Inputs) -> Any:
        """Return which keys each query of each head may see."""
        from attnbench.operators.attention_core.positions import find_visible

        return find_visible(case.problem, inputs)

    def work(self, case: Case) -> Work:
        """Count floating-point operations and bytes, with masks counted exactly."""
        from attnbench.operators.attention_core.work import count_work

        return count_work(case)


OPERATOR = AttentionCore()
