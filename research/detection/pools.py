"""Pools: samples of many new processes, each with interleaved calls of the reference and several copies of it.

One copy is the A/A control, which stored records call ``twin``. The other copies are the plants, which do extra work on
purpose. Most pools are taken from stored real runs. This module also measures the pools from which the true slowdown of
each plant is estimated. These pools are measured with the same request and the same worker processes as a run.
"""

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnbench.analysis.speed_verdict import splits_cycles
from attnbench.analysis.stats import Estimate, estimate, ratios_by_cycle
from attnbench.plugins.registry import PluginError
from attnbench.processes.candidate_requests import Outcome, TakeSamples
from attnbench.processes.oracle_requests import DrawInputs
from attnbench.records import environment
from attnbench.records.types import Timing
from attnbench.runner import Limits, Session, list_profile_cases
from attnbench.runner.candidate_pool import Supervisor
from attnbench.runner.timing_processes import STARTS, start_together
from attnbench.words.findings import describe_facts
from research.detection.load import Competitor, measure_busy_cores, run_competitor
from research.detection.plants import BASE, PATHS, ROWS, SHARES
from research.lines import Lines, StudyError, read

__all__ = [
    "IMPLEMENTATIONS",
    "PAUSE_S",
    "WINDOW_S",
    "Condition",
    "Pool",
    "Setup",
    "calibrate_rows",
    "collect_times_ns",
    "estimate_size",
    "gather_pool",
    "list_samples",
    "make_header",
    "make_timing",
    "read_pool",
    "set_child_environment",
]

ROOT = str(Path(__file__).parents[2])
# Implementations that every process times when this module measures a pool.
IMPLEMENTATIONS = [BASE, *PATHS.values()]
# What a pool stores of each call besides its time.
COUNTERS = ("waited_ns", "switches", "cycles")
# Seconds over which the use of the cores is measured before a process starts.
WINDOW_S = 0.1
# Time-out of a process, in seconds of wall time. It is long, because calls on several threads take many times as long
# while a competing process runs.
TIMEOUT_S = 900.0
# Number of failed processes after which the measurement of a pool ends.
FAILURES = 10
# Seconds to wait after a process that could not start.
PAUSE_S = 5.0
# Number of processes between two progress messages.
REPORT_EVERY = 10
# First number of rows of a plant's matrix product, per percent of slowdown. Every round of the calibration measures the
# plants and corrects their numbers of rows.
FIRST_ROWS = 80
# ROUNDS: number of rounds of the calibration. ROUND_PROCESSES: number of processes of a round. FURTHEST: largest factor
# by which a round changes the number of rows of a plant's matrix product.
ROUNDS, ROUND_PROCESSES, FURTHEST = 3, 10, 3.0

