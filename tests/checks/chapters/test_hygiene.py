"""Tests of the checks of the chapter *hygiene* on modules that are not in the mutant set."""

from typing import TYPE_CHECKING, Any

import torch

from attnbench.cases import Case
from attnbench.mutants.multihead.decorator import build_case_id
from attnbench.mutants.multihead.formula import Formula
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.plugins.registry import load_problem_types

if TYPE_CHECKING:
    from conftest import Conformance


class _OneThread(Formula):
    def forward(self, *given: Any, **named: Any) -> Any:
        torch.set_num_threads(1)
        return super().forward(*given, **named)


def test_setting_the_number_of_threads_that_there_is_is_found(conformance: "Conformance") -> None:
    """Where torch has one thread already, as in a gate, setting one changes nothing."""
    case = Case.parse(build_case_id(), load_problem_types())
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        found = conformance.finding(ModuleImplementation(_OneThread), case, "global_state_untouched")
        assert (found.status, torch.get_num_threads()) == ("failed", 1)
    finally:
        torch.set_num_threads(threads)
