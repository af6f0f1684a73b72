"""Measure the implementations in ``IMPLEMENTATIONS`` once per pytest session; the benchmarks replay the samples."""

import pytest

from attnbench.records.types import Pass, Result
from attnbench.runner import Effort, measure

IMPLEMENTATIONS = ("torch_mha", "naive_loop", "per_head", "batched_matmul", "reshaped", "sdpa")
LENGTHS = (32, 64, 128, 256)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize benchmarks by pass, length and implementation."""
    if {"implementation", "length", "pass_name"} <= set(metafunc.fixturenames):
        metafunc.parametrize("pass_name", ["forward", "forward+backward"])
        metafunc.parametrize("length", LENGTHS)
        metafunc.parametrize("implementation", IMPLEMENTATIONS)


@pytest.fixture(scope="session")
def results() -> dict[tuple[str, int, Pass], Result]:
    """Return results by implementation, length and pass, measured by attnbench with interleaved calls."""
    return measure(IMPLEMENTATIONS, LENGTHS, Effort(processes=3, budget_s=0.2))
