"""Tests of what torch may take of a device's memory; that a device keeps to it is in test_gpu.py."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench.measurement.device_memory_limit import memory_fraction
from attnbench.runner import session
from attnbench.runner.session import Limits, Supervisor
from attnbench.workers.candidate_worker import run_for_outcome


@pytest.mark.parametrize(("limit_gib", "expected"), [(10, 0.125), (80, 1.0), (200, 1.0)])
def test_a_limit_is_a_share_of_what_there_is(limit_gib: int, expected: float) -> None:
    """No more than all of it, which is what torch refuses."""
    assert memory_fraction(limit_gib * 2**30, 80 * 2**30) == expected


@pytest.mark.parametrize(
    "words",
    ["CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.25 GiB",
     "CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"],
)  # fmt: skip
def test_memory_of_a_device_that_is_out_is_told_as_such(words: str) -> None:
    """Whether torch's allocator says so or a library."""

    def act() -> dict[str, str]:
        raise RuntimeError(words)

    assert run_for_outcome(act)["status"] == "out_of_memory"


def test_another_fault_of_a_device_is_an_error() -> None:
    """Not every error of CUDA is one of memory."""

    def act() -> dict[str, str]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert run_for_outcome(act)["status"] == "error"


@pytest.mark.parametrize("asked", [None, 2**30])
def test_a_device_is_limited_only_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch, asked: int | None) -> None:
    """What is free on the host says nothing of what a device has."""
    told: list[dict[str, Any]] = []

    class Process:
        """Stands in for a worker's process, and keeps what it is told."""

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def ask(self, request: dict[str, Any], **_: object) -> dict[str, Any]:
            told.append(request)
            return {"threads": 1, "environment": {}, "operator": "multihead"}

    monkeypatch.setattr(session, "Child", Process)
    limits = Limits(memory_bytes=asked)
    run: Any = SimpleNamespace(
        limits=limits, worker_module="worker", reserve_path_prefix=lambda: Path("nowhere"), declared={}
    )
    Supervisor(run, ["own"], {})
    assert told[0]["do"] == "start"
    assert told[0]["device_memory_bytes"] == asked
    assert told[0]["memory_limit_bytes"] == limits.compute_memory_limit_bytes() or asked is None
