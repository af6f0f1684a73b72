"""Tests of the cost of a command."""

import pytest

from research.process_cost import measure_command

# Bytes of memory that the tests' process holds, more than a command needs that imports no torch.
HELD = 2**29


def test_memory_of_the_starting_process_is_not_counted() -> None:
    """A process that holds much memory measures only the memory of the command."""
    held = b"1" * HELD
    cost = measure_command("--version", exit_codes=(0,))
    assert len(held) == HELD
    assert 0 < cost.resident_bytes < HELD
    assert cost.cpu_s > 0


def test_a_command_with_another_exit_code_is_refused() -> None:
    """The error names the command, its exit code, and what it printed."""
    with pytest.raises(RuntimeError, match=r"(?s)attnbench report ended with exit code 2: .*missing\.jsonl"):
        measure_command("report", "missing.jsonl", exit_codes=(0, 1))
