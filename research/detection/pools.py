"""Pools: what many fresh timing processes measured of the reference, its twin and its planted copies, in turns.

Most are of real runs. Those in which plants are measured are gathered here: the same processes, asked the same
question.
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
from attnbench.records import environment
from attnbench.records.types import Timing
from attnbench.runner import Limits, Session, list_profile_cases
from attnbench.runner.session import Supervisor
from attnbench.runner.timing import STARTS, start_together
from research.detection.load import Competitor, run_competitor, measure_busy_cores
from research.detection.plants import BASE, PATHS, ROWS, SHARES
from research.lines import Lines, StudyError, read

__all__ = [
    "IMPLEMENTATIONS",
    "WINDOW_S",
    "PAUSE_S",
    "Condition",
    "Pool",
    "Setup",
    "calibrate_rows",
    "gather_pool",
    "make_header",
    "estimate_size",
    "read_pool",
    "set_child_environment",
    "collect_times_ns",
    "make_timing",
]

ROOT = str(Path(__file__).parents[2])
# What a process of a pool holds.
IMPLEMENTATIONS = [BASE, *PATHS.values()]
# Time in which we look how busy the machine is before a process starts, in seconds.
WINDOW_S = 0.1
# Wall time beyond which a process is taken to hang, in seconds: beside a competitor, calls on several threads take
# many times as long.
TIMEOUT_S = 900.0
# Processes that may fail before a pool is given up.
FAILURES = 10
# Time to wait after one that could not start, in seconds.
PAUSE_S = 5.0
# Processes between two lines that say how far a pool is.
REPORT_EVERY = 10
# Rows of the product that a percent is planted with at first, rounds of measuring and correcting them, processes of a
# round, and how far one correction may go.
FIRST_ROWS, ROUNDS, ROUND_PROCESSES, FURTHEST = 80, 3, 10, 3.0

Process = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Threads of the calls, and what else the machine does."""

    threads: int
    load: str

    def __str__(self) -> str:
        """As in names of files."""
        return f"{self.threads}-{self.load}"

    @property
    def label(self) -> str:
        """As in tables."""
        return f"{self.threads} {'thread' if self.threads == 1 else 'threads'}, {self.load}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is measured, and for how long in each process."""

    length: int
    # Of all sides together.
    budget_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What was measured under one condition."""

    header: Mapping[str, Any]
    processes: Sequence[Process]

    @property
    def threads(self) -> int:
        """Threads of the calls."""
        return int(self.header["threads"])

    @property
    def call_s(self) -> float:
        """Median time of a call of the reference as it was, disturbed ones included, in seconds."""
        return 1e-9 * float(statistics.median(statistics.median(p["sides"][BASE]["times_ns"]) for p in self.processes))

    @property
    def calls_per_cycle(self) -> int:
        """Calls of a cycle of a real comparison: of what is compared, of the reference, in older pools of its twin."""
        return max(2 if _splits_cycles(process) else 3 for process in self.processes)

    @property
    def overhead_s(self) -> float:
        """Median time of a process besides its start and its samples, in seconds."""
        spent_s = (
            process["took_s"] - 1e-9 * sum(sum(side["times_ns"]) for side in process["sides"].values())
            for process in self.processes
        )
        return float(statistics.median(spent_s))

    @property
    def calls(self) -> int:
        """Median number of calls that a side has in a process."""
        counts = [len(side["times_ns"]) for process in self.processes for side in process["sides"].values()]
        return int(statistics.median(counts))


def make_timing(processes: Sequence[Process], side: str, *, threads: int, calls: int | None = None) -> Timing:
    """Calls of a side in some processes, as a run would have stored them; the reference has its twin.

    So many calls are the first ones; where the reference and its twin share their turns, those of so many cycles,
    spread over all, since a run that makes no more changes between the two as often.
    """
    timing = _make_side_timing(processes, side, threads, calls)
    return replace(timing, twin=_make_side_timing(processes, "twin", threads, calls)) if side == BASE else timing


def _make_side_timing(processes: Sequence[Process], side: str, threads: int, calls: int | None) -> Timing:
    kept = [_select_calls(process, side, calls) for process in processes]

    def of(field: str) -> tuple[tuple[int, ...], ...]:
        columns = [(process["sides"][side][field], own) for process, own in zip(processes, kept, strict=True)]
        whole = tuple(tuple(column[call] for call in own) if column else () for column, own in columns)
        return whole if any(whole) else ()

    return Timing(
        samples_ns=of("times_ns"),
        waited_ns=of("waited_ns"),
        switches=of("switches"),
        cycles=of("cycles"),
        threads=threads,
    )


def _select_calls(process: Process, side: str, calls: int | None) -> Sequence[int]:
    """Which calls of a side are told, by their place."""
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
    """Times of a side's calls in nanoseconds; those of the reference and its twin where the two share their turns."""
    own, twin = process["sides"][side], process["sides"]["twin"]
    if side != BASE or not _splits_cycles(process):
        return list(own["times_ns"])
    calls = zip((*own["cycles"], *twin["cycles"]), (*own["times_ns"], *twin["times_ns"]), strict=True)
    return [time for _, time in sorted(calls)]


