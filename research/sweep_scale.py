"""Cost of planning, merging and reporting a sweep of many tasks: ``python -m research.sweep_scale --help``.

The study writes the run files of synthetic tasks. Each task ran on one of several nodes of a kind of machine, and has
1,000 results of 10 implementations on 100 cases: half of the cases are conformance cases with 22 findings, half are
timed, by 8 processes of 17 cycles. A line of a result then has about 3.3 kB, as in the stored runs of this repository.
Every kind of machine ran the same cases, and the first case of each task was timed on two nodes.

A new process then merges the files, and another one makes the report of the merged files. The costs are the processor
time and the largest resident memory of each process. Time is linear if the time of a result does not grow with their
number.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

from attnbench.cases import CaseId
from attnbench.checks.catalogue import read_checks
from attnbench.records.run_file import format_line
from attnbench.records.types import End, Finding, Machine, Memory, Result, Run, Timing
from research.report_scale import MAXRSS_BYTES, list_cases, make_failure, make_finding, make_timing

__all__ = ["main", "measure", "write_tasks"]

# Default numbers of results; the last one is that of a sweep of 1,000 tasks.
SIZES = (100_000, 300_000, 1_000_000)
# Number of results of a task, of implementations, of findings of a conformance result, of processes of a timing, and of
# cycles of a process.
RESULTS, FINDINGS, PROCESSES, CYCLES = 1000, 22, 8, 17
IMPLEMENTATIONS = ("torch_mha", *(f"implementation_{number:02}" for number in range(1, 10)))
# Number of kinds of machines, and of nodes of each kind.
KINDS, NODES = 4, 10
# Number of different sets of timings. All cases of a machine have one of them, because drawing samples takes longer
# than reading them.
DRAWN = 50
# Share of conformance results with a failed check.
FAILING = 0.02
MACHINES = tuple(
    Machine(name=f"synthetic-{number}", cpu=f"Synthetic CPU {number}", cores=16, memory_bytes=2**36)
    for number in range(KINDS)
)
# Python code that runs the command line of attnbench in a new process.
COMMAND = "from attnbench.cli import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Processor time in seconds and largest resident memory in bytes of a process."""

    cpu_s: float
    resident_bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tasks of each size, merge and report them, and print a table of the costs."""
    options = _make_parser().parse_args(arguments)
    print("| results | run files, GB | step | CPU, s | CPU for 1,000 results, ms | resident, MiB |")
    print("|---:|---:|---|---:|---:|---:|")
    for size in options.results:
        with tempfile.TemporaryDirectory(prefix="attnbench-sweep-", dir=options.folder) as name:
            folder = Path(name)
            write_tasks(folder / "tasks", -(-size // RESULTS))
            written = sum(path.stat().st_size for path in (folder / "tasks").iterdir())
            steps = {"merge": ("merge", str(folder / "tasks"), "--into", str(folder / "merged"))}
            for step, words in steps.items():
                _print_row(size, written, step, measure(*words))
            merged = sorted(map(str, (folder / "merged").rglob("*.jsonl")))
            _print_row(size, written, "report", measure("report", *merged, "--reports", str(folder / "report")))
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m research.sweep_scale", description="Cost of a large sweep.")
    parser.add_argument(
        "--results", type=int, nargs="+", default=list(SIZES), help="numbers of results; each task has 1,000"
    )
    parser.add_argument("--folder", type=Path, help="folder for the run files, with 8 kB for each result")
    return parser


def measure(*words: str) -> Cost:
    """Run a command of attnbench in a new process, and return its costs.

    Raises: RuntimeError if the command does not end with the exit code 0, 1 or 3.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    # Set the exit code by hand: ``wait4`` has already collected the process, so ``Popen`` cannot wait for it.
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1, 3):
        raise RuntimeError(f"attnbench {words[0]} ended with exit code {process.returncode}")
    return Cost(cpu_s=used.ru_utime + used.ru_stime, resident_bytes=used.ru_maxrss * MAXRSS_BYTES)