Process = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Number of threads of the timed calls, and the load on the machine."""

    threads: int
    load: str

    def __str__(self) -> str:
        """Return the condition as part of a file name, such as ``2-busy``."""
        return f"{self.threads}-{self.load}"

    @property
    def label(self) -> str:
        """The condition as text for tables, such as ``2 threads, busy``."""
        return f"{self.threads} {'thread' if self.threads == 1 else 'threads'}, {self.load}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Sequence length of the case, and time budget of a process."""

    length: int
    # Seconds of timed calls in a process, for the reference and all its copies together.
    budget_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Samples of many processes, all with the same number of threads and the same load."""

    header: Mapping[str, Any]
    processes: Sequence[Process]

    @property
    def threads(self) -> int:
        """Number of threads of the timed calls."""
        return int(self.header["threads"])

    @property
    def call_s(self) -> float:
        """Median time of a call of the reference in seconds, including disturbed calls."""
        return 1e-9 * float(statistics.median(statistics.median(p["sides"][BASE]["times_ns"]) for p in self.processes))

    @property
    def calls_per_cycle(self) -> int:
        """Number of calls per cycle when one slowed copy is compared with the reference.

        A cycle calls the slowed copy, and either the reference or its A/A control. In older pools, a cycle calls the
        slowed copy, the reference and the control.
        """
        return max(2 if _splits_cycles(process) else 3 for process in self.processes)

    @property
    def overhead_s(self) -> float:
        """Median time of a process in seconds, excluding its start and its timed calls."""
        spent_s = (
            process["took_s"] - 1e-9 * sum(sum(side["times_ns"]) for side in process["sides"].values())
            for process in self.processes
        )
        return float(statistics.median(spent_s))

    @property
    def calls(self) -> int:
        """Median number of calls that a process makes of one implementation (the reference or one of its copies)."""
        counts = [len(side["times_ns"]) for process in self.processes for side in process["sides"].values()]
        return int(statistics.median(counts))


def make_timing(processes: Sequence[Process], side: str, *, threads: int, calls: int | None = None) -> Timing:
    """Build the timing of the reference or of one of its copies in the form in which a run stores it.

    The timing of the reference includes the timing of its A/A control.

    If each cycle calls both the reference and its A/A control, the timing has the first ``calls`` calls of each
    process. If each cycle calls only one of the two, the timing has the calls of ``calls`` cycles, which are spread
    over the whole process. They are spread because a real run switches between the reference and the control equally
    often, whether it has few cycles or many.
    """
    timing = _make_side_timing(processes, side, threads, calls)
    return replace(timing, twin=_make_side_timing(processes, "twin", threads, calls)) if side == BASE else timing


def _make_side_timing(processes: Sequence[Process], side: str, threads: int, calls: int | None) -> Timing:
    kept = [_select_calls(process, side, calls) for process in processes]

    def collect(field: str) -> tuple[tuple[int, ...], ...]:
        columns = [(process["sides"][side][field], own) for process, own in zip(processes, kept, strict=True)]
        whole = tuple(tuple(column[call] for call in own) if column else () for column, own in columns)
        return whole if any(whole) else ()

    counters: dict[str, Any] = {name: collect(name) for name in COUNTERS}
    return Timing(samples_ns=collect("times_ns"), **counters, threads=threads)


def _select_calls(process: Process, side: str, calls: int | None) -> Sequence[int]:
    """Return the indices of the calls that the limit ``calls`` keeps; ``make_timing`` explains the limit."""
    numbers = process["sides"][side]["cycles"]
    if calls is None or not _splits_cycles(process):
        return range(len(process["sides"][side]["times_ns"]))[:calls]
    every = sorted({number for one in process["sides"].values() for number in one["cycles"]})
    count = min(calls, len(every))
    chosen = {every[place * len(every) // count] for place in range(count)}
    return [call for call, number in enumerate(numbers) if number in chosen]


def _splits_cycles(process: Process) -> bool:
    return splits_cycles(*([process["sides"][side]["cycles"]] for side in (BASE, "twin")))


def collect_times_ns(process: Process, side: str) -> Sequence[int]:
    """Return the times in nanoseconds of the calls of one implementation, which ``side`` names.

    If each cycle calls only one of the reference and its A/A control, the result for the reference contains the times
    of both, in the order of the cycles.
    """
    own, twin = process["sides"][side], process["sides"]["twin"]
    if side != BASE or not _splits_cycles(process):
        return list(own["times_ns"])
    calls = zip((*own["cycles"], *twin["cycles"]), (*own["times_ns"], *twin["times_ns"]), strict=True)
    return [time for _, time in sorted(calls)]


def estimate_size(pool: Pool, share: int) -> Estimate | None:
    """Estimate a slowed copy's time divided by the reference's time.

    Return None if no process has enough undisturbed calls.
    """
    own, base = (make_timing(pool.processes, side, threads=pool.threads) for side in (str(share), BASE))
    ratios = ratios_by_cycle(own, base)
    return estimate(ratios) if ratios else None


def make_header(condition: Condition, setup: Setup, case: str, rows: Mapping[str, int]) -> dict[str, Any]:
    """Return the first record of a file: the condition, the setup, the machine and the versions of packages."""
    return {
        "kind": "pool",
        "threads": condition.threads,
        "load": condition.load,
        "case": case,
        "budget_s": setup.budget_s,
        "rows": dict(rows),
        "machine": asdict(environment.describe_machine()),
        "versions": environment.find_versions(),
        "commit": environment.find_commit(Path(ROOT)),
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def read_pool(path: Path) -> Pool | None:
    """Read a stored pool; return None if the file does not exist."""
    found = read(path)
    return found and Pool(header=found[0], processes=[record for record in found[1] if record["kind"] == "process"])


def gather_pool(
    path: Path,
    condition: Condition,
    setup: Setup,
    *,
    rows: Mapping[str, int],
    processes: int,
    resume: bool,
    say: Callable[[str], None] = print,
) -> Pool:
    """Measure new processes until the file has the records of ``processes`` successful processes.

    Raises: StudyError after too many failed processes.
    """
    set_child_environment(rows)
    with Session(limits=Limits(threads=condition.threads, timeout_s=TIMEOUT_S)) as session:
        case = list_profile_cases(session, [setup.length], ["forward"], of=("multihead",))[0]
        head = make_header(condition, setup, case, rows)
        with Lines.open(path, head, resume=resume) as lines, run_competitor(condition.load) as competitor:
            begin, before = time.monotonic(), _count_processes(lines)
            failed = len(lines.records) - before
            idle: list[Supervisor] = []
            try:
                while (done := _count_processes(lines)) < processes:
                    if len(lines.records) - done - failed >= FAILURES:
                        reason = lines.records[-1]["reason"]
                        raise StudyError(f"{path}: {FAILURES} processes failed; the last failed with: {reason}")
                    lines.add(_try_process(session, case, setup, competitor, idle, seed=len(lines.records)))
                    done = _count_processes(lines)
                    if not done % REPORT_EVERY or done == processes:
                        left_s = (time.monotonic() - begin) / max(1, done - before) * (processes - done)
                        say(f"{path.name}: {done} of {processes} processes, {left_s / 60:.0f} min left")
            finally:
                for worker in idle:
                    worker.close()
            return Pool(header=head, processes=[r for r in lines.records if r["kind"] == "process"][:processes])


def calibrate_rows(
    folder: Path, threads: int, setup: Setup, *, resume: bool, say: Callable[[str], None] = print
) -> Any:
    """Find how much extra work makes one copy of the reference 2 % slower, and another copy 3 % slower.

    The extra work is a matrix product. Every round measures the copies and corrects their numbers of rows. The number
    of rows for each copy is returned, and stored in ``rows-THREADS.json``.
    """
    path = folder / f"rows-{threads}.json"
    if resume and path.exists():
        return json.loads(path.read_text())
    rows = {str(share): FIRST_ROWS * share for share in SHARES if share}
    for number in range(ROUNDS):
        one = gather_pool(
            folder / f"calibration-{threads}-{number}.jsonl",
            Condition(threads=threads, load="quiet"),
            setup,
            rows=rows,
            processes=ROUND_PROCESSES,
            resume=resume,
            say=say,
        )
        rows = _correct_rows(rows, one)
    path.write_text(json.dumps(rows))
    return rows


def _correct_rows(rows: Mapping[str, int], pool: Pool) -> dict[str, int]:
    """Correct the number of rows of each copy's matrix product, so that the copy gets its intended slowdown.

    The extra work of a copy is this matrix product. The time per row is assumed to be equal for all copies, so all
    copies get the same number of rows per percent. This number changes by a factor of at most ``FURTHEST``.
    """
    measured = {share: estimate_size(pool, int(share)) for share in rows}
    excess = sum(100 * (found.value - 1) if found else float(share) for share, found in measured.items())
    factor = sum(map(int, rows)) / excess if excess > 0 else FURTHEST
    each = sum(rows.values()) / sum(map(int, rows)) * min(max(factor, 1 / FURTHEST), FURTHEST)
    return {share: max(1, round(int(share) * each)) for share in rows}


def _try_process(
    session: Session, case: str, setup: Setup, competitor: Competitor, idle: list[Supervisor], *, seed: int
) -> Process:
    """Measure one process, and return its record.

    If the process cannot start, wait ``PAUSE_S`` seconds, so that the next process may be able to start, and return a
    record with the reason.
    """
    try:
        if not idle:
            idle += start_together(session, IMPLEMENTATIONS, STARTS)
        return _measure_process(session, case, setup, competitor, idle.pop(), seed=seed)
    except (PluginError, OSError) as error:
        time.sleep(PAUSE_S)
        return {"kind": "failed", "reason": str(error)}


def _measure_process(
    session: Session, case: str, setup: Setup, competitor: Competitor, worker: Supervisor, *, seed: int
) -> Process:
    """Time the reference and all its copies by interleaved calls in one new process."""
    others = measure_busy_cores(WINDOW_S)
    inputs = session.ask_oracle(DrawInputs(case=case))
    begin, used_s = time.monotonic(), competitor.read_cpu_s()
    with worker:
        request = TakeSamples(
            implementations=IMPLEMENTATIONS,
            baseline=BASE,
            case=case,
            inputs=inputs,
            budget_s=setup.budget_s,
            seed=seed,
            checks=[],
            observation=f"{worker.path_prefix}-pool",
        )
        answer = worker.ask(request, counts=False)
        end, used_s = time.monotonic(), competitor.read_cpu_s() - used_s
    if isinstance(answer, Outcome):
        return {"kind": "failed", "reason": f"{answer.status}: {describe_facts(answer.facts)}"}
    assert answer.twin is not None
    timings = {BASE: answer.samples[BASE], "twin": answer.twin}
    timings |= {str(share): answer.samples[PATHS[share]] for share in SHARES}
    return {
        "kind": "process",
        "seed": seed,
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "took_s": round(end - begin, 3),
        # Number of cores in use before the process began.
        "others": others and round(others, 2),
        # Number of cores that the competing process used while the measured process ran.
        "competitor": round(used_s / (end - begin), 2),
        "sides": {side: list_samples(timing, 0) for side, timing in timings.items()},
    }


def list_samples(timing: Timing, process: int) -> dict[str, list[int]]:
    """Return the samples of one process in the form in which a pool stores them."""
    columns = {"times_ns": timing.samples_ns} | {name: getattr(timing, name) for name in COUNTERS}
    return {name: list(column[process]) if column else [] for name, column in columns.items()}


def _count_processes(lines: Lines) -> int:
    return sum(record["kind"] == "process" for record in lines.records)


def set_child_environment(rows: Mapping[str, int]) -> None:
    """Set environment variables for child processes: the plants' numbers of rows, and the search path for imports."""
    os.environ[ROWS] = json.dumps(dict(rows))
    paths = [ROOT, *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
