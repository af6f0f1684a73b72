"""Runs with chosen times, for tests of reports: where the ratio of each process to the reference is known."""

from collections.abc import Sequence
from pathlib import Path

from attnbench.records.run_file import StoredRun
from attnbench.records.types import Finding, Machine, Memory, Result, Run, Timing

__all__ = ["FORM", "PASSED", "REFERENCE", "case_of", "check", "store", "time_calls"]

REFERENCE = "torch_mha"
FORM = "bias+batch_first+self_attention"
PASSED = Finding(check="forward_parity", status="passed")
# Time of a call of the reference in process 0, in nanoseconds.
BASE_NS = 40_000
# Calls of each process.
CALLS = 6


def case_of(
    length: int = 64, mode: str = "inference", *, dtype: str = "float32", device: str = "cpu", sizes: str = "E256.H4",
    flags: str = FORM, mask: str = "none",
) -> str:  # fmt: skip
    """Return the id of a case of multi-head attention."""
    return f"multihead/B1.L{length}.S{length}.{sizes}/{flags}/mask={mask}/regime=plain/seed=0/{dtype}/{device}/{mode}"


def time_calls(
    name: str, *ratios: float, case: str = "", run: str = "run-1", processes: int = 9, threads: int = 2,
    disturbed: bool = False,
) -> Result:  # fmt: skip
    """Return a result whose times are those of the reference times ``ratios``, which repeat over the processes.

    The reference itself takes 10 % longer in each further process. If ``disturbed``, every call waited for a core.
    """
    of_processes = [(ratios or (1.0,))[p % len(ratios or (1.0,))] for p in range(processes)]
    samples = tuple((round(BASE_NS * (10 + p) / 10 * ratio),) * CALLS for p, ratio in enumerate(of_processes))
    timing = Timing(
        samples_ns=samples,
        waited_ns=samples if disturbed else (),
        cycles=(tuple(range(CALLS)),) * processes,
        threads=threads,
        interleaved_with=() if name == REFERENCE else (REFERENCE,),
    )
    return Result(
        run=run,
        implementation=name,
        case=case or case_of(),
        findings=(PASSED,),
        timing=timing,
        memory=Memory(
            peak_bytes=3 * 2**20, saved_bytes=2**19, workspace_bytes=2**20, threads=threads, method="allocator"
        ),
        flop=10**6,
        suite="perf",
    )


def check(name: str, case: str, *, refused: str = "", run: str = "run-1", suite: str = "quick") -> Result:
    """Return the result of checking a case, which passed or was refused for a reason."""
    finding = Finding(check="forward_parity", status="unsupported", reason=refused) if refused else PASSED
    return Result(run=run, implementation=name, case=case, findings=(finding,), suite=suite)


def store(
    results: Sequence[Result], *, run: str = "run-1", machine: str = "some-cpu", threads: int = 2,
    sources: dict[str, str] | None = None,
) -> StoredRun:  # fmt: skip
    """Return a run as ``read_run`` returns it."""
    made = Run(
        id=run,
        time="2026-01-01T00:00:00+00:00",
        command="attnbench run",
        machine=Machine(name=machine, cpu="Some CPU", cores=4, memory_bytes=2**33),
        versions={"torch": "2.10.0"},
        threads=threads,
        sources=sources or {},
    )
    return StoredRun(run=made, results=tuple(results), path=Path(f"{run}.jsonl"))