def estimate_size(pool: Pool, share: int) -> Estimate | None:
    """Time of a planted copy over that of the reference, from the clean calls of every process that has enough."""
    own, base = (make_timing(pool.processes, side, threads=pool.threads) for side in (str(share), BASE))
    ratios = ratios_by_cycle(own, base)
    return estimate(ratios) if ratios else None


def make_header(condition: Condition, setup: Setup, case: str, rows: Mapping[str, int]) -> dict[str, Any]:
    """What the first line of a pool says."""
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
    """A pool that was gathered, or None."""
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
    """Measure until the file holds so many processes.

    Raises: StudyError where processes fail again and again.
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
                        said = lines.records[-1]["reason"]
                        raise StudyError(f"{path}: {FAILURES} processes failed, the last time: {said}")
                    lines.add(_try_process(session, case, setup, competitor, idle, seed=len(lines.records)))
                    done = _count_processes(lines)
                    if not done % REPORT_EVERY or done == processes:
                        left_s = (time.monotonic() - begin) / max(1, done - before) * (processes - done)
                        say(f"{path.name}: {done} of {processes} processes, {left_s / 60:.0f} min left")
            finally:
                for worker in idle:
                    worker.close()
            return Pool(header=head, processes=[r for r in lines.records if r["kind"] == "process"][:processes])


def calibrate_rows(folder: Path, threads: int, setup: Setup, *, resume: bool, say: Callable[[str], None] = print) -> Any:
    """Rows of each plant, by measuring what they cost and correcting them; kept in a file of the folder."""
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
    """Rows that would have cost the shares, if each row costs what the rows of all plants together did."""
    measured = {share: estimate_size(pool, int(share)) for share in rows}
    excess = sum(100 * (found.value - 1) if found else float(share) for share, found in measured.items())
    factor = sum(map(int, rows)) / excess if excess > 0 else FURTHEST
    each = sum(rows.values()) / sum(map(int, rows)) * min(max(factor, 1 / FURTHEST), FURTHEST)
    return {share: max(1, round(int(share) * each)) for share in rows}


def _try_process(
    session: Session, case: str, setup: Setup, competitor: Competitor, idle: list[Supervisor], *, seed: int
) -> Process:
    """One process, or why there is none: a machine that cannot start one now may do so a little later."""
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
    """One fresh process: every side in turns."""
    others = measure_busy_cores(WINDOW_S)
    inputs = session.ask_oracle("inputs", case=case)
    begin, burnt_s = time.monotonic(), competitor.read_cpu_s()
    with worker:
        answer = worker.ask(
            "time",
            counts=False,
            implementations=IMPLEMENTATIONS,
            baseline=BASE,
            case=case,
            inputs=inputs,
            budget_s=setup.budget_s,
            seed=seed,
            checks=[],
            observation=f"{worker.path_prefix}-pool",
        )
        end, burnt_s = time.monotonic(), competitor.read_cpu_s() - burnt_s
    if "status" in answer:
        return {"kind": "failed", "reason": f"{answer['status']}: {answer['reason']}"}
    samples = answer["samples"]
    return {
        "kind": "process",
        "seed": seed,
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "took_s": round(end - begin, 3),
        # Cores in use before it began, ours not among them; and cores that the competitor had meanwhile.
        "others": others and round(others, 2),
        "competitor": round(burnt_s / (end - begin), 2),
        "sides": {BASE: samples[BASE], "twin": answer["twin"]} | {str(s): samples[PATHS[s]] for s in SHARES},
    }


def _count_processes(lines: Lines) -> int:
    return sum(record["kind"] == "process" for record in lines.records)


def set_child_environment(rows: Mapping[str, int]) -> None:
    """What processes that start from now on must know: how much is planted, and where the plants are."""
    os.environ[ROWS] = json.dumps(dict(rows))
    paths = [ROOT, *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
