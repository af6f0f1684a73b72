"""Checks and implementations make every tensor on the device of the inputs: the emulation ``TwoDevices`` shows it."""

import fnmatch
from contextlib import suppress

import pytest
import torch

from attnbench.cases import Case
from attnbench.checks.catalogue import load_check_function
from attnbench.interface import Refusal
from attnbench.plugins.registry import OPERATORS, find_operator_baseline, list_names, load, load_operator
from conftest import Conformance
from two_devices import TwoDevices

# Number of query-key pairs of the largest case that is run.
LARGEST = 1_000


def list_checked_cases(conformance: Conformance, operator: str, checks: str) -> list[tuple[str, Case]]:
    """List the checks of an operator whose names match a pattern, each with the cases on which it is run.

    These are the first case of the suite ``core`` for every mask to which the check applies.
    """
    found: dict[tuple[str, str], Case] = {}
    for case in load_operator(operator).suite("core"):
        # torch.compile does not trace what a function mode changes.
        if case.problem.keys * case.problem.queries <= LARGEST and not case.compiler:
            for check in fnmatch.filter(conformance.applicable(case), checks):
                found.setdefault((check, case.problem.mask), case)
    return [(check, case) for (check, _), case in found.items()]


# Implementations and checks: the references, and implementations that can be differentiated twice.
RUNS = [
    *((name, find_operator_baseline(name), "*") for name in list_names(OPERATORS)),
    ("multihead", "batched_matmul", "second_derivatives"),
    ("attention_core", "core_batched_matmul", "second_derivatives"),
]


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
@pytest.mark.parametrize(("operator", "implementation", "checks"), RUNS)
def test_checks_make_tensors_on_the_device_of_the_inputs(
    operator: str, implementation: str, checks: str, conformance: Conformance
) -> None:
    """No check combines a tensor of the inputs with one that was made without a device."""
    for check, case in list_checked_cases(conformance, operator, checks):
        with suppress(Refusal):
            candidate = conformance.candidate(load(implementation), case)
            with TwoDevices():
                list(load_check_function(check)(candidate))


def test_a_tensor_made_without_a_device_is_noticed() -> None:
    """A tensor on the host may be copied, may index, and may be a number; it may not be combined otherwise."""
    inputs = torch.ones(3)
    with TwoDevices():
        host = torch.arange(3)
        assert inputs[host].shape == (3,)
        assert (inputs + torch.tensor(1.0)).sum() == 6
        inputs.copy_(host)
        assert torch.equal(inputs, host.to(inputs.device))
        with pytest.raises(RuntimeError, match="two devices"):
            inputs.add(host * 2)
