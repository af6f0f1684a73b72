"""What is missing from a report: what was not finished, checked, timed or decided, and the commands that add it."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import pandas as pd

from attnbench.analysis.crossover import DECISIVE, Entry
from attnbench.analysis.plain_names import clean_name, join_words
from attnbench.cases import CaseId
from attnbench.records.run_file import StoredRun
from attnbench.records.types import FAILURES, find_pass
from attnbench.report.decisions import Decisions
from attnbench.report.forms import describe_form, describe_pass, spell_length
from attnbench.report.groups import Grouped
from attnbench.report.next_step import NextStep
from attnbench.report.numbers import format_count, shorten_text
from attnbench.report.tables import ENDED, select_pending
from attnbench.report.verdict import UNDECIDED, PlaceVerdict, Sentence, Verdict

__all__ = ["Missing", "collect_missing", "describe_pending"]

# Most names, calls or reasons that one text lists; the others are counted.
LISTED = 6
# Longest quoted reason, in characters.
LONGEST_REASON = 200
FAILED = "failed"
# Why calls were not timed, where the page says more about it elsewhere.
TOLD = {
    FAILED: "a check of the same call failed (see Failures)",
    ENDED: "the run ended before they were timed (see Not finished)",
}
# The option that limits the predicted time of a call, and the prediction in a reason, in seconds.
LIMIT = "--work-limit"
PREDICTED = re.compile(r"predicted (\d\S*) s a call")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """One kind of thing that is missing."""

    what: str
    # Which implementations, calls or answers, and why they are missing.
    text: str
    # The commands that add what is missing.
    steps: tuple[NextStep, ...] = ()


def collect_missing(
    runs: Sequence[StoredRun],
    verdict: Verdict,
    not_run: Sequence[Grouped],
    untimed: pd.DataFrame,
    decisions: Decisions,
) -> tuple[Missing, ...]:
    """Return what is missing.

    ``not_run`` are the findings that were not run, by implementation and reason. ``untimed`` is the table of planned
    calls without a timing.
    """
    machines = {stored.run.id: clean_name(stored.run.machine.name) for stored in runs}
    found = (
        *_list_unchecked(verdict.places),
        *_list_not_run(not_run, machines),
        *_list_untimed(untimed, machines),
        *([Missing(what="Not timed", text=decisions.untimed)] if decisions.untimed else []),
        *_list_open(decisions, several=len({*machines.values()}) > 1),
    )
    kinds = list(dict.fromkeys(one.what for one in found))
    return tuple(sorted(found, key=lambda one: kinds.index(one.what)))


def describe_pending(untimed: pd.DataFrame) -> str:
    """Return which planned calls were not reached before the run ended; empty if all were."""
    return _describe_calls(select_pending(untimed)["case"])


def _list_unchecked(places: Iterable[PlaceVerdict]) -> Iterator[Missing]:
    """Yield which runs are not finished, which implementations have no verdict, and which cannot run."""
    for place in places:
        start = f"{place.label}: " if place.label else ""
        gaps = [one for one in place.sentences if one.kind == "gap" and not one.group]
        if gaps:
            yield Missing(what="Not finished", text=start + " ".join(gap.text for gap in gaps), steps=_get_steps(gaps))
        lacking = [one for one in place.sentences if one.group in UNDECIDED]
        if lacking:
            groups = {one.group: [other for other in lacking if other.group == one.group] for one in lacking}
            text = " ".join(f"{join_words(_name(same))}: {UNDECIDED[group]}." for group, same in groups.items())
            yield Missing(what="No verdict on conformance", text=start + text, steps=_get_steps(lacking))
        away = [one for one in place.sentences if one.group == "elsewhere"]
        if away:
            text = f"{join_words(_name(away))}: they need a machine with CUDA."
            yield Missing(what="Cannot run here", text=start + text)


def _list_not_run(not_run: Iterable[Grouped], machines: Mapping[str, str]) -> Iterator[Missing]:
    """Yield which checks were not run, and why."""
    alike: defaultdict[tuple[str, str, str], list[Grouped]] = defaultdict(list)
    for one in not_run:
        where = _start({machines[run] for run in one.runs}, machines)
        alike[where, one.implementation, _blank_numbers(one.reason)].append(one)
    told: defaultdict[str, list[str]] = defaultdict(list)
    for (where, name, _), own in alike.items():
        findings, why = format_count(sum(one.count for one in own), "finding"), _explain([one.reason for one in own])
        told[where].append(f"{clean_name(name)}: {findings} ({why})")
    for where, texts in told.items():
        yield Missing(what="Checks not run", text=f"{where}{_list_first(texts, '; ')}.")


def _list_untimed(untimed: pd.DataFrame, machines: Mapping[str, str]) -> Iterator[Missing]:
    """Yield which calls were not timed, by machine and reason; not those that are refused."""
    alike: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    columns = (untimed[key] for key in ("implementation", "reason", "run"))
    for row, (name, reason, run) in enumerate(zip(*columns, strict=True)):
        status = str(reason).partition(":")[0]
        if status == "unsupported":
            continue
        # Predicted times are told apart by implementation.
        predicted = str(name) if LIMIT in str(reason) else ""
        why = FAILED if status in FAILURES else _blank_numbers(str(reason))
        alike[_start({machines[str(run)]}, machines), why, predicted].append(row)
    for (where, why, _), rows in sorted(alike.items(), key=lambda one: -len(one[1]))[:LISTED]:
        own = untimed.iloc[rows]
        text = TOLD.get(why) or _explain(own["reason"])
        yield Missing(what="Not timed", text=f"{where}{'; '.join(_describe_untimed(own))}: {text}.")


def _explain(reasons: Iterable[str]) -> str:
    """Return why something was left out, and how it is run if a limit of the predicted time is the reason."""
    text = _join_reasons(reasons)
    predicted = [float(found[1]) for reason in reasons if (found := PREDICTED.search(str(reason)))]
    if LIMIT not in text or not predicted:
        return text
    return f"{text.replace(f' ({LIMIT})', '')}; the option {LIMIT} {math.ceil(max(predicted))} runs them"


def _start(own: Set[str], machines: Mapping[str, str]) -> str:
    """Return on which machines something is missing, as the start of a text; empty if the report has one machine."""
    return f"{join_words(sorted(own))}: " if len({*machines.values()}) > 1 else ""


def _describe_untimed(untimed: pd.DataFrame) -> Iterator[str]:
    """Yield the calls of the rows in words; implementations that lack the same calls are named together."""
    calls: dict[str, list[str]] = {}
    for name, case in zip(untimed["implementation"], untimed["case"], strict=True):
        calls.setdefault(str(name), []).append(str(case))
    names: dict[str, list[str]] = {}
    for name, cases in calls.items():
        names.setdefault(_describe_calls(cases), []).append(clean_name(name))
    for words, same in names.items():
        yield f"{_list_first(same)}: {words}"


def _list_open(decisions: Decisions, *, several: bool) -> Iterator[Missing]:
    """Yield which answers are open, with the commands that may decide them; ``several``: name the machines."""
    by_machine: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in decisions.entries:
        by_machine[clean_name(entry.machine)].append(entry)
    told = []
    for machine, entries in by_machine.items():
        open_ = [entry for entry in entries if entry.best.kind not in DECISIVE]
        others = [entry for entry in entries if entry.best.kind in DECISIVE and _may_be_beaten(entry)]
        parts = [f"{len(open_)} of {format_count(len(entries), 'answer')}: {_describe_calls(e.case for e in open_)}."]
        more = f"Decided, but another may be as fast: {_describe_calls(entry.case for entry in others)}."
        parts = parts * bool(open_) + [more] * bool(others)
        if parts:
            told.append(" ".join([f"{machine}:"] * several + parts))
    if told or decisions.advice:
        text = " ".join(told) or "Whether an implementation without a verdict on conformance is faster."
        yield Missing(what="Speed not decided", text=text, steps=decisions.advice)


def _may_be_beaten(entry: Entry) -> bool:
    """Whether an implementation that is not the answer may be as fast."""
    return bool(entry.best.undecided or entry.answer.undecided or entry.answer.kind not in DECISIVE)


def _describe_calls(cases: Iterable[str]) -> str:
    """Return calls in words, such as "forward 128 and 512 (batch 1, 4 heads, width 256)"."""
    found: dict[str, dict[str, dict[tuple[int, int], None]]] = {}
    for case in dict.fromkeys(map(str, cases)):
        parsed = CaseId.parse(case)
        form, name = describe_form(parsed.form), describe_pass(find_pass(case), parsed.mode)
        found.setdefault(form, {}).setdefault(name, {})[parsed.lengths] = None
    # A name such as "forward" sorts before "forward+backward".
    return _list_first(
        [
            f"{'; '.join(f'{name} {_list_lengths(lengths)}' for name, lengths in sorted(passes.items()))} ({form})"
            for form, passes in found.items()
        ],
        "; ",
    )


def _list_lengths(lengths: Iterable[tuple[int, int]]) -> str:
    return _list_first([spell_length(*length) for length in sorted(lengths, key=lambda one: (max(one), one))])


def _list_first(texts: Sequence[str], between: str = "") -> str:
    """Join the first texts, with commas and "and" or with ``between``, and say how many more there are."""
    shown = texts if len(texts) <= LISTED + 1 else [*texts[:LISTED], f"{len(texts) - LISTED} more"]
    return between.join(shown) if between else join_words(shown)


def _name(sentences: Iterable[Sentence]) -> list[str]:
    return [clean_name(name) for sentence in sentences for name in sentence.names]


def _get_steps(sentences: Iterable[Sentence]) -> tuple[NextStep, ...]:
    return tuple(sentence.step for sentence in sentences if sentence.step)


def _blank_numbers(reason: str) -> str:
    return NUMBER.sub("0", reason)


def _join_reasons(reasons: Iterable[str]) -> str:
    """Return reasons that differ in nothing but numbers as one: a number that differs becomes a range."""
    first, *others = dict.fromkeys(str(reason).removeprefix("not_run: ") for reason in reasons)
    columns = zip(*(NUMBER.findall(reason) for reason in (first, *others)), strict=True)
    ends = [(min(numbers, key=float), max(numbers, key=float)) for numbers in columns]
    ranges = iter([" to ".join(dict.fromkeys(both)) for both in ends])
    text = NUMBER.sub(lambda _: next(ranges), first)
    return shorten_text(" ".join(text.split()), LONGEST_REASON).rstrip(".")
