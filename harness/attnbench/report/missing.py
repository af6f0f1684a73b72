"""What is missing from a report: what was not finished, checked, timed or decided, and the commands that add it."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from attnbench.analysis.crossover import DECISIVE
from attnbench.analysis.plain_names import clean_name, join_words
from attnbench.cases import CaseId
from attnbench.records.types import FAILURES, find_pass
from attnbench.report.choices import keeps_reference
from attnbench.report.decisions import Decisions
from attnbench.report.forms import describe_form, describe_pass, read_lengths, spell_length
from attnbench.report.groups import Grouped
from attnbench.report.next_step import NextStep
from attnbench.report.numbers import format_count, shorten_text
from attnbench.report.tables import select_pending
from attnbench.report.verdict import UNDECIDED, PlaceVerdict, Sentence, Verdict

__all__ = ["Missing", "collect_missing", "describe_pending"]

# Most names, calls or reasons that one text lists; the others are counted.
LISTED = 6
# Longest quoted reason, in characters.
LONGEST_REASON = 200
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
    verdict: Verdict, not_run: Sequence[Grouped], untimed: pd.DataFrame, decisions: Decisions
) -> tuple[Missing, ...]:
    """Return what is missing.

    ``not_run`` are the findings that were not run, by implementation and reason. ``untimed`` is the table of planned
    calls without a timing.
    """
    found = (
        *_list_unchecked(verdict.places),
        *_list_not_run(not_run),
        *_list_untimed(untimed),
        *([Missing(what="Not timed", text=decisions.untimed)] if decisions.untimed else []),
        *_list_open(decisions),
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
            text = f"{join_words(_name(lacking))}: too few cases were checked."
            yield Missing(what="No verdict on conformance", text=start + text, steps=_get_steps(lacking))
        away = [one for one in place.sentences if one.group == "elsewhere"]
        if away:
            text = f"{join_words(_name(away))}: they need a machine with CUDA."
            yield Missing(what="Cannot run here", text=start + text)


def _list_not_run(not_run: Iterable[Grouped]) -> Iterator[Missing]:
    """Yield which checks were not run, and why."""
    alike: defaultdict[tuple[str, str], list[Grouped]] = defaultdict(list)
    for one in not_run:
        alike[one.implementation, _blank_numbers(one.reason)].append(one)
    told = [
        f"{clean_name(name)}: {format_count(sum(one.count for one in own), 'finding')} "
        f"({_join_reasons([one.reason for one in own])})"
        for (name, _), own in alike.items()
    ]
    if told:
        yield Missing(what="Checks not run", text=f"{_list_first(told, '; ')}.")


def _list_untimed(untimed: pd.DataFrame) -> Iterator[Missing]:
    """Yield which calls were not timed, by the reason; neither those that are refused nor those that fail checks."""
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for row, reason in enumerate(untimed["reason"]):
        if str(reason).partition(":")[0] not in (*FAILURES, "unsupported"):
            alike[_blank_numbers(str(reason))].append(row)
    for rows in sorted(alike.values(), key=lambda own: -len(own))[:LISTED]:
        own = untimed.iloc[rows]
        text = f"{'; '.join(_describe_untimed(own))}; {_join_reasons(own['reason'])}."
        yield Missing(what="Not timed", text=text)


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


def _list_open(decisions: Decisions) -> Iterator[Missing]:
    """Yield which answers are open, with the commands that may decide them."""
    open_ = [entry for entry in decisions.entries if entry.answer.kind not in DECISIVE]
    others = sum(bool(entry.answer.undecided) for entry in decisions.entries if entry.answer.kind in DECISIVE)
    if not open_ and not decisions.advice:
        return
    parts = []
    if open_:
        calls = _describe_calls(entry.case for entry in open_)
        parts.append(f"{len(open_)} of {format_count(len(decisions.entries), 'answer')}: {calls}.")
    if others:
        noun = "a decided answer" if others == 1 else f"{others} decided answers"
        parts.append(f"In {noun}, implementations that are not named may be as fast.")
    kept = [entry.case for entry in decisions.entries if keeps_reference(entry)]
    if kept:
        parts.append(f"Which of those that conform is fastest: {_describe_calls(kept)}.")
    text = " ".join(parts) or "Which of those that conform is fastest."
    yield Missing(what="Speed not decided", text=text, steps=decisions.advice)


def _describe_calls(cases: Iterable[str]) -> str:
    """Return calls in words, such as "forward 128 and 512 (batch 1, 4 heads, width 256)"."""
    found: dict[str, dict[str, dict[tuple[int, int], None]]] = {}
    for case in dict.fromkeys(map(str, cases)):
        parsed = CaseId.parse(case)
        form, name = describe_form(parsed.form), describe_pass(find_pass(case), parsed.mode)
        found.setdefault(form, {}).setdefault(name, {})[read_lengths(parsed)] = None
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
