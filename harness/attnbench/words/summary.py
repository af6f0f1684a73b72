"""The summary in words: verdicts on conformance, marks of ratios, what to use, and what is missing."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from attnbench.analysis.answers import Answer
from attnbench.analysis.next_command import Kind, NextCommand
from attnbench.analysis.plain_names import clean_name, join_words
from attnbench.analysis.root_causes import RootCause
from attnbench.analysis.summary import Conformance, Mark, Place, Verdict
from attnbench.records.facts import Reason
from attnbench.refusals import MachineNeed
from attnbench.words import findings
from attnbench.words.answers import describe_regret, format_percent
from attnbench.words.causes import name_cause, title_cause
from attnbench.words.say import say, say_count, say_names

__all__ = [
    "CONFORMS",
    "FAILURES",
    "FIXED",
    "HEADING",
    "LEFT_OUT",
    "MARKS",
    "MORE_CAUSES",
    "MORE_TABLES",
    "NOT_TIMED",
    "PENDING",
    "PER_REFERENCE",
    "SEE_ALSO",
    "UNBROKEN",
    "describe_answers",
    "describe_conformance",
    "describe_conformance_briefly",
    "describe_disagreement",
    "describe_hidden_lengths",
    "describe_next",
    "describe_place",
    "describe_reason",
    "describe_refused",
    "describe_unchecked",
    "describe_untimed",
    "describe_wrong",
    "explain_marks",
    "title_failure",
]

# Most names in one sentence; the others are counted.
NAMED = 6
# Most neighbouring lengths that are listed one by one.
MOST_LENGTHS = 3
# Longest reason in the table, and in a line below it, in characters.
SHORT, LONG = 60, 200
# Sign after a ratio, and what it means; the baseline has none.
MARKS: dict[Mark, tuple[str, str]] = {
    "faster": ("-", "faster"),
    "slower": ("+", "slower"),
    "same": ("=", "within 1 %"),
    "not_slower": ("≤", "not slower"),
    "not_faster": ("≥", "not faster"),
    "undecided": ("?", "not decided"),
}
# A space at which no line is broken: between a sign and what it means.
UNBROKEN = "\u00a0"
# Sign of a time whose calls all had the same input values.
FIXED = "*"
_FIXED = "every call had the same input values, so results may have been kept"
_VERDICTS: dict[Verdict, str] = {
    "yes": "yes, {suite} {checked}",
    "only": "only {checked}",
    "no": "NO: {cause}; {checks}",
    "refused": "{reason}",
    "unknown": "not checked",
}
_BRIEF_NO = "NO, {checks}"
# Only the checks before timing ran.
_ONLY_TIMED = "profile only"
_REFUSES_ALL = "refuses every case"
# Sign of a verdict with failures that the implementation declares.
DECLARED = "†"
_DECLARED = "expected failures ({counts})"
_MISSING = "{verdict}, {count} not reached"
_INTERPRETED = "{verdict} (interpreted), CUDA kernels not run here"
_CHECKS = ("{count} check", "{count} checks")
_CASES = ("{count} case", "{count} cases")
_CALLS = ("{count} call", "{count} calls")
_CAUSES = "{cause} and {count} more"
_PLACE = "{machine}, {device}, {dtype}, {threads}"
_CHECKED_PLACE = "{machine}, {device}"
_THREADS = ("{count} thread", "{count} threads")
PER_REFERENCE = "times / {baseline}'s, by length"
_WRONG = ("{count} of {of} is wrong: {names}", "{count} of {of} are wrong: {names}")
_NONE_WRONG = ("no check of {names} failed", "no check of the {of} failed")
HEADING, CONFORMS, FAILURES = "Attention report", "conforms (cases)", "Failures"
_USE = "to use {pass_} (smallest worst case): {choices}"
_USE_NONE = "to use {pass_}: nothing that conforms was timed"
_CHOICE = "{name} at {lengths} ({bound})"
_FACTOR = "at most {factor} × the time of any other"
_NO_BOUND = "no bound either"
_RANGE = "{first} to {last}"
_BOUND_AGAIN = "at most {percent}"
_UNCHECKED = "not checked: {who}: {reason}"
_REFUSED = "refused: {who}: {reason}"
_UNTIMED = "not timed: {who}: {reason}"
_WHO = ("{names} ({count})", "{names} (each {count})")
PENDING = "not reached"
_PENDING = "not reached: {who}"
LEFT_OUT = "left out of all numbers, because it cannot be right: {things}"
_PLACES_DISAGREE = "places disagree on {pass_} at {length}: {choices}"
_AT_PLACE = "{name} on {place}"
_HIDDEN = ("length {lengths} of {pass_} is not shown here", "lengths {lengths} of {pass_} are not shown here")
_NEXT: dict[Kind, str] = {
    "finish": "to finish the run: {command}",
    "check": "to know whether they conform: {command}",
    "measure": "to decide more: {command}",
}
_CAUSE = "{name}  {title}"
_CAUSE_ON = "{name} on {machine}  {title}"
MORE_CAUSES = ("… and {count} more cause of failures", "… and {count} more causes of failures")
MORE_TABLES = ("1 more table is on the page of the report", "{count} more tables are on the page of the report")
NOT_TIMED = "{verdict}; not timed"
SEE_ALSO = "See also {links}."


def describe_conformance(one: Conformance) -> str:
    """Return the verdict with its cases, or with the gravest cause and the number of failed checks."""
    if one.verdict == "no":
        text = say(_VERDICTS["no"], cause=_name_causes(one.causes), checks=say_count(_CHECKS, len(one.failed_checks)))
    elif one.verdict == "refused":
        # What the machine lacks refuses every case, also those that are refused for another reason first.
        reasons = sorted((reason for reason, _ in one.refused), key=lambda reason: not isinstance(reason, MachineNeed))
        text = describe_reason(reasons[0], SHORT) if reasons else say(_REFUSES_ALL)
    elif one.verdict == "only" and one.suite == "perf":
        text = say(_ONLY_TIMED)
    else:
        text = say(_VERDICTS[one.verdict], suite=clean_name(one.suite), checked=one.checked)
    if one.interpreted:
        text = say(_INTERPRETED, verdict=text)
    if one.expected:
        text = f"{text} {DECLARED}"
    return say(_MISSING, verdict=text, count=one.missing) if one.missing else text


def describe_conformance_briefly(one: Conformance) -> str:
    """Return the verdict without the cause of failures, for a row that has times."""
    if one.verdict == "no":
        return say(_BRIEF_NO, checks=say_count(_CHECKS, len(one.failed_checks)))
    return describe_conformance(one)


def describe_wrong(rows: Mapping[str, Conformance]) -> str:
    """Return which implementations failed checks."""
    wrong = [name for name, one in rows.items() if one.verdict == "no"]
    checked = [name for name, one in rows.items() if one.verdict not in ("refused", "unknown")]
    if wrong:
        return say(_WRONG[len(wrong) > 1], count=len(wrong), of=len(checked), names=_list_names(wrong))
    return say(_NONE_WRONG[len(checked) > 1], names=_list_names(checked), of=len(checked)) if checked else ""


def describe_reason(reason: Reason, longest: int = LONG) -> str:
    """Return why a case was refused or not run, on one line."""
    return clean_name(findings.describe_reason(reason), longest)


def describe_place(place: Place) -> str:
    """Return machine, device, dtype and threads; where nothing was timed, machine and device."""
    if not place.machine:
        return clean_name(place.device)
    machine = clean_name(place.machine)
    if not place.dtype:
        return say(_CHECKED_PLACE, machine=machine, device=clean_name(place.device))
    threads = say_count(_THREADS, place.threads)
    return say(_PLACE, machine=machine, device=clean_name(place.device), dtype=clean_name(place.dtype), threads=threads)


def explain_marks(marks: Collection[Mark], *, fixed: bool = False, declared: Mapping[str, int]) -> str:
    """Return the legend of these marks, in a fixed order; empty without marks.

    ``declared`` has the number of failures that each implementation declares, of those that do.
    """
    parts = [f"{sign}{UNBROKEN}{say(words)}" for mark, (sign, words) in MARKS.items() if mark in marks]
    parts += [f"{FIXED}{UNBROKEN}{say(_FIXED)}"] * fixed
    if declared:
        counts = ", ".join(f"{clean_name(name)} {count}" for name, count in declared.items())
        parts.append(f"{DECLARED}{UNBROKEN}{say(_DECLARED, counts=counts)}")
    return "   ".join(parts)


def describe_answers(pass_: str, answers: Sequence[tuple[str, Answer | None]]) -> str:
    """Return what to use for a pass; ``answers`` are by length, and neighbouring equal choices share their words."""
    groups: dict[tuple[str, str], tuple[list[str], list[Answer]]] = {}
    for length, answer in answers:
        if answer is not None:
            lengths, own = groups.setdefault((answer.name, answer.unbounded or ""), ([], []))
            lengths.append(length)
            own.append(answer)
    if not groups:
        return say(_USE_NONE, pass_=pass_)
    texts: list[str] = []
    explained: set[str] = set()
    for (name, _), (lengths, own) in groups.items():
        kind = own[0].unbounded or ("regret" if any(answer.regret for answer in own) else "")
        bound = _describe_bound(own, again=kind in explained)
        explained |= {kind} - {""}
        shown = _list_lengths(lengths, [length for length, _ in answers])
        texts.append(say(_CHOICE, name=clean_name(name), lengths=shown, bound=bound))
    return say(_USE, pass_=pass_, choices=", ".join(texts))


def describe_unchecked(names: Mapping[str, int], reason: Reason) -> str:
    """Return on how many cases no check ran on these implementations, and why."""
    return say(_UNCHECKED, who=_name_counts(names, _CASES), reason=describe_reason(reason))


def describe_refused(names: Mapping[str, int], reason: Reason) -> str:
    """Return how many cases these implementations refused, and the most frequent reason."""
    return say(_REFUSED, who=_name_counts(names, _CASES), reason=describe_reason(reason))


def describe_untimed(names: Mapping[str, int], reason: Reason | None) -> str:
    """Return which implementations were not timed on how many calls, and why; without a reason: not reached."""
    who = _name_counts(names, _CALLS)
    return say(_PENDING, who=who) if reason is None else say(_UNTIMED, who=who, reason=describe_reason(reason))


def describe_disagreement(pass_: str, length: str, names: Iterable[tuple[Place, str]]) -> str:
    """Return what the places choose for one call."""
    choices = [say(_AT_PLACE, name=clean_name(name), place=describe_place(place)) for place, name in names]
    return say(_PLACES_DISAGREE, pass_=pass_, length=length, choices="; ".join(choices))


def describe_hidden_lengths(pass_: str, lengths: Sequence[str]) -> str:
    """Return which lengths a narrow table leaves out."""
    return say(_HIDDEN[len(lengths) > 1], lengths=join_words(lengths), pass_=pass_)


def describe_next(found: NextCommand) -> str:
    """Return what a command decides, with the command."""
    return say(_NEXT[found.kind], command=found.command)


def title_failure(cause: RootCause, machine: str) -> str:
    """Return the first line about a cause; ``machine``: where it was seen, empty if there is only one."""
    words = _CAUSE_ON if machine else _CAUSE
    return say(
        words, name=clean_name(cause.implementation), title=title_cause(cause), machine=clean_name(machine or "-")
    )


def _name_causes(causes: Sequence[RootCause]) -> str:
    """Return the gravest cause, and how many more there are."""
    first = clean_name(name_cause(causes[0]), SHORT)
    return say(_CAUSES, cause=first, count=len(causes) - 1) if len(causes) > 1 else first


def _list_lengths(lengths: Sequence[str], every: Sequence[str]) -> str:
    """Return lengths in words; many that are neighbours among ``every`` as a range."""
    start = every.index(lengths[0])
    if len(lengths) > MOST_LENGTHS and list(lengths) == list(every[start : start + len(lengths)]):
        return say(_RANGE, first=lengths[0], last=lengths[-1])
    return join_words(lengths)


def _describe_bound(answers: Sequence[Answer], *, again: bool) -> str:
    """Return the largest bound on the regret of these answers; ``again``: what it bounds was said before."""
    regret = max((answer.regret or 0.0 for answer in answers), default=0.0)
    if answers[0].unbounded is not None or not regret:
        return say(_NO_BOUND) if again else describe_regret(regret, answers[0].unbounded)
    if regret >= 1:
        return say(_FACTOR, factor=f"{1 + regret:.2g}")
    return say(_BOUND_AGAIN, percent=format_percent(regret)) if again else describe_regret(regret, None)


def _name_counts(names: Mapping[str, int], things: tuple[str, str]) -> str:
    """Return names with their numbers of things; those with equal numbers are named together."""
    alike: dict[int, list[str]] = {}
    for name, count in names.items():
        alike.setdefault(count, []).append(name)
    return "; ".join(
        say(_WHO[len(own) > 1], names=_list_names(own), count=say_count(things, count)) for count, own in alike.items()
    )


def _list_names(names: Sequence[str]) -> str:
    return say_names(map(clean_name, names), NAMED)
