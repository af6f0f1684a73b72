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
LARGEST = 400


def list_checked_cases(conformance: Conformance, operator: str, checks: str) -> dict[Case, list[str]]:
    """List the checks of an operator whose names match a pattern, by the case on which they are run.

    A check is run on the first case of the suite ``core`` for every mask to which the check applies.
    """
    seen: set[tuple[str, str]] = set()
    found: dict[Case, list[str]] = {}
    for case in load_operator(operator).suite("core"):
        # torch.compile does not trace what a function mode changes.
        if case.problem.keys * case.problem.queries <= LARGEST and not case.compiler:
            names = [check for check in conformance.applicable(case) if (check, case.problem.mask) not in seen]
            if names := fnmatch.filter(names, checks):
                found[case] = names
                seen |= {(check, case.problem.mask) for check in names}
    return found


# Implementations and checks: the references, and implementations that can be differentiated twice.
RUNS = [
    *((name, find_operator_baseline(name), "*") for name in list_names(OPERATORS)),
    ("multihead", "batched_matmul", "second_derivatives"),
    ("attention_core", "core_batched_matmul", "second_derivatives"),
]


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
@pytest.mark.parametrize(("operator", "implementation", "checks"), RUNS)
def test_checks_make_tensors_on_the_device_of_the_inputs(
    operator: str, implementation: str, checks: str, conformance: Conformance
) -> None:
    """No check combines a tensor of the inputs with one that was made without a device."""
    for case, names in list_checked_cases(conformance, operator, checks).items():
        candidate = conformance.candidate(load(implementation), case)
        for check in names:
            with suppress(Refusal), TwoDevices():
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
