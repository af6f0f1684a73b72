"""Whether a stored run is complete, and if not, which implementations were not finished, and why.

A newer run file says what was planned and how the run ended. An older run file does not: what is missing is inferred
from its results, and a last line that is cut shows that the run was cut.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from attnbench.cases import CaseId
from attnbench.jobs import command_lines
from attnbench.jobs.errors import JobError
from attnbench.jobs.stored import read_job
from attnbench.records.run_file import StoredRun, merge_runs
from attnbench.records.types import ENDED_SINCE, PERF, WITHOUT_CASES, Planned, Result, Run

__all__ = [
    "Completeness",
    "CutCalls",
    "Ending",
    "Shortfall",
    "Unfinished",
    "find_unfinished",
    "format_resuming",
    "judge_completeness",
    "list_damage",
]

# By machine, the implementations on which a run left out planned checks, in the order of the runs.
Unfinished = Mapping[str, Collection[str]]

# Suites whose number of cases differs from implementation to implementation: the cases are chosen during the run.
UNLISTED = ("fuzz", *WITHOUT_CASES)
Ending = Literal["finished", "interrupted", "error", "cut", "partial", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """What one implementation lacks in a run.

    ``cases`` is the number of cases without a result. ``timings`` is the number of calls that have neither a timing nor
    a reason why they were not timed. ``unreached`` is how many of them were not even checked before timing.
    """

    implementation: str
    cases: int
    planned_cases: int
    timings: int
    planned_timings: int
    unreached: int = 0

    @property
    def unchecked(self) -> bool:
        """Whether checks are missing, and not only timings; also True if it is not known what was planned."""
        return self.cases > 0 or not self.timings


@dataclass(frozen=True, slots=True, kw_only=True)
class CutCalls:
    """Number of calls that ``processes`` of the ``planned`` processes timed."""

    processes: int
    planned: int
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """How a run ended, and what it lacks."""

    run: str
    machine: str
    # "cut": the run has no End record, as when its process was killed. "partial": the same of a merged run. "unknown":
    # an older run, which records no end.
    end: Ending
    unfinished: tuple[Shortfall, ...]
    # Number of lines that could not be read. The line that was cut is not among them.
    unreadable: int
    # Whether the last line was half-written when the run was cut.
    half_written: bool = False
    # Whether any call has a timing.
    timed: bool = True
    # Whether it is known what was planned.
    planned: bool = True
    # Calls of a run that did not finish, which fewer processes timed than were planned.
    cut_calls: tuple[CutCalls, ...] = ()
    # The command that finishes the run; empty if the run is finished, or if it cannot be resumed.
    resuming: str = ""

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing."""
        return self.end in ("finished", "unknown") and not self.unfinished and not self.unreadable


def judge_completeness(stored: StoredRun) -> Completeness:
    """Return whether a run is complete, and what it lacks."""
    cut = stored.ends_in_line
    end: Ending
    if stored.end is not None:
        end = stored.end.outcome
    elif stored.run.parts and not cut:
        end = "partial"
    elif stored.run.schema >= ENDED_SINCE or cut:
        end = "cut"
    else:
        end = "unknown"
    return Completeness(
        run=stored.run.id,
        machine=stored.run.machine.name,
        end=end,
        unfinished=tuple(_find_shortfalls(stored)),
        unreadable=stored.lost_lines - cut,
        half_written=cut,
        timed=any(result.timing is not None for result in stored.results),
        planned=bool(stored.run.planned),
        cut_calls=() if end in ("finished", "unknown") else tuple(_count_cut_calls(stored)),
        resuming=format_resuming(stored.run) if end in ("cut", "interrupted", "error") else "",
    )


def _count_cut_calls(stored: StoredRun) -> Iterator[CutCalls]:
    counts: Counter[tuple[int, int]] = Counter()
    for result in merge_runs([stored]):
        planned = stored.run.planned.get(result.implementation, Planned(cases=0)).processes
        if result.timing is not None and result.timing.processes < planned:
            counts[result.timing.processes, planned] += 1
    for (processes, planned), calls in sorted(counts.items()):
        yield CutCalls(processes=processes, planned=planned, calls=calls)


