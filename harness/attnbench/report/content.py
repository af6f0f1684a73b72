"""What a report says, made once from the runs; the page and the Markdown file say it each in their own marks."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pandas as pd

from attnbench.checks.catalogue import CHAPTERS, checks
from attnbench.records import FAILURES, Machine, Result, Status
from attnbench.report import tables
from attnbench.report.numbers import bytes_text, digits
from attnbench.results import StoredRun, merged

__all__ = ["Cell", "Content", "Grouped", "Problem", "Series", "gathered"]

# Statuses that say nothing of right or wrong.
SILENT: frozenset[Status] = frozenset({"unsupported", "not_run"})
# How the headline tells of findings that neither held nor failed it.
TOLD = {
    "expected_failure": "failed as expected",
    "unsupported": "refused with a reason",
    "not_run": "not run",
}
# Mark of a kind of status, in the order of a cell.
MARKS = (("bad", "✗"), ("good", "✓"), ("known", "~"), ("refused", "–"), ("left", "·"))
LEGEND = (
    ("good", "✓", "passed"),
    ("bad", "✗", "failed, stopped with an error, or passed where it was expected to fail"),
    ("known", "~", "failed as expected"),
    ("refused", "–", "refused, with a reason"),
    ("left", "·", "not run"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Findings of one implementation by one check: (kind, mark, number), and the same in words."""

    marks: tuple[tuple[str, str, int], ...]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A finding that is a failure, with the command that shows it again."""

    implementation: str
    check: str
    requirement: str
    case: str
    status: str
    reason: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Findings or calls of one implementation that share a reason."""

    implementation: str
    reason: str
    count: int
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Measurements that may be compared: one machine, device and dtype, and cases that differ in length and pass."""

    title: str
    # Ending of its files' names; empty where a report has one series.
    suffix: str
    timings: pd.DataFrame
    memory: pd.DataFrame
    untimed: pd.DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Everything that a report shows, in the order in which it shows it."""

    runs: tuple[StoredRun, ...]
    results: tuple[Result, ...]
    headline: tuple[str, ...]
    fastest: tuple[str, ...]
    # Chapter, and its checks.
    chapters: tuple[tuple[str, tuple[str, ...]], ...]
    requirements: dict[str, str]
    cells: dict[str, dict[str, Cell]]
    problems: tuple[Problem, ...]
    expected: tuple[Grouped, ...]
    refused: tuple[Grouped, ...]
    not_run: tuple[Grouped, ...]
    untimed: tuple[Grouped, ...]
    warned: tuple[Grouped, ...]
    series: tuple[Series, ...]
    methods: tuple[str, ...]
    # Lines of run files that could not be read.
    unreadable: tuple[str, ...]


def gathered(runs: Sequence[StoredRun]) -> Content:
    """Content of a report of these runs."""
    results = merged(runs)
    found = tables.findings(results)
    requirements = {name: checks()[name].requirement if name in checks() else "" for name in found["check"].unique()}
    counted = tables.matrix(results)
    series = tuple(_series(runs, results))
    untimed = tables.untimed(results)
    return Content(
        runs=tuple(runs),
        results=tuple(results),
        headline=tuple(_headline(results, found, series)),
        fastest=tuple(line for one in series for line in _fastest(one)),
        chapters=tuple(_chapters(counted)),
        requirements=requirements,
        cells={
            name: {check: _cell(counts, requirements[check]) for check, counts in row.items()}
            for name, row in counted.items()
        },
        problems=tuple(_problems(found, requirements)),
        expected=_grouped(found[found["status"] == "expected_failure"], "check"),
        refused=_grouped(found[found["status"] == "unsupported"], "case"),
        not_run=_grouped(found[found["status"] == "not_run"], "case"),
        untimed=_grouped(untimed.assign(of=untimed["pass"] + " L = " + untimed["length"].astype(str)), "of"),
        warned=_grouped(found[found["warnings"] != ""].assign(reason=found["warnings"]), "check"),
        series=series,
        methods=tuple(_methods(series)),
        unreadable=tuple(line for run in runs for line in run.problems),
    )


