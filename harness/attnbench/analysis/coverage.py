"""How much of a suite was checked on an implementation: in a line for each, and whether it is enough for a verdict."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attnbench.records.types import CHANGED_MIND, DECLARED_UNSUPPORTED, Completion, Finding, Result

__all__ = [
    "FEWEST_CHECKED",
    "VERDICT_SUITES",
    "count_checked",
    "describe_completion",
    "describe_few",
    "list_coverage_lines",
]

# Fewest checked cases of a verdict. Foreign modules had been said to conform after 2, 1 and 0 cases (issue 20); the
# smallest suite, ``quick``, has 30 cases, with one form of each argument.
FEWEST_CHECKED = 20
# Suites of which a whole run is a verdict.
VERDICT_SUITES = ("core", "full")
# Restrictions that a line names; the others are counted.
SHOWN = 4
# Words for combinations of values, by their number of values.
COMBINATIONS = {1: "values", 2: "pairs", 3: "triples"}
SILENT = frozenset({"unsupported", "not_run"})


def count_checked(results: Iterable[Result]) -> int:
    """Return the number of results with a finding that is neither refused nor not run.

    A finding about the refusal itself does not count.
    """
    return sum(any(map(_is_of_a_check, result.findings)) for result in results)


def describe_few(checked: int) -> str:
    """Return why so few checked cases are no verdict; empty if they are enough."""
    if checked >= FEWEST_CHECKED:
        return ""
    counted = f"only {checked} case{'s were' if checked != 1 else ' was'}" if checked else "no case was"
    return f"{counted} checked, and a verdict needs {FEWEST_CHECKED}"


def describe_completion(completion: Completion) -> str:
    """Return how much of the reference's combinations is taken, and how much of that was covered.

    An example is "takes 31 % of the reference's pairs (self-attention, no weights); all of them covered, with 92
    further cases". The text is empty if no case was refused.
    """
    if not completion.strength or not (completion.refused or completion.unanswered or completion.refused_when_called):
        return ""
    words = COMBINATIONS.get(completion.strength, f"combinations of {completion.strength} values")
    if not completion.taken:
        return f"takes none of the reference's {words}: nothing was covered"
    shown = list(completion.restrictions[:SHOWN])
    left = len(completion.restrictions) - len(shown)
    shown += [f"and {left} more restriction{'s' * (left > 1)}"] if left else []
    only = f" ({', '.join(shown)})" if shown else ""
    further = len(completion.cases)
    drawn = f", with {further} further case{'s' * (further > 1)}" if further else ""
    called = completion.refused_when_called or 0
    counted = f"{called} cases were" if called > 1 else "1 case was"
    late = f"; {counted} refused only when called" if called else ""
    return (
        f"takes {_format_share(completion.taken, completion.combinations)} of the reference's {words}{only}; "
        f"{_format_share(completion.covered, completion.taken)} of them covered{drawn}{late}"
    )


def list_coverage_lines(results: Sequence[Result], completions: Mapping[str, Completion]) -> Iterator[str]:
    """Yield lines about what was checked on each implementation of a run, each beginning with the name.

    ``completions`` are by display name.
    """
    for name in dict.fromkeys(result.implementation for result in results):
        own = [result for result in results if result.implementation == name]
        if name in completions:
            if line := describe_completion(completions[name]):
                yield f"{name} {line}"
            for note in completions[name].notes:
                yield f"{name}: {note}"
        yield from (f"{name}: {line}" for line in _describe_changes(own))
        if line := _describe_refusals(own):
            yield f"{name}: {line}"


def _describe_refusals(results: Sequence[Result]) -> str:
    """Return how many cases were checked, if refusals are why these are fewer than ``FEWEST_CHECKED``; else no text."""
    refused = sum(_is_refused(result) for result in results)
    checked = count_checked(results)
    if not checked < FEWEST_CHECKED <= checked + refused:
        return ""
    return f"{checked} of {len(results)} cases checked, {refused} refused"


def _is_refused(result: Result) -> bool:
    return not any(map(_is_of_a_check, result.findings)) and any(f.status == "unsupported" for f in result.findings)


def _describe_changes(results: Iterable[Result]) -> Iterator[str]:
    """Yield how many declarations changed after the run was planned, with the first of them."""
    changed = [
        (result.case, warning)
        for result in results
        for finding in result.findings
        for warning in finding.warnings
        if warning.startswith(CHANGED_MIND)
    ]
    if changed:
        case, warning = changed[0]
        cases = len(Counter(case for case, _ in changed))
        yield f"{warning}; the first answer counts ({cases} case{'s' * (cases > 1)}, the first is {case})"


def _is_of_a_check(finding: Finding) -> bool:
    return finding.status not in SILENT and not finding.reason.startswith(DECLARED_UNSUPPORTED)


def _format_share(part: int, whole: int) -> str:
    """Format a share in per cent, rounded down: "all" only if no part is missing, and "none" only if ``part`` is 0."""
    if part >= whole:
        return "all"
    return f"{100 * part // whole} %" if 100 * part >= whole else "less than 1 %" if part else "none"
