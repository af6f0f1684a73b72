"""Tests of the limit on a device's memory, without a device. Tests that use a device are in test_gpu.py."""

from pathlib import Path
from typing import Any

import pytest

from attnbench.devices.device import memory_fraction
from attnbench.interface import Policies
from attnbench.processes.candidate_requests import Declared, LoadImplementation, StartCandidate
from attnbench.runner import candidate_pool
from attnbench.runner.candidate_pool import CandidatePool, Limits
from attnbench.workers.outcomes import run_for_outcome


@pytest.mark.parametrize(("limit_gib", "expected"), [(10, 0.125), (80, 1.0), (200, 1.0)])
def test_a_limit_is_a_fraction_of_the_devices_memory(limit_gib: int, expected: float) -> None:
    """The fraction is at most 1, since torch refuses larger ones."""
    assert memory_fraction(limit_gib * 2**30, 80 * 2**30) == expected


@pytest.mark.parametrize(
    "message",
    ["CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.25 GiB",
     "CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"],
)  # fmt: skip
def test_an_out_of_memory_error_of_a_device_is_recognized(message: str) -> None:
    """The error may come from torch's allocator or from a library."""

    def act() -> dict[str, str]:
        raise RuntimeError(message)

    assert run_for_outcome(act).status == "out_of_memory"


def test_another_error_of_a_device_is_not_out_of_memory() -> None:
    """Other errors of CUDA have the status ``error``."""

    def act() -> dict[str, str]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert run_for_outcome(act).status == "error"


@pytest.mark.parametrize("requested", [None, 2**30])
def test_a_device_is_limited_only_by_a_requested_limit(monkeypatch: pytest.MonkeyPatch, requested: int | None) -> None:
    """The default memory limit comes from the host's free memory, so it does not limit a device."""
    requests: list[dict[str, Any]] = []

    class Process:
        """Stand-in for a worker's process that records the requests to the worker."""

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def ask(self, request: StartCandidate | LoadImplementation, **_: object) -> int | Declared:
            requests.append(request)
            if isinstance(request, StartCandidate):
                return 1
            return Declared(operator="multihead", source="", policies=Policies(), compiles=False, environment={})

    monkeypatch.setattr(candidate_pool, "Child", Process)
    limits = Limits(memory_bytes=requested)
    monkeypatch.setattr(CandidatePool, "find_fork_server", lambda *_: None)
    CandidatePool(limits=limits, module="worker", folder=Path("nowhere"), declared={}).get(["own"])
    assert isinstance(requests[0], StartCandidate)
    assert requests[0].device_memory_bytes == requested
    assert requests[0].memory_limit_bytes == limits.compute_memory_limit_bytes() or requested is None
