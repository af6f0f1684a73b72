"""Whether a stored run is complete, and if not, which implementations were not finished, and why.

A run of today says what was planned and how it ended. Of an older run only what can be seen is said: a last line that
is cut, and results that one implementation lacks and another one has.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from attnbench.analysis.plain_names import clean_name
from attnbench.cases import CaseId
from attnbench.records.run_file import StoredRun, merge_runs
from attnbench.records.types import ENDED_SINCE, FRONTIER, PERF, Planned, Result

__all__ = ["Completeness", "Shortfall", "describe_gaps", "judge_completeness"]

# Suites whose number of cases differs from implementation to implementation: the cases are chosen during the run.
UNLISTED = ("fuzz", FRONTIER)
# Most implementations that a sentence names; the others are counted.
NAMED = 4
# Words for how a run ended before its planned end.
CAUSES = {
    "cut": "was cut",
    "interrupted": "was interrupted",
    "error": "ended with an error",
    "finished": "lacks results",
    "unknown": "lacks results",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """What one implementation lacks in a run: cases without a result, and calls without a timing or a reason."""

    implementation: str
    cases: int
    planned_cases: int
    timings: int
    planned_timings: int

    @property
    def unchecked(self) -> bool:
        """Whether checks are missing, and not only timings; so if it is not known what was planned."""
        return self.cases > 0 or not self.timings

    @property
    def words(self) -> str:
        """How much there is of what was planned."""
        parts = []
        if self.cases:
            parts.append(f"{self.planned_cases - self.cases} of {self.planned_cases} cases")
        if self.timings:
            parts.append(f"{self.planned_timings - self.timings} of {self.planned_timings} calls timed")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """How a run ended, and what it lacks."""

    run: str
    machine: str
    # "cut": without an end, as when its process is killed. "unknown": an older run, whose end is not recorded.
    end: Literal["finished", "interrupted", "error", "cut", "unknown"]
    unfinished: tuple[Shortfall, ...]
    # Number of lines that could not be read. The line that was cut is not among them.
    unreadable: int

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing."""
        return self.end in ("finished", "unknown") and not self.unfinished and not self.unreadable


def judge_completeness(stored: StoredRun) -> Completeness:
    """Return whether a run is complete, and what it lacks."""
    cut = stored.ends_in_line
    end: Literal["finished", "interrupted", "error", "cut", "unknown"]
    if stored.end is not None:
        end = stored.end.outcome
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
    )


def describe_gaps(found: Completeness, *, named: bool = False) -> Iterator[str]:
    """Yield sentences about what a run lacks; none if it is complete. With ``named`` they name the run."""
    run = f"run {clean_name(found.run)}" if named else "the run"
    unchecked = [one for one in found.unfinished if one.unchecked]
    untimed = [one for one in found.unfinished if not one.unchecked]
    if unchecked:
        verb = "were" if len(unchecked) > 1 else "was"
        yield f"{_name(unchecked)} {verb} not finished: {run} {CAUSES[found.end]}."
    if untimed:
        yield f"The timing of {_name(untimed)} was not finished: {run} {CAUSES[found.end]}."
    if not found.unfinished and found.end not in ("finished", "unknown"):
        yield f"{_capitalize(run)} {CAUSES[found.end]}."
    if found.unreadable:
        lines = "lines" if found.unreadable > 1 else "line"
        yield f"{found.unreadable} {lines} of {run} could not be read."


def _name(some: Sequence[Shortfall]) -> str:
    """Name the first of these implementations; a single one with how much there is of it."""
    names = [clean_name(one.implementation) for one in some]
    if len(some) == 1:
        return f"{names[0]} ({some[0].words})" if some[0].words else names[0]
    *first, last = names if len(names) <= NAMED else [*names[:NAMED], f"{len(names) - NAMED} more"]
    return f"{', '.join(first)} and {last}"


def _capitalize(text: str) -> str:
    return text[0].upper() + text[1:]


def _find_shortfalls(stored: StoredRun) -> Iterator[Shortfall]:
    """Yield what each implementation lacks, in the order of the run."""
    results: defaultdict[str, list[Result]] = defaultdict(list)
    for result in merge_runs([stored]):
        results[result.implementation].append(result)
    planned = stored.run.planned or dict(_guess_planned(stored, results))
    for name in dict.fromkeys((*stored.run.implementations, *planned)):
        own, wanted = results[name], planned.get(name)
        if wanted is None:
            # What was planned is not known: only an implementation without any result is known to lack some.
            if not own and stored.end is None:
                yield Shortfall(implementation=name, cases=0, planned_cases=0, timings=0, planned_timings=0)
            continue
        cases = max(0, wanted.cases - len({result.case for result in own if result.suite != PERF}))
        timings = max(0, wanted.timed - sum(_is_settled(result) for result in own))
        if cases or timings:
            yield Shortfall(
                implementation=name, cases=cases, planned_cases=wanted.cases, timings=timings,
                planned_timings=wanted.timed,
            )  # fmt: skip


def _is_settled(result: Result) -> bool:
    return result.timing is not None or result.untimed is not None


def _guess_planned(stored: StoredRun, results: dict[str, list[Result]]) -> Iterator[tuple[str, Planned]]:
    """Yield what was planned at least for each implementation of an older run that has results.

    Implementations of one operator have the same cases, so an implementation needs as many as the one with the most.
    Every profiled case needs a timing, or the reason why it has none. The further cases of an implementation are in its
    completion; of a part of a suite (--shard), only a part of them is run.
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
    """Return the numbers of listed cases by operator and suite."""
    counts: defaultdict[tuple[str, str], int] = defaultdict(int)
    for result in results:
        if not result.completes and result.suite not in UNLISTED:
            counts[CaseId.parse(result.case).operator, result.suite] += 1
    return dict(counts)