def find_unfinished(judged: Iterable[Completeness]) -> Unfinished:
    """Return on which implementations these runs left out planned checks."""
    found: dict[str, dict[str, None]] = {}
    for one in judged:
        names = (own.implementation for own in one.unfinished if own.unchecked)
        found.setdefault(one.machine, {}).update(dict.fromkeys(names))
    return found


def format_resuming(run: Run) -> str:
    """Return the command that finishes a run, as an interrupted command prints it; empty if the run cannot be resumed.

    A run that was merged cannot be resumed: its parts can. The command has to be run on the same machine, in the folder
    where the run was started.
    """
    if run.parts or not run.id.isprintable():
        return ""
    try:
        return command_lines.format_resuming(read_job(run), run.id)
    except JobError:
        return ""


def list_damage(stored: StoredRun) -> tuple[str, ...]:
    """Return the messages about lines that cannot be read, without the message about the line that was cut."""
    return stored.problems[:-1] if stored.ends_in_line else stored.problems


def _find_shortfalls(stored: StoredRun) -> Iterator[Shortfall]:
    """Yield what each implementation lacks, in the order of the run."""
    results: defaultdict[str, list[Result]] = defaultdict(list)
    for result in merge_runs([stored]):
        results[result.implementation].append(result)
    planned = stored.run.planned or dict(_guess_planned(stored, results))
    for name in dict.fromkeys((*stored.run.implementations, *planned)):
        own, wanted = results[name], planned.get(name)
        if wanted is None:
            # If it is not known what was planned, results are known to be missing only if there are none at all.
            if not own and stored.end is None:
                yield Shortfall(implementation=name, cases=0, planned_cases=0, timings=0, planned_timings=0)
            continue
        calls = {result.case for result in own if result.suite == PERF}
        cases = max(0, wanted.cases - len({result.case for result in own if result.suite != PERF}))
        timings = max(0, wanted.timed - sum(_is_settled(result) for result in own))
        if cases or timings:
            yield Shortfall(
                implementation=name, cases=cases, planned_cases=wanted.cases, timings=timings,
                planned_timings=wanted.timed, unreached=max(0, wanted.timed - len(calls)),
            )  # fmt: skip


def _is_settled(result: Result) -> bool:
    return result.timing is not None or (result.suite == PERF and result.untimed is not None)


def _guess_planned(stored: StoredRun, results: dict[str, list[Result]]) -> Iterator[tuple[str, Planned]]:
    """Yield the least that was planned for each implementation that has results in an older run.

    All implementations of an operator have the same cases, so an implementation needs as many results as the one that
    has most. Every profiled case needs a timing, or the reason why it has none. The supplementary cases of an
    implementation are in its completion; a run of a part of a suite (--shard) runs only a part of these cases.
    """
    if stored.end is not None or stored.run.suite in UNLISTED:
        return
    listed: dict[str, dict[tuple[str, str], int]] = {
        name: _count_listed(own) for name, own in list(results.items()) if own
    }
    most: defaultdict[tuple[str, str], int] = defaultdict(int)
    for counts in listed.values():
        for group, count in counts.items():
            most[group] = max(most[group], count)
    in_parts = "--shard" in stored.run.command
    further = {one.implementation: len(one.cases) for one in stored.completions if not in_parts}
    for name, counts in listed.items():
        operators = {operator for operator, _ in counts}
        wanted = {group: count for group, count in most.items() if group[0] in operators}
        drawn = further.get(name, sum(result.completes for result in results[name]))
        timed = sum(count for (_, suite), count in wanted.items() if suite == PERF)
        yield name, Planned(cases=sum(wanted.values()) - timed + drawn, timed=timed)


def _count_listed(results: Iterable[Result]) -> dict[tuple[str, str], int]:
    """Return the numbers of cases from the lists of suites, by operator and suite, without cases of completions."""
    counts: defaultdict[tuple[str, str], int] = defaultdict(int)
    for result in results:
        if not result.completes and result.suite not in UNLISTED:
            counts[CaseId.parse(result.case).operator, result.suite] += 1
    return dict(counts)
