"""Cost of planning, following, merging and reporting a large sweep: ``python -m research.sweep_scale --help``.

The study writes the folder of a synthetic sweep. Each task ran on one of several nodes of a kind of machine, and has
1,000 results of 10 implementations on 100 cases. Half of the tasks have conformance results with 22 findings, the other
half timings by 8 processes of 17 cycles. A line of a result then has about 3.3 kB, as in the stored runs of this
repository. Every kind of machine ran the same cases, and the first case of each timed task was timed on two nodes.

Four commands of attnbench are measured, each in a new process:

- plan: ``attnbench sweep --dry-run`` of a profile with as many results, whose time is estimated from the synthetic runs
- status: ``attnbench sweep --status`` of the synthetic sweep, which reads every run file once
- merge: ``attnbench merge`` of its tasks
- report: ``attnbench report`` on the merged files

The costs are the processor time of the process and of those that it starts, and the largest resident memory of one of
them. Time is linear if the time of a result does not grow with their number.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice, product
from pathlib import Path

import msgspec

from attnbench.cases import CaseId
from attnbench.checks.catalogue import read_checks
from attnbench.records.run_file import format_line
from attnbench.records.types import End, Finding, Machine, Memory, Result, Run, Timing
from attnsweep import configuration
from attnsweep.plan import SweepPlan, Task, write_plan
from attnsweep.tries import Try, find_record
from research.process_cost import ProcessCost, measure_command
from research.report_scale import list_cases, make_failure, make_finding, make_timing

__all__ = ["main", "measure", "write_configuration", "write_sweep"]

# Default numbers of results; the last one is that of a sweep of 1,000 tasks.
SIZES = (100_000, 300_000, 1_000_000)
# Number of results and of cases of a task, of findings of a conformance result, of processes of a timing, and of cycles
# of a process.
RESULTS, CASES, FINDINGS, PROCESSES, CYCLES = 1000, 100, 22, 8, 17
IMPLEMENTATIONS = ("torch_mha", *(f"implementation_{number:02}" for number in range(1, 10)))
# Number of kinds of machines, and of nodes of each kind.
KINDS, NODES = 4, 10
# Number of different sets of timings. All cases of a machine have one of them, because drawing samples takes longer
# than reading them.
DRAWN = 50
# Share of conformance results with a failed check.
FAILING = 0.02
# Start and end of every synthetic run.
BEGIN, FINISH = "2026-01-01T00:00:00+00:00", "2026-01-01T00:20:00+00:00"
HARDWARE = tuple(
    Machine(name=f"synthetic-{number}", cpu=f"Synthetic CPU {number}", cores=16, memory_bytes=2**36)
    for number in range(KINDS)
)
MACHINES = tuple(
    configuration.Machine(name=f"kind{number}", constraint=f"kind{number}", cpus=2) for number in range(KINDS)
)
# Implementations of the plan: ten that load everywhere.
PLANNED = (
    "torch_mha", "batched_matmul", "block_matrix", "fused_projection", "naive_loop", "online_softmax", "per_head",
    "reshaped", "sdpa", "varlen",
)  # fmt: skip
# Values of the axes of the plan beside the lengths: with two passes they make 1,000 cases of each length.
BATCHES, HEADS, HEAD_DIMS, MASKS, DTYPES = (1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (8, 16, 24, 32, 40), 2, 2
CASES_OF_A_LENGTH = len(BATCHES) * len(HEADS) * len(HEAD_DIMS) * MASKS * DTYPES * 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the sweep of each size, measure each step, and print a table of the costs."""
    options = _make_parser().parse_args(arguments)
    print("| results | run files, GB | step | CPU, s | CPU for 1,000 results, ms | resident, MiB |")
    print("|---:|---:|---|---:|---:|---:|")
    for size in options.results:
        with tempfile.TemporaryDirectory(prefix="attnbench-sweep-", dir=options.folder) as name:
            folder = Path(name)
            write_sweep(folder, -(-size // RESULTS))
            written = sum(path.stat().st_size for path in (folder / "tasks").rglob("*.jsonl"))
            planned = write_configuration(folder / "plan.toml", size)
            plan = ("sweep", str(folder / "plan.toml"), "--dry-run", "--earlier", str(folder))
            _print_row(planned, written, "plan", measure(*plan))
            _print_row(size, written, "status", measure("sweep", "--results", str(folder), "--status"))
            _print_row(size, written, "merge", measure("merge", f"{folder}/tasks", "--into", f"{folder}/merged"))
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


def measure(*words: str) -> ProcessCost:
    """Run a command of attnbench, and return its costs; accept that checks fail (1) or results are missing (3).

    Raises: RuntimeError if the command ends with another exit code than 0, 1 or 3.
    """
    return measure_command(*words, exit_codes=(0, 1, 3))


def write_configuration(path: Path, results: int) -> int:
    """Write the configuration of a profile with about this number of results; return the number that it has."""
    of_a_length = CASES_OF_A_LENGTH * len(PLANNED) * KINDS
    lengths = [16 * (number + 1) for number in range(-(-results // of_a_length))]
    machines = "".join(
        f'[[machines]]\nname = "{one.name}"\nconstraint = "{one.constraint}"\ncpus = {one.cpus}\n' for one in MACHINES
    )
    path.write_text(
        f"kind = 'profile'\nimplementations = {list(PLANNED)}\n[axes]\nlengths = {lengths}\nbatch = {list(BATCHES)}\n"
        f"heads = {list(HEADS)}\nhead_dim = {list(HEAD_DIMS)}\nmask = ['none', 'causal']\n"
        f"dtype = ['float32', 'bfloat16']\n[limits]\ncases = {CASES}\nminutes = 600\n{machines}"
    )
    return of_a_length * len(lengths)


def write_sweep(folder: Path, tasks: int) -> None:
    """Write the folder of a sweep of this number of tasks, all of which are done."""
    # Tasks of one kind of machine; the first case of a timed task is also the last one of the timed task before it.
    of_kind = -(-tasks // KINDS)
    checked = list_cases(of_kind * CASES)
    timed = list(islice(_list_timed(), of_kind * (CASES - 1) + 1))
    drawn = [_draw_timings(random.Random(number)) for number in range(DRAWN)]  # noqa: S311  # the same every time
    made = []
    for place in range(tasks):
        kind, number = place % KINDS, place // KINDS
        cases = checked[number * CASES :] if number % 2 == 0 else timed[number * (CASES - 1) :]
        made.append(Task(machine=MACHINES[kind].name, number=number + 1, cases=tuple(cases[:CASES]), estimate_s=1200.0))
    # All results of a sweep of kind "conform" count, those with times too.
    plan = SweepPlan(
        kind="conform", operators=dict.fromkeys(IMPLEMENTATIONS, "multihead"), options={}, versions={},
        allow_different_versions=True, machines=MACHINES, minutes=60, tries=3, tasks=tuple(made), origin="a study",
    )  # fmt: skip
    write_plan(folder, plan)
    for place, task in enumerate(made):
        kind, number = place % KINDS, place // KINDS
        run = _make_run(task.name.replace("/", "-"), HARDWARE[kind], f"{kind}-{number % NODES}")
        _write_task(folder, plan.hash, task, run, drawn if number % 2 else ())


def _list_timed() -> Iterator[str]:
    """Yield ids of different timed cases: all shapes of one length, mode and width come after one another."""
    widths, lengths = range(1, 10_000), (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    masks, modes, dtypes = ("none", "causal"), ("inference", "train"), ("float32", "bfloat16")
    for width, batch, mask, dtype, mode, length in product(widths, (1, 4), masks, dtypes, modes, lengths):
        problem = f"B{batch}.L{length}.S{length}.E{64 * width}.H4/bias/mask={mask}/regime=plain/seed=0"
        yield str(CaseId(operator="multihead", problem=problem, dtype=dtype, device="cpu", mode=mode))


def _make_run(name: str, machine: Machine, node: str) -> Run:
    return Run(
        id=name, time=BEGIN, command="attnbench sweep", machine=machine, versions={"torch": "2.13.0"}, threads=2,
        suite="core", suite_digest="0" * 12, list_digest="1" * 12, implementations=IMPLEMENTATIONS, node=node,
    )  # fmt: skip


def _write_task(folder: Path, plan: str, task: Task, run: Run, drawn: Sequence[dict[str, Timing]]) -> None:
    """Write the record and the run file of a task; with timings if any are ``drawn``."""
    path = find_record(folder, task, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Try(
        plan=plan, machine=task.machine, number=task.number, count=1, job=str(task.number), node=run.node, versions={},
        started=BEGIN, ended=FINISH, outcome="done",
    )  # fmt: skip
    path.write_bytes(msgspec.json.encode(made))
    draw = random.Random(run.id)  # noqa: S311  # the same results every time
    checks = list(read_checks())[:60]
    with path.with_suffix(".jsonl").open("wb") as stream:
        stream.write(format_line(run))
        for place, case in enumerate(task.cases):
            if drawn:
                timings = draw.choice(drawn)
                stream.writelines(format_line(_make_timed(run.id, name, case, own)) for name, own in timings.items())
                continue
            first = 7 * place % len(checks)
            names = [checks[(first + one) % len(checks)] for one in range(FINDINGS)]
            stream.writelines(format_line(_make_checked(run.id, name, case, names, draw)) for name in IMPLEMENTATIONS)
        stream.write(format_line(End(run=run.id, time=FINISH, outcome="finished", exit_code=0)))


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


def _print_row(results: int, written: int, step: str, cost: ProcessCost) -> None:
    print(
        f"| {results:,} | {written / 1e9:.2f} | {step} | {cost.cpu_s:.1f} | {1e6 * cost.cpu_s / results:.2f} | "
        f"{cost.resident_bytes / 2**20:.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
