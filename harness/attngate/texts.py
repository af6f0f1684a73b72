"""The words of ``attnbench gate``, on the terminal and in Markdown."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from attnbench.analysis.stats import Interval
from attnbench.report.comparison.content import ComparisonContent, Sentence
from attnbench.report.comparison.rows import Row
from attnbench.report.console import Part
from attnbench.report.failures import FailureGroup
from attnbench.report.text_table import TextTable
from attnbench.words.say import say, say_count, say_names
from attngate.outcome import Fault, Outcome

__all__ = ["describe_outcome", "list_notes", "name_title", "summarize", "tabulate", "tabulate_ratios"]

TITLE = {
    "holds": "attnbench gate holds",
    "worse": "attnbench gate: the change is worse",
    "undecided": "attnbench gate is undecided",
}
_SIDES = "base: {base}; new: {new}"
_CHANGED = "The new side is {new}, with changes that are in no commit."
_KEPT = "The base of {names} was checked before, and its results were kept."
_NOT_ASKED = "Nothing is timed, because --fail-on leaves out slower."
_NO_TIMES = "Nothing is timed, because the operator has no cases to time."
_UNTIMED = (
    "{count} timed case has no time on both sides, and is not compared: a side refuses it or fails its checks.",
    "{count} timed cases have no time on both sides, and are not compared: a side refuses them or fails their checks.",
)
_MOMENTS = (
    "Two moments: each side was measured in an environment of its own, the base with Python {base_python} and torch "
    "{base_torch}, the new side with Python {new_python} and torch {new_torch}."
)
_RATIOS = (
    "Times are ratios to the reference of the same environment, and no calls of the two sides were interleaved. "
    "Slower is a ratio that is larger by more than {percent:g} %, even between the nearest ends of the two intervals. "
    "It may also come from the reference, or from what else the machine did at one of the moments."
)
_TORCH = "torch differs: a changed number of bytes or calls, or a mended or wrong check, may come from torch."
_COMMAND = "To see the first failure again: {command}"
_HOLDS = (
    "The gate holds: compared with {base} on {count} case, nothing of {fail_on} was found.",
    "The gate holds: compared with {base} on {count} cases, nothing of {fail_on} was found.",
)
_WORSE = "The gate fails: compared with {base}, {found}."
_UNDECIDED = (
    "The gate is undecided: compared with {base}, nothing is known to be worse, but {count} time has no verdict; run "
    "it again while nothing else runs, or leave out times (--fail-on wrong,bigger).",
    "The gate is undecided: compared with {base}, nothing is known to be worse, but {count} times have no verdict; run "
    "it again while nothing else runs, or leave out times (--fail-on wrong,bigger).",
)
_UNCHECKED = "The gate is undecided: no check passed of {names}; attnbench conform says why."
_MENDED = ("{count} check that failed in the base passes now.", "{count} checks that failed in the base pass now.")
_ADDED = "The base does not register {names}, so this is not compared; attnbench conform checks it."
_REMOVED = "Only the base registers {names}, so this is not compared."
_PASSES = "Times without a verdict pass (--undecided pass)."
_FOUND: dict[Fault, tuple[str, str]] = {
    "wrong": ("{count} check became wrong or does not run", "{count} checks became wrong or do not run"),
    "slower": ("{count} case is slower", "{count} cases are slower"),
    "bigger": ("{count} number of bytes is bigger", "{count} numbers of bytes are bigger"),
}
_FOUND_APART: dict[Fault, tuple[str, str]] = {
    "slower": (
        "{count} case is slower beside the reference, at another moment",
        "{count} cases are slower beside the reference, at another moment",
    ),
}
_WHERE = ("{count} case", "{count} cases")
_CASES = ("{count} case, such as {case}", "{count} cases, such as {case}")
HEAD = ("verdict", "implementation", "what", "change", "where")
RATIOS = ("implementation", "ratio to the reference on", "base", "new", "new / base", "verdict")
KINDS: Mapping[str, Literal["good", "bad", "gap"]] = {"holds": "good", "worse": "bad", "undecided": "gap"}
STYLES = {"bad": "red", "gap": "yellow", "good": "green"}
# Most implementations that a sentence names, and most rows of the table.
NAMED, ROWS = 4, 40
_MORE = ("And {count} more row.", "And {count} more rows.")


def name_title(outcome: Outcome) -> str:
    """Return the title of the outcome."""
    return say(TITLE[outcome.outcome])


def list_notes(outcome: Outcome) -> Iterator[str]:
    """Yield what was compared, and what was not."""
    yield say(_SIDES, base=outcome.base.label, new=outcome.new.label)
    if outcome.new.changed:
        yield say(_CHANGED, new=outcome.new.name)
    if outcome.kept:
        yield say(_KEPT, names=say_names(outcome.kept, NAMED))
    yield from _describe_moments(outcome)
    if not outcome.rule.comparisons:
        yield say(_NO_TIMES if "slower" in outcome.rule.fail_on else _NOT_ASKED)
    if outcome.untimed:
        yield say_count(_UNTIMED, outcome.untimed)


def _describe_moments(outcome: Outcome) -> Iterator[str]:
    """Yield what two moments can decide; nothing if the sides were timed interleaved."""
    if outcome.moments == 1:
        return
    base, new = outcome.environments
    yield say(
        _MOMENTS, base_python=base.python, base_torch=base.torch, new_python=new.python, new_torch=new.torch
    )  # fmt: skip
    if base.torch != new.torch:
        yield say(_TORCH)
    if outcome.rule.comparisons:
        yield say(_RATIOS, percent=100 * outcome.rule.slower)


def describe_outcome(outcome: Outcome) -> str:
    """Return the outcome in one or two sentences."""
    base, rule = outcome.base.label, outcome.rule
    if outcome.outcome == "worse":
        words = _FOUND if outcome.moments == 1 else _FOUND | _FOUND_APART
        counts = ((fault, outcome.worse[fault]) for fault in rule.fail_on)
        found = ", ".join(say_count(words[fault], count) for fault, count in counts if count)
        told = [say(_WORSE, base=base, found=found)]
    elif outcome.unchecked:
        told = [say(_UNCHECKED, names=say_names(outcome.unchecked, NAMED))]
    elif outcome.outcome == "undecided":
        told = [say_count(_UNDECIDED, outcome.undecided, base=base)]
        told += [say(_PASSES)] if rule.undecided == "pass" else []
    else:
        told = [say_count(_HOLDS, outcome.compared, base=base, fail_on=", ".join(rule.fail_on))]
    told += [say_count(_MENDED, outcome.mended)] if outcome.mended else []
    told += [say(_ADDED, names=say_names(outcome.added, NAMED))] if outcome.added else []
    told += [say(_REMOVED, names=say_names(outcome.removed, NAMED))] if outcome.removed else []
    return " ".join(told)


def summarize(outcome: Outcome, content: ComparisonContent) -> ComparisonContent:
    """Return the content with the outcome as its first sentence, in place of those that it makes redundant."""
    first = Sentence(kind=KINDS[outcome.outcome], text=describe_outcome(outcome), anchor="")
    rest = (one for one in content.sentences if one.anchor not in ("", "only", "undecided"))
    return replace(content, sentences=(first, *rest))


def tabulate(content: ComparisonContent) -> tuple[list[TextTable], list[str]]:
    """Return the table of what changed, and the lines below it.

    There is a row for each cause of what became wrong, for each other check, and for each number.
    """
    causes = [_make_cause_row(group) for group in content.failures.groups]
    merged: dict[tuple[str, ...], list[Row]] = {}
    for section in content.sections:
        if section.anchor == "wrong" and causes:
            continue
        for row in (row for group in section.groups for row in group.rows):
            # Checks have no numbers: their cases are counted.
            own = (row.case,) if row.brief else ()
            merged.setdefault((section.kind, row.verdict, row.implementation, row.what, *own), []).append(row)
    rows = (*causes, *(_make_row(key[0], own) for key, own in merged.items()))
    lines = [say_count(_MORE, len(rows) - ROWS)] if len(rows) > ROWS else []
    lines += [say(_COMMAND, command=group.command) for group in content.failures.groups[:1]]
    return [TextTable(head=HEAD, rows=rows[:ROWS])] if rows else [], lines


def _make_cause_row(group: FailureGroup) -> tuple[str | Part, ...]:
    worst = ": ".join(filter(None, (group.worst.excess, group.worst.fault)))
    return Part("wrong", STYLES["bad"]), group.implementation, group.title, worst, say_count(_WHERE, group.cases)


def tabulate_ratios(outcome: Outcome) -> list[TextTable]:
    """Return the table of the ratios to the reference at the two moments; none if the sides were timed interleaved."""
    rows = tuple(
        (one.implementation, one.case, *map(_format_ratio, (one.base, one.new, one.factor)), one.verdict)
        for one in outcome.changes
        if outcome.moments == 2 and one.aspect == "time" and one.base and one.new
    )
    return [TextTable(head=RATIOS, rows=rows)] if rows else []


def _format_ratio(found: Interval | None) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]" if found else ""


def _make_row(kind: str, rows: list[Row]) -> tuple[str | Part, ...]:
    first, count = rows[0], sum(row.count for row in rows)
    where = first.where if first.brief else say_count(_CASES, count, case=first.case)
    # The detail of a time without a verdict is the reason.
    change = "; ".join(filter(None, (first.change, first.detail if kind == "gap" else "")))
    return Part(first.verdict, STYLES[kind]), first.implementation, first.what, change, where
