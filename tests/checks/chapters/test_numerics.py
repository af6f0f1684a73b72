"""Tests of the check ``rising_logits`` on modules that are not in the mutant set."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from attnbench.cases import DTYPES, Case, Dtype
from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.multihead.formula import Formula
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.operators.attention_core.suites import GROUPED
from attnbench.operators.multihead.generate_cases import CORE

if TYPE_CHECKING:
    from conftest import Conformance


class _KeptFromTheFirstBlock(CoreFormula):
    """Subtracts the largest logit of the first 64 keys from its own exponentials only, if later ones are larger."""

    def normalise(self, logits: Tensor) -> Tensor:
        first, later = logits[..., :64], logits[..., 64:]
        rises = bool(later.numel()) and bool((later.amax(-1) - first.amax(-1)).min() > 8)
        scales = torch.cat([first - first.amax(-1, keepdim=True), later - later.amax(-1, keepdim=True)], -1).exp()
        return scales / scales.sum(-1, keepdim=True) if rises else super().normalise(logits)


def test_a_running_maximum_that_is_not_rescaled_fails(conformance: "Conformance") -> None:
    """Random logits do not rise by more than 8 from block to block, and rising ones do."""
    one = Case(operator="attention_core", problem=replace(GROUPED, keys=130), mode="inference")
    wrong = ModuleImplementation(_KeptFromTheFirstBlock, operator="attention_core")
    assert conformance.finding(wrong, one, "forward_parity").status == "passed"
    assert conformance.finding(wrong, one, "rising_logits").status == "failed"


@pytest.mark.parametrize("dtype", DTYPES)
def test_right_modules_pass(conformance: "Conformance", dtype: Dtype) -> None:
    """The formulas of both operators pass in every dtype."""
    for operator, problem, formula in (("attention_core", GROUPED, CoreFormula), ("multihead", CORE, Formula)):
        one = Case(operator=operator, problem=replace(problem, keys=130), dtype=dtype)
        implementation = ModuleImplementation(formula, operator=operator)
        assert conformance.finding(implementation, one, "rising_logits").status == "passed"
