"""Tests of peak resident memory, which includes memory outside torch's allocator."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.measurement.resident_memory import ENVIRONMENT, NOISE_BYTES, bytes_outside_allocator, measure_peak_bytes
from attnbench.runner import Effort, Limits, NoProgress, Session, list_gating_checks, list_profile_cases, profile

MIB = 2**20
OWN = """
import ctypes

from attnbench.interface import Implementation

LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = ctypes.c_void_p


class Outside(Implementation):
    def build(self, reference):
        return reference

    def prepare(self, module, case, inputs):
        def call(**arguments):
            block = LIBC.malloc(8 << 20)
            ctypes.memset(block, 1, 8 << 20)
            returned = module(**arguments)
            LIBC.free(ctypes.c_void_p(block))
            return returned

        return call


OUTSIDE = Outside()
"""
SCRIPT = """
import ctypes, json, torch
from attnbench.measurement.resident_memory import measure_peak_bytes
from attnbench.measurement.memory import measure_peak_bytes as allocated

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def outside():
    block = libc.malloc(8 << 20)
    ctypes.memset(block, 1, 8 << 20)
    libc.free(ctypes.c_void_p(block))

q = torch.randn(2, 4, 256, 64)

def inside():
    return torch.softmax(q @ q.mT, dim=-1) @ q

found = []
for call in (outside, inside, lambda: torch.empty(8 << 20)):
    call()
    found.append((allocated(call, "cpu"), measure_peak_bytes(call)))
print(json.dumps(found))
"""


def test_without_its_environment_nothing_is_measured() -> None:
    """Without the variables of ENVIRONMENT, the peak is None.

    Without them, glibc keeps freed blocks, and the number would be too small.
    """
    assert all(os.environ.get(name) != value for name, value in ENVIRONMENT.items())
    assert measure_peak_bytes(lambda: bytearray(8 * MIB)) is None


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone resets the highest resident size")
def test_memory_that_a_library_allocates_is_measured() -> None:
    """8 MiB from malloc count in the resident peak only; memory of torch's allocator also counts in torch's peak."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=True
    )
    outside, inside, untouched = json.loads(done.stdout)
    assert outside[0] == 0
    assert outside[1] == pytest.approx(8 * MIB, abs=NOISE_BYTES)
    assert bytes_outside_allocator(outside[1], outside[0]) == outside[1]
    assert inside[0] == 2 * 2 * 4 * 256 * 256 * 4
    assert inside[1] == pytest.approx(inside[0], abs=NOISE_BYTES)
    assert bytes_outside_allocator(inside[1], inside[0]) is None
    # Allocated memory that is never written is not resident.
    assert untouched[0] == 32 * MIB
    assert untouched[1] < NOISE_BYTES


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone resets the highest resident size")
def test_a_profile_records_memory_outside_the_allocator(tmp_path: Path) -> None:
    """For a call that takes 8 MiB from malloc, ``outside_bytes`` is 8 MiB; ``peak_bytes`` is torch's memory only."""
    (tmp_path / "own.py").write_text(OWN)
    with Session(limits=Limits(threads=1)) as session:
        plans = session.plan(list_profile_cases(session, [8], ["forward"], of=("multihead",)), list_gating_checks())
        results = profile(
            session,
            [f"{tmp_path}/own.py:OUTSIDE"],
            plans,
            run="r",
            progress=NoProgress(),
            effort=Effort(processes=1, budget_s=0.01),
        )
        probed = next(results)
        results.close()
    memory = probed.memory
    assert memory is not None
    assert memory.peak_bytes < MIB
    assert memory.outside_bytes == pytest.approx(8 * MIB, abs=NOISE_BYTES)
    assert memory.method == "torch.profiler memory events; physical peak: VmHWM"
    assert "aten::_native_multi_head_attention" in probed.kernels
    assert (probed.flop, probed.bytes) == (plans[0].flop, plans[0].bytes)


def test_a_surplus_within_the_noise_is_none() -> None:
    """``bytes_outside_allocator`` is None if the resident peak exceeds torch's by at most 0.5 MB, or by at most 2 %."""
    assert bytes_outside_allocator(None, 100) is None
    assert bytes_outside_allocator(500_000, 0) is None
    assert bytes_outside_allocator(500_001, 0) == 500_001
    assert bytes_outside_allocator(101_900_000, 100_000_000) is None
    assert bytes_outside_allocator(102_100_000, 100_000_000) == 2_100_000
