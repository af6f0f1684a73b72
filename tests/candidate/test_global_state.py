"""Tests of ``global_state``, which reads and restores torch's process-wide settings."""

from collections.abc import Callable

import pytest
import torch

from attnbench.candidate import global_state

CHANGES: dict[str, Callable[[], object]] = {
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the default device": lambda: torch.set_default_device("meta"),
    "the number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "the gradient mode": lambda: torch.set_grad_enabled(False),
    "the use of deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "the precision of float32 matrix products": lambda: torch.set_float32_matmul_precision("medium"),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "anomaly detection": lambda: torch.set_anomaly_enabled(True),
    "the reference's fast path": lambda: torch.backends.mha.set_fastpath_enabled(False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_is_restored(name: str) -> None:
    """If a setting is changed, only its value in ``read_settings`` differs; ``restore_settings`` undoes the change."""
    before = global_state.read_settings()
    assert before.keys() == CHANGES.keys()
    CHANGES[name]()
    try:
        changed = global_state.read_settings()
        assert {key for key in before if changed[key] != before[key]} == {name}
    finally:
        global_state.restore_settings(before)
    assert global_state.read_settings() == before


def test_random_numbers_restart() -> None:
    """After each ``restore_settings`` torch draws the same random numbers again.

    ``global_state.seed`` gives the random numbers of ``torch.manual_seed``.
    """
    before = global_state.read_settings()
    global_state.restore_settings(before)
    first = torch.rand(3)
    torch.rand(5)
    global_state.restore_settings(before)
    assert torch.equal(torch.rand(3), first)
    global_state.seed(7)
    seeded = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), seeded)