def write_tasks(folder: Path, tasks: int) -> None:
    """Write the run files of this number of tasks."""
    folder.mkdir(parents=True)
    units = RESULTS // len(IMPLEMENTATIONS) // 2
    # Tasks of one kind of machine; the first case of a task is also the last one of the task before it.
    of_kind = -(-tasks // KINDS)
    checked = list_cases(of_kind * units)
    timed = list(islice(_list_timed(), of_kind * (units - 1) + 1))
    drawn = [_draw_timings(random.Random(number)) for number in range(DRAWN)]  # noqa: S311  # the same every time
    for task in range(tasks):
        kind, number = task % KINDS, task // KINDS
        _write_task(
            folder / f"task-{task:05}.jsonl",
            _make_run(f"task-{task:05}", MACHINES[kind], f"{kind}-{number % NODES}"),
            checked[number * units : (number + 1) * units],
            timed[number * (units - 1) : number * (units - 1) + units],
            drawn,
        )


def _list_timed() -> Iterator[str]:
    """Yield ids of different timed cases: all shapes of one length, mode and width come after one another."""
    widths, lengths = range(1, 10_000), (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    masks, modes, dtypes = ("none", "causal"), ("inference", "train"), ("float32", "bfloat16")
    for width, batch, mask, dtype, mode, length in product(widths, (1, 4), masks, dtypes, modes, lengths):
        problem = f"B{batch}.L{length}.S{length}.E{64 * width}.H4/bias/mask={mask}/regime=plain/seed=0"
        yield str(CaseId(operator="multihead", problem=problem, dtype=dtype, device="cpu", mode=mode))


def _make_run(name: str, machine: Machine, node: str) -> Run:
    return Run(
        id=name, time="2026-01-01T00:00:00+00:00", command="attnbench sweep", machine=machine,
        versions={"torch": "2.13.0"}, threads=2, suite="core", suite_digest="0" * 12, list_digest="1" * 12,
        implementations=IMPLEMENTATIONS, node=node,
    )  # fmt: skip


def _write_task(
    path: Path, run: Run, checked: Sequence[str], timed: Sequence[str], drawn: Sequence[dict[str, Timing]]
) -> None:
    draw = random.Random(run.id)  # noqa: S311  # the same results every time
    checks = list(read_checks())[:60]
    with path.open("wb") as stream:
        stream.write(format_line(run))
        for place, case in enumerate(checked):
            first = 7 * place % len(checks)
            names = [checks[(first + one) % len(checks)] for one in range(FINDINGS)]
            for name in IMPLEMENTATIONS:
                stream.write(format_line(_make_checked(run.id, name, case, names, draw)))
        for case in timed:
            timings = draw.choice(drawn)
            stream.writelines(format_line(_make_timed(run.id, name, case, own)) for name, own in timings.items())
        stream.write(format_line(End(run=run.id, time=run.time, outcome="finished", exit_code=0)))


def _make_checked(run: str, name: str, case: str, checks: Sequence[str], draw: random.Random) -> Result:
    findings = [make_finding(check, draw) for check in checks]
    if draw.random() < FAILING:
        findings[0] = make_failure(checks[0], draw)
    return Result(
        run=run, implementation=name, case=case, findings=tuple(findings), flop=10_000, bytes=4_000, suite="core"
    )


def _draw_timings(draw: random.Random) -> dict[str, Timing]:
    """Return a timing of each implementation on one case."""
    found = {}
    for place, name in enumerate(IMPLEMENTATIONS):
        others = tuple(one for one in IMPLEMENTATIONS if one != name)
        base_ns = 1_000_000 * (8 + place) // 8
        # A cycle calls either the reference or its A/A control.
        cycles = range(0, CYCLES, 2) if place == 0 else range(CYCLES)
        twin = make_timing(base_ns, range(1, CYCLES, 2), PROCESSES, others, draw) if place == 0 else None
        found[name] = make_timing(base_ns, cycles, PROCESSES, others, draw, twin)
    return found


def _make_timed(run: str, name: str, case: str, timing: Timing) -> Result:
    return Result(
        run=run, implementation=name, case=case,
        findings=(Finding(check="forward_parity", status="passed", measured=1e-7, allowed=1e-6),),
        timing=timing,
        memory=Memory(peak_bytes=2**20, saved_bytes=2**18, workspace_bytes=2**19, threads=2, method="allocator"),
        flop=10**9, bytes=10**6, kernels=("aten::bmm ×2", "aten::_softmax", "aten::mm ×4"), suite="perf",
    )  # fmt: skip


def _print_row(results: int, written: int, step: str, cost: Cost) -> None:
    print(
        f"| {results:,} | {written / 1e9:.2f} | {step} | {cost.cpu_s:.1f} | {1e6 * cost.cpu_s / results:.2f} | "
        f"{cost.resident_bytes / 2**20:.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
