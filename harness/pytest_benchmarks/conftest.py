"""One profile for the whole session; every benchmark replays samples from it."""

import pytest

from attnbench.records.types import Pass, Result
from attnbench.runner import Effort, measure

IMPLEMENTATIONS = ("torch_mha", "naive_loop", "per_head", "batched_matmul", "reshaped", "sdpa")
LENGTHS = (32, 64, 128, 256)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One benchmark per pass, length and implementation."""
    if {"implementation", "length", "pass_name"} <= set(metafunc.fixturenames):
        metafunc.parametrize("pass_name", ["forward", "forward+backward"])
        metafunc.parametrize("length", LENGTHS)
        metafunc.parametrize("implementation", IMPLEMENTATIONS)


@pytest.fixture(scope="session")
def measured() -> dict[tuple[str, int, Pass], Result]:
    """Results by implementation, length and pass, timed in turns by the measuring core."""
    return measure(IMPLEMENTATIONS, LENGTHS, Effort(processes=3, budget_s=0.2))
