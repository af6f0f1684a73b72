"""Measure implementations once per pytest session and device; the benchmarks replay the samples."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from attnbench.records.environment import describe_machine
from attnbench.records.types import Pass, Result
from attnbench.runner import Effort, measure

# Implementations by the device on which they are timed.
IMPLEMENTATIONS = {
    "cpu": ("torch_mha", "naive_loop", "per_head", "batched_matmul", "reshaped", "sdpa"),
    "cuda": ("torch_mha", "xformers", "xformers_splitk"),
}
LENGTHS = (32, 64, 128, 256)
Results = dict[tuple[str, int, Pass], Result]


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Store the name that runs give this machine in place of its host name."""
    machine_info["node"] = describe_machine().name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize benchmarks by pass, length, device and implementation."""
    if {"implementation", "length", "pass_name", "device"} <= set(metafunc.fixturenames):
        metafunc.parametrize("pass_name", ["forward", "forward+backward"])
        metafunc.parametrize("length", LENGTHS)
        pairs = [(device, name) for device, names in IMPLEMENTATIONS.items() for name in names]
        metafunc.parametrize(("device", "implementation"), pairs)


@pytest.fixture(scope="session")
def measure_on() -> Callable[[str], Results]:
    """Return a function that gives the results on a device by implementation, length and pass.

    attnbench measures them once, with interleaved calls.
    """

    @cache
    def measure_once(device: str) -> Results:
        return measure(IMPLEMENTATIONS[device], LENGTHS, Effort(processes=3, budget_s=0.2), device=device)

    return measure_once
