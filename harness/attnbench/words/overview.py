"""The first screen of a report in words: who is wrong, what to use, what is missing, and the texts of its cells."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attnbench.analysis.answers import Answer, Unbounded
from attnbench.analysis.completeness import Completeness
from attnbench.analysis.plain_names import clean_name, join_words
from attnbench.analysis.speed_verdict import Mark
from attnbench.analysis.summary import Column, Conformance, Place, SummaryTable
from attnbench.words.say import say

__all__ = [
    "LEGEND",
    "MARKS",
    "describe_bound",
    "describe_verdict",
    "list_answers",
    "name_column",
    "name_pass",
    "name_place",
    "tell_missing",
    "tell_wrong",
]

# The sign of each comparison with the baseline, in the order of the legend.
MARKS: Mapping[Mark, str] = {
    "faster": "−", "slower": "+", "same": "=", "not_slower": "≤", "not_faster": "≥", "undecided": "?",
}  # fmt: skip
LEGEND: Mapping[Mark, str] = {
    "faster": "faster",
    "slower": "slower",
    "same": "within 1 %",
    "not_slower": "not slower",
    "not_faster": "not faster",
    "undecided": "not decided",
}
# Most names, and most causes of one name, in the sentence about failures.
MOST_WRONG, MOST_CAUSES = 4, 1
# Why an answer has no bound.
_UNBOUNDED: Mapping[Unbounded, str] = {
    "alone": "the only one timed",
    "one_process": "no bound: timed in 1 process",
    "disturbed": "no bound: too many processes were disturbed",
    "control": "no bound: the A/A control failed",
}
# Modes that the name of the pass implies.
_PLAIN_MODES = ("inference", "train")


def name_place(place: Place) -> str:
    """Name a place: machine, device, dtype and threads; the last two are not known without timed calls."""
    parts = [clean_name(place.machine), place.device, place.dtype]
    if place.threads:
        parts.append(say("{count} thread" if place.threads == 1 else "{count} threads", count=place.threads))
    return ", ".join(part for part in parts if part)


def name_pass(column: Column) -> str:
    """Name the pass of a column, with the mode where the pass does not imply it."""
    if column.mode in _PLAIN_MODES:
        return column.pass_
    return say("{name} ({mode})", name=column.pass_, mode=column.mode)


def name_column(column: Column) -> str:
    """Name the length of a column: "512", or "1:512" for one query and 512 keys."""
    if column.queries == column.keys or not column.queries or not column.keys:
        return str(max(column.queries, column.keys))
    return say("{queries}:{keys}", queries=column.queries, keys=column.keys)


def describe_verdict(found: Conformance, cause: str, refusal: str) -> str:
    """Return the verdict on conformance in a few words; ``cause`` and ``refusal`` name the gravest and the first."""
    match found.verdict:
        case "yes":
            return say("yes, {suite} {count}", suite=clean_name(found.suite), count=found.checked)
        case "only":
            return say("only {count}", count=found.checked)
        case "no":
            return _describe_failure(found, cause)
        case "refused":
            return say("refused: {why}", why=refusal) if refusal else say("refused")
        case _:
            return say("not checked")


def _describe_failure(found: Conformance, cause: str) -> str:
    checks = len({check for one in found.causes for check in one.checks})
    if not cause:
        return say("NO")
    template = "NO: {cause}" if checks <= 1 else "NO: {cause}; {count} checks"
    return say(template, cause=cause, count=checks)


def tell_wrong(wrong: Sequence[tuple[str, str]], checked: int) -> str:
    """Say who is wrong and why, of ``checked`` subjects; ``wrong`` has each name with its gravest cause."""
    if not checked:
        return say("Nothing was checked.")
    if not wrong:
        template = "None of {count} is wrong." if checked > 1 else "Nothing is wrong."
        return say(template, count=checked)
    told = [say("{name} ({cause})", name=clean_name(name), cause=cause) for name, cause in wrong[:MOST_WRONG]]
    left = len(wrong) - len(told)
    told += [say("{count} more", count=left)] if left else []
    template = "{wrong} of {count} is wrong: {names}." if len(wrong) == 1 else "{wrong} of {count} are wrong: {names}."
    return say(template, wrong=len(wrong), count=max(checked, len(wrong)), names=join_words(told))


def list_answers(table: SummaryTable) -> Iterator[tuple[str, str]]:
    """Yield the name of each pass, and what to use at which length, with the largest bound of each name."""
    passes: dict[str, list[Column]] = {}
    for column in table.columns:
        passes.setdefault(name_pass(column), []).append(column)
    for name, columns in passes.items():
        chosen: dict[str, list[Column]] = {}
        for column in columns:
            if answer := table.answers.get(column):
                chosen.setdefault(answer.name, []).append(column)
        if chosen:
            told = [_tell_choice(who, own, table, alone=len(chosen) == 1) for who, own in chosen.items()]
            yield name, ", ".join(told)


def _tell_choice(name: str, columns: Sequence[Column], table: SummaryTable, *, alone: bool) -> str:
    worst = max((table.answers[one] for one in columns), key=_rank_bound)
    where = "" if alone and len(columns) == len(table.columns) else join_words(map(name_column, columns))
    template = "{name} at {where} ({bound})" if where else "{name} ({bound})"
    return say(template, name=clean_name(name), where=where, bound=describe_bound(worst))


def _rank_bound(answer: Answer) -> float:
    return float("inf") if answer.regret is None else answer.regret


def describe_bound(answer: Answer, *, short: bool = False) -> str:
    """Say how far an answer may be behind any other that conforms; ``short``: for a cell of a table."""
    if answer.regret is None:
        return say(_UNBOUNDED[answer.unbounded or "alone"])
    percent = 100 * answer.regret
    if short:
        return say("≤ {percent} %", percent=_format_percent(percent))
    if not percent:
        return say("no other is faster")
    return say("at most {percent} % behind any other", percent=_format_percent(percent))


def _format_percent(percent: float) -> str:
    if not percent:
        return "0"
    return f"{percent:.1f}" if percent < 10 else f"{percent:.0f}"


def tell_missing(incomplete: Iterable[Completeness], pending: int, planned: int) -> Iterator[str]:
    """Yield sentences about what the runs lack: calls without a time, checks, and lines that cannot be read."""
    runs = list(incomplete)
    cases = sum(one.cases for run in runs for one in run.unfinished)
    parts = [say("{count} planned checks of cases", count=cases)] if cases else []
    parts += [say("{count} of {planned} planned times", count=pending, planned=planned)] if pending else []
    unreadable = sum(run.unreadable for run in runs)
    parts += [say("{count} lines that cannot be read", count=unreadable)] if unreadable else []
    if parts:
        yield say("Missing: {what}.", what=join_words(parts))
    if runs:
        names = join_words(clean_name(run.run) for run in runs[:MOST_WRONG])
        yield say("Not complete: run {names}.", names=names)