def machine_text(machine: Machine) -> str:
    """Machine in one line."""
    parts = [machine.name, machine.cpu, _many(machine.cores, "core"), f"{bytes_text(machine.memory_bytes)} of memory"]
    parts += [machine.isa] if machine.isa else []
    parts.append(f"{machine.gpu}, driver {machine.driver or 'unknown'}" if machine.gpu else "no GPU")
    return " · ".join([*parts, machine.system] if machine.system else parts)


def _chapters(counted: dict[str, dict[str, Counter[str]]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    names = next(iter(counted.values()), {})
    for chapter in (*CHAPTERS, "other"):
        own = tuple(name for name in names if tables.chapter_of(name) == chapter)
        if own:
            yield chapter, own


def _kind(status: str) -> str:
    if status in FAILURES:
        return "bad"
    return {"passed": "good", "expected_failure": "known", "unsupported": "refused"}.get(status, "left")


def _cell(counts: Counter[str], requirement: str) -> Cell:
    kinds: Counter[str] = Counter()
    for status, count in counts.items():
        kinds[_kind(status)] += count
    words = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
    return Cell(
        marks=tuple((kind, mark, kinds[kind]) for kind, mark in MARKS if kinds[kind]),
        words=f"{requirement} {words}".strip() if words else "not asked",
    )


def _problems(found: pd.DataFrame, requirements: dict[str, str]) -> Iterator[Problem]:
    for row in found[found["status"].isin(FAILURES)].itertuples():
        name, case, check = str(row.implementation), str(row.case), str(row.check)
        yield Problem(
            implementation=name,
            check=check,
            requirement=requirements[check],
            case=case,
            status=str(row.status).replace("_", " "),
            reason=str(row.reason),
            command=f"attnbench reproduce '{case}' --check {check} {name}",
        )


def _grouped(frame: pd.DataFrame, column: str) -> tuple[Grouped, ...]:
    """Rows by implementation and reason, most frequent first; ``of`` names the values of a column, three at most."""
    made = []
    for (name, reason), rows in frame.groupby(["implementation", "reason"], sort=False):
        values = list(dict.fromkeys(rows[column]))
        more = f" and {len(values) - 3} more" if len(values) > 3 else ""
        made.append(
            Grouped(
                implementation=str(name), reason=str(reason), count=len(rows), of=", ".join(map(str, values[:3])) + more
            )
        )
    order = {name: place for place, name in enumerate(frame["implementation"].unique())}
    return tuple(sorted(made, key=lambda one: (order[one.implementation], -one.count)))


def _series(runs: Sequence[StoredRun], results: Sequence[Result]) -> Iterator[Series]:
    machines = {stored.run.id: stored.run.machine.name for stored in runs}
    keys: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.timing or result.memory:
            keys.setdefault((machines[result.run], tables.series_of(result.case)), [])
    for result in results:
        key = machines[result.run], tables.series_of(result.case)
        if key in keys:
            keys[key].append(result)
    for (machine, series), own in keys.items():
        *_, dtype, device = series.split("/")
        other = sum(
            1 for m, s in keys if m == machine and s.endswith(f"/{dtype}/{device}") and (m, s) < (machine, series)
        )
        suffix = f"-{machine}-{device}-{dtype}" + (f"-{other + 1}" if other else "")
        yield Series(
            title=f"{machine}, {device}, {dtype}: {'/'.join(series.split('/')[:-2])}",
            suffix=suffix if len(keys) > 1 else "",
            timings=tables.timings(own),
            memory=tables.memory(own),
            untimed=tables.untimed(own),
        )


def _headline(results: Sequence[Result], found: pd.DataFrame, series: Sequence[Series]) -> Iterator[str]:
    names, cases = len({r.implementation for r in results}), len({r.case for r in results})
    counts = Counter(found["status"])
    spoken = sum(count for status, count in counts.items() if status not in SILENT)
    bad = sum(counts[status] for status in FAILURES)
    if found.empty:
        yield "These runs hold no findings: nothing was checked."
        return
    start = f"{_many(names, 'implementation')}, {_many(cases, 'case')}, {_many(found['check'].nunique(), 'check')}:"
    if not spoken:
        yield f"{start} nothing was checked."
    elif bad:
        yield f"{start} {_number(bad)} of {_many(spoken, 'finding')} did not hold."
    elif counts["expected_failure"]:
        held = _number(counts["passed"])
        yield f"{start} of {_many(spoken, 'finding')}, {held} held and the others failed as expected."
    else:
        yield f"{start} all {_many(spoken, 'finding')} held."
    told = [f"{_number(counts[status])} {words}" for status, words in TOLD.items() if counts[status]]
    if told:
        yield f"{', '.join(told)}."
    timed = sum(len(one.timings) for one in series)
    yield f"{_many(timed, 'call')} timed." if timed else "These runs hold no timings: speed was not asked for."


def _fastest(series: Series) -> Iterator[str]:
    for name, part in series.timings.groupby("pass"):
        winners = [(int(str(length)), *_winner(rows)) for length, rows in part.groupby("length")]
        for told, group in groupby(winners, key=lambda winner: winner[1]):
            stretch = list(group)
            lengths = [length for length, _, _ in stretch]
            gains = [gain for *_, gain in stretch if gain == gain]
            at = f"L = {lengths[0]}" if len(lengths) == 1 else f"L = {lengths[0]} to {lengths[-1]}"
            low, high = (digits(min(gains), 2), digits(max(gains), 2)) if gains else ("", "")
            gain = (
                f", {low if low == high else f'{low} to {high}'} times as fast as {tables.REFERENCE}" if gains else ""
            )
            yield f"{str(name).capitalize()}, {at}: {told}{gain}."


def _winner(rows: pd.DataFrame) -> tuple[str, float]:
    """Who is fastest in words, those included whose interval meets the fastest one's, and its gain on the reference."""
    ordered = rows.sort_values("median_ns")
    best = ordered.iloc[0]
    level = ordered[ordered["low_ns"] <= best["high_ns"]]["implementation"]
    gain = float("nan") if best["implementation"] == tables.REFERENCE else 1 / best["ratio"]
    if len(level) == 1:
        return f"{best['implementation']} is fastest", gain
    others = _sentence([name for name in level if name != best["implementation"]])
    return f"{best['implementation']} is fastest, but its interval meets that of {others}", gain


def _methods(series: Sequence[Series]) -> Iterator[str]:
    timings = pd.concat([one.timings for one in series]) if series else pd.DataFrame()
    memories = pd.concat([one.memory for one in series]) if series else pd.DataFrame()
    if len(timings):
        processes, samples = _range(timings["processes"]), _range(timings["samples"])
        levels = _range((timings["level"] * 100).round(1))
        yield (
            f"Time: {', '.join(timings['method'].unique())} time of a call that a conformance check of the same case "
            f"preceded; {processes} fresh processes, {samples} samples for each number, implementations called in turn "
            f"in random order. A number is the median over processes of each process's median; its interval runs "
            f"between two order statistics of the processes, and covers the true median with a probability of "
            f"{levels} %. Threads: {_range(timings['threads'])}. No sample was dropped."
        )
        yield (
            f"Ratio: time divided by that of {tables.REFERENCE} on the same case, one ratio of medians for each "
            f"process that called both in turn, then the median over processes with the same kind of interval. Speed "
            f"in the plot is its inverse."
        )
        yield (
            "Gflop/s in timings.csv: what the case needs by closed form, divided by the time. "
            "It is no count of what was executed."
        )
    if len(memories):
        yield (
            f"Memory: bytes above the inputs at the peak of one call, by {_sentence(memories['method'].unique())}. "
            f"Saved bytes are what a forward keeps alive for its backward."
        )
    yield (
        "Findings: each check compares with a float64 oracle of the written contract, within an error budget that "
        "is derived for each case; measured error and budget stand in findings.csv."
    )


def _range(values: Iterable[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _number(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def _many(count: int, word: str) -> str:
    return f"{_number(count)} {word}" + ("s" if count != 1 else "")


def _sentence(parts: Iterable[str]) -> str:
    *first, last = [str(part) for part in parts]
    return f"{', '.join(first)} and {last}" if first else last
