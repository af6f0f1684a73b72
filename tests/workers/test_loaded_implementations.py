"""Tests of ``LoadedImplementations``: what a process does before it loads implementations."""

import pytest
import torch

from attnbench.processes.candidate_requests import Defence, StartCandidate
from attnbench.workers import loaded_implementations
from attnbench.workers.loaded_implementations import LoadedImplementations


@pytest.mark.parametrize(
    ("without", "expected"),
    [(None, 0), (frozenset({"processor"}), 1), (frozenset({"processor", "libraries"}), 0)],
)
def test_libraries_are_used_before_implementations_are_loaded(
    monkeypatch: pytest.MonkeyPatch, without: frozenset[Defence] | None, expected: int
) -> None:
    """A process that will time implementations uses torch's libraries first; "libraries" switches this defence off."""
    used: list[None] = []
    monkeypatch.setattr(loaded_implementations, "use_libraries", lambda: used.append(None))
    threads = torch.get_num_threads()
    request = StartCandidate(threads=None, memory_limit_bytes=None, device_memory_bytes=None, timed_without=without)
    assert LoadedImplementations().start(request) == threads
    assert len(used) == expected
