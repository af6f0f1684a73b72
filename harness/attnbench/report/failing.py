"""What is wrong with the failing implementations of one place, in one sentence for each."""

from collections.abc import Iterator, Mapping, Sequence, Set

from attnbench.analysis.plain_names import clean_name, join_words
from attnbench.analysis.root_causes import RootCause, find_root_causes
from attnbench.records.types import Result, Status
from attnbench.report.checked import list_cases
from attnbench.report.failures import describe_cause, describe_worst, rank_cause
from attnbench.report.numbers import format_count

__all__ = ["describe_failing"]

# Most failing implementations that are named, each with its causes; the others are counted.
NAMED_FAILING = 4
# Most causes of failures that are named for one implementation, or one more.
NAMED_CAUSES = 2
# Most checks that are named, or one more.
NAMED_CHECKS = 4
# Longest words for a cause, in characters.
LONGEST_CAUSE = 110
# Words for an implementation with failures; if it has several of these statuses, the first one here decides.
FAILING: dict[Status, str] = {
    "failed": "is wrong",
    "error": "raises exceptions",
    "crashed": "crashes",
    "timeout": "does not end in time",
    "out_of_memory": "runs out of memory",
    "unexpected_pass": "passes what it is declared to fail",
}


def describe_failing(by_name: Mapping[str, Sequence[Result]]) -> Iterator[tuple[str, str]]:
    """Yield the name of each of the first failing implementations with a sentence, by ``rank_cause``.

    The last sentence counts the others, and has no name.
    """
    failing = []
    for name, own in by_name.items():
        # The causes in the order of the section on failures.
        causes = sorted(find_root_causes(own), key=rank_cause)
        if causes:
            statuses = {failure.finding.status for cause in causes for failure in cause.failures}
            words = next(words for status, words in FAILING.items() if status in statuses)
            cases = {failure.case for cause in causes for failure in cause.failures}
            words += " in at least one way" * any(cause.attributed for cause in causes)
            failing.append((name, words, causes, cases))
    failing.sort(key=lambda one: (rank_cause(one[2][0]), -len(one[3]), one[0]))
    for name, words, causes, cases in failing[:NAMED_FAILING]:
        yield (
            name,
            f"{clean_name(name)} {words}: {_describe_causes(causes)}. {_count_failed(causes, cases, by_name[name])}",
        )
    left = failing[NAMED_FAILING:]
    if left:
        yield "", f"{len(left)} more fail{'s' * (len(left) == 1)}."


def _describe_causes(causes: Sequence[RootCause]) -> str:
    """Return what is wrong, in words: the first causes, each with its number of findings, and what is left.

    The cause with the most findings is among those that are named. Checks without a known cause are one of them.
    """
    unknown = [cause for cause in causes if _is_unknown(cause)]
    groups = [[cause] for cause in causes if not _is_unknown(cause)]
    if unknown:
        groups.insert(causes.index(unknown[0]), unknown)
    if len(groups) == 1 and not any(cause.attributed for cause in groups[0]):
        return _describe_group(groups[0])
    total = sum(len(cause.failures) for cause in causes)
    # If only one more is left, it is named, because a count would take as many words.
    shown = groups[: NAMED_CAUSES + (len(groups) == NAMED_CAUSES + 1)]
    largest = max(groups, key=_count_findings)
    if largest not in shown:
        shown[-1] = largest
    if not any(cause.says_what_to_mend for group in shown for cause in group):
        shown += [group for group in groups if group[0].says_what_to_mend][:1]
    parts = [f"{_describe_group(group)}, in {_count_findings(group) - _count_following(group)}" for group in shown]
    parts[0] += f" of {format_count(total, 'failed finding')}"
    parts = [part + _tell_following(group) for part, group in zip(parts, shown, strict=True)]
    left = len(groups) - len(shown)
    others = total - sum(map(_count_findings, shown))
    return "; ".join([*parts, *[f"{format_count(left, 'more cause')}, in {others}"] * bool(left)])


def _is_unknown(cause: RootCause) -> bool:
    """Whether only the failed check is known."""
    return len(cause.checks) == 1 and describe_cause(cause) in cause.checks


def _count_findings(group: Sequence[RootCause]) -> int:
    return sum(len(cause.failures) for cause in group)


def _count_following(group: Sequence[RootCause]) -> int:
    return sum(len(cause.attributed) for cause in group)


def _tell_following(group: Sequence[RootCause]) -> str:
    """Return how many further findings causes may explain, in brackets; empty if there are none."""
    count = _count_following(group)
    return f" ({count} more may follow from it)" if count else ""


def _describe_group(group: Sequence[RootCause]) -> str:
    """Return a cause in words, or the checks that fail without a known cause, with their largest error."""
    if not _is_unknown(group[0]):
        return clean_name(describe_cause(group[0], by=False), LONGEST_CAUSE)
    names = (clean_name(check, LONGEST_CAUSE) for cause in group for check in cause.checks)
    checks = list(dict.fromkeys(names))
    left = len(checks) - NAMED_CHECKS
    shown = checks if left <= 1 else [*checks[:NAMED_CHECKS], f"{left} more checks"]
    worst = describe_worst(group)
    return f"{join_words(shown)} {'fails' if len(checks) == 1 else 'fail'}" + f" (worst: {worst})" * bool(worst)


def _count_failed(causes: Sequence[RootCause], cases: Set[str], results: Sequence[Result]) -> str:
    """Return how many findings and checks failed, and on how many cases of suites and of profiles."""
    findings = format_count(sum(len(cause.failures) for cause in causes), "finding")
    checks = format_count(len({check for cause in causes for check in cause.checks}), "check")
    by_suite = list_cases([result for result in results if result.case in cases])
    return f"{findings} of {checks} failed, on {join_words(by_suite)}."
