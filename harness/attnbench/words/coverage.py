"""How much of a suite was checked on each implementation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attnbench.analysis.coverage import FEWEST_CHECKED, Counts, count_cases, count_checked, is_refused
from attnbench.records.outcome_facts import DeclarationChanged
from attnbench.records.types import Completion, Result
from attnbench.words.findings import describe_fact
from attnbench.words.say import say, say_count

__all__ = ["describe_asking", "describe_changes", "describe_completion", "describe_few", "list_coverage_lines"]

_COUNTS = "{checked} of {cases} cases checked{part}{refused}{left}, {failed} failed"
_IN_PART = " ({count} of them in part)"
_REFUSED = ", {count} refused"
_NOT_RUN = ", {count} not run"
_NONE = "none"
_NO_CASE = "no case was checked, and a verdict needs {fewest}"
_FEW = (
    "only {count} case was checked, and a verdict needs {fewest}",
    "only {count} cases were checked, and a verdict needs {fewest}",
)
# Combinations of values, by the number of values in each combination.
_COMBINATIONS = {1: "values", 2: "pairs", 3: "triples"}
_OTHER_COMBINATIONS = "combinations of {strength} values"
_SUPPLEMENTS = ("{count} supplementary case", "{count} supplementary cases")
_REFUSES = "refuses {left} of {listed} cases of {suite}; {further} of the pool added"
_TAKES_NONE = "takes none of the reference's {words}: nothing was covered"
_TAKES = "takes {taken} of the reference's {words}; {covered} of them covered{added}{late}"
_ADDED = ", with {further}"
_LATE = ("; {count} case was refused only when called", "; {count} cases were refused only when called")
_ALL, _SHARE, _LITTLE = "all", "{share} %", "less than 1 %"
_RAISED = (
    "declarations raised on {raised} of {asked} cases that were asked, which count as refused; the first exception: "
    "{first}"
)
_NO_ANSWER = "unsupported(case) gave no answer on many cases: {why}"
_SLOW = (
    "unsupported(case) is slow: {asked} cases took {seconds:.3g} s, {each:.3g} ms each; {left} further case not asked",
    "unsupported(case) is slow: {asked} cases took {seconds:.3g} s, {each:.3g} ms each; {left} further cases not asked",
)
_CHANGED = (
    "{change}; the first answer counts ({count} case, the first is {case})",
    "{change}; the first answer counts ({count} cases, the first is {case})",
)
_NOT_STARTED = "not started"
_OF_NAME = "{name}: {line}"
_NAME_DOES = "{name} {line}"
_TOO_MANY_REFUSED = "{checked} of {cases} cases checked, {refused} refused; a verdict needs {fewest} checked cases"


def describe_few(checked: int) -> str:
    """Return why this number of checked cases is too small for a verdict; empty if the number is large enough."""
    if checked >= FEWEST_CHECKED:
        return ""
    return say_count(_FEW, checked, fewest=FEWEST_CHECKED) if checked else say(_NO_CASE, fewest=FEWEST_CHECKED)


def describe_completion(completion: Completion) -> str:
    """Return which share of the reference's combinations an implementation takes, and which share of these was covered.

    An example is "takes 31 % of the reference's pairs; all of them covered, with 92 supplementary cases". If the suite
    does not cover combinations, the line has only the supplementary cases. The text is empty if the implementation
    takes every case.
    """
    further = say_count(_SUPPLEMENTS, len(completion.cases))
    left = sum(len(places) for _, places in completion.list_refusals()) + len(completion.unanswered)
    if not completion.strength:
        told = say(_REFUSES, left=left, listed=completion.listed, suite=completion.suite, further=further)
        return told if completion.cases else ""
    if not (left or completion.refused_when_called):
        return ""
    words = say(_COMBINATIONS.get(completion.strength, _OTHER_COMBINATIONS), strength=completion.strength)
    if not completion.taken:
        return say(_TAKES_NONE, words=words)
    called = completion.refused_when_called or 0
    return say(
        _TAKES,
        taken=_format_share(completion.taken, completion.combinations),
        words=words,
        covered=_format_share(completion.covered, completion.taken),
        added=say(_ADDED, further=further) if completion.cases else "",
        late=say_count(_LATE, called) if called else "",
    )


def describe_asking(completion: Completion) -> Iterator[str]:
    """Yield a line for each thing that went wrong when the implementation was asked which cases it supports."""
    yield from completion.notes
    if completion.raised and completion.first_raised is not None:
        first = describe_fact(completion.first_raised)
        yield say(_RAISED, raised=completion.raised, asked=completion.asked, first=first)
    if completion.no_answer is not None:
        yield say(_NO_ANSWER, why=describe_fact(completion.no_answer))
    elif completion.unasked:
        asked, seconds = completion.asked, completion.asked_s
        each = 1e3 * seconds / max(asked, 1)
        yield say(_SLOW[completion.unasked != 1], asked=asked, seconds=seconds, each=each, left=completion.unasked)


def list_coverage_lines(
    results: Sequence[Result], completions: Mapping[str, Completion], planned: Mapping[str, int] | None = None
) -> Iterator[str]:
    """Yield lines about what was checked on each implementation of a run, each beginning with the name.

    ``completions`` are by display name. ``planned`` maps each name to the number of planned cases, 0 if not known. With
    ``planned``, the first line of every implementation counts its cases. Without ``planned``, a line counts them only
    where refusals left fewer than ``FEWEST_CHECKED`` checked cases.
    """
    of_name: dict[str, list[Result]] = {name: [] for name in planned or ()}
    for result in results:
        of_name.setdefault(result.implementation, []).append(result)
    for name, own in of_name.items():
        if planned is not None:
            counts = count_cases(own, planned.get(name, 0))
            yield say(_OF_NAME, name=name, line=_describe_counts(counts) if own else say(_NOT_STARTED))
        if name in completions:
            if line := describe_completion(completions[name]):
                yield say(_NAME_DOES, name=name, line=line)
            yield from (say(_OF_NAME, name=name, line=line) for line in describe_asking(completions[name]))
        yield from (say(_OF_NAME, name=name, line=line) for line in describe_changes(own))
        if planned is None and (line := _describe_refusals(own)):
            yield say(_OF_NAME, name=name, line=line)


def describe_changes(results: Iterable[Result]) -> Iterator[str]:
    """Yield on how many cases the declaration changed after the run was planned, with the first of these cases."""
    changed = {
        result.case: warning
        for result in results
        for finding in result.findings
        for warning in finding.warnings
        if isinstance(warning, DeclarationChanged)
    }
    if changed:
        case, change = next(iter(changed.items()))
        yield say_count(_CHANGED, len(changed), change=describe_fact(change), case=case)


def _describe_counts(counts: Counts) -> str:
    """Return the counts: "15 of 30 cases checked (2 of them in part), 15 refused, none failed"."""
    return say(
        _COUNTS,
        checked=counts.checked,
        cases=counts.cases,
        part=say(_IN_PART, count=counts.in_part) if counts.in_part else "",
        refused=say(_REFUSED, count=counts.refused) if counts.refused else "",
        left=say(_NOT_RUN, count=counts.not_run) if counts.not_run else "",
        failed=counts.failed or say(_NONE),
    )


def _describe_refusals(results: Sequence[Result]) -> str:
    """Return how many cases were checked and refused; empty unless refusals left fewer than ``FEWEST_CHECKED``."""
    refused, checked = sum(map(is_refused, results)), count_checked(results)
    if not checked < FEWEST_CHECKED <= checked + refused:
        return ""
    return say(_TOO_MANY_REFUSED, checked=checked, cases=len(results), refused=refused, fewest=FEWEST_CHECKED)


def _format_share(part: int, whole: int) -> str:
    """Format a share in per cent, rounded down: "all" only if no part is missing, and "none" only if ``part`` is 0."""
    if part >= whole:
        return say(_ALL)
    return say(_SHARE, share=100 * part // whole) if 100 * part >= whole else say(_LITTLE if part else _NONE)
