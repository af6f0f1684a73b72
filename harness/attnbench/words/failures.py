"""The failures of a report in words: what a group is about, how large it is, and what is not shown of it."""

from collections.abc import Mapping

from attnbench.analysis.plain_names import clean_name, join_words
from attnbench.records.types import PERF
from attnbench.words.say import say, say_count

__all__ = [
    "OWNER",
    "REPRODUCING",
    "count_cases",
    "describe_excess",
    "describe_followers",
    "describe_hidden_groups",
    "describe_statuses",
    "introduce_case",
    "introduce_follower",
    "list_checks",
]

# How to use the commands of the groups.
REPRODUCING = (
    "Each command repeats one failure: exit code 1 says that it fails again. Where an implementation is a file, run "
    "the command in the folder from which this path leads to the file."
)
# Most checks that a list of checks names, or one more; a cause such as an exception may fail every check.
MOST_CHECKS = 6
_HIDDEN = (
    "Shown are {shown} of {count} group of failures.",
    "Shown are {shown} of {count} groups of failures: the largest group of each implementation, then the largest "
    "others. failures.csv has all groups.",
)
OWNER = "{name} on {machine}"
_ONE_STATUS = "{status}, {where}"
_STATUSES = "{where}: {statuses}"
_STATUS = "{count} {status}"
_CASES = ("{count} case", "{count} cases")
_CASES_OF = ("{count} case of {suite}", "{count} cases of {suite}")
_CASES_OF_PROFILE = ("{count} case of the profile", "{count} cases of the profile")
_ONE_CASE = "One of the cases:"
_WORST = "Worst error: {excess}:"
_ERROR = "Error: {excess}:"
_ONE_FOLLOWER = "One of them:"
_WORST_FOLLOWER = "The worst of them: {excess}:"
_EXACT = "must be exact; off by up to {off}"
_TIMES_ALLOWED = "{excess} × the allowed error"
_FOLLOWERS = (
    "{count} more finding does not name this cause: {checks}. {why}",
    "{count} more findings do not name this cause: {checks}. {why}",
)
_CHECK = "{check} on {count}"
_MORE_CHECKS = "and {count} more checks (see findings.csv)"


def describe_hidden_groups(shown: int, count: int) -> str:
    """Return how many groups of failures are shown; empty if all are."""
    return say_count(_HIDDEN, count, shown=shown) if shown < count else ""


def describe_statuses(statuses: Mapping[str, int], where: str) -> str:
    """Return the statuses of a group's findings and where they were found."""
    if len(statuses) == 1:
        return say(_ONE_STATUS, status=next(iter(statuses)), where=where)
    told = ", ".join(say(_STATUS, count=count, status=status) for status, count in statuses.items())
    return say(_STATUSES, where=where, statuses=told)


def count_cases(suites: Mapping[str, int]) -> str:
    """Return the number of cases of each suite, and of profiles."""
    return join_words(_count_cases(suite, count) for suite, count in suites.items())


def introduce_case(excess: str, *, worst: bool) -> str:
    """Return what the shown case of a group is; ``excess`` is its error in words, or empty."""
    if not excess:
        return say(_ONE_CASE)
    return say(_WORST if worst else _ERROR, excess=excess)


def introduce_follower(excess: str) -> str:
    """Return what the shown case of the failures that do not name the cause is."""
    return say(_WORST_FOLLOWER, excess=excess) if excess else say(_ONE_FOLLOWER)


def describe_excess(number: str, *, exact: bool) -> str:
    """Return an error divided by the allowed error; ``exact``: no error is allowed, and the number is the error."""
    text = number.replace("inf", "∞")
    return say(_EXACT, off=text) if exact else say(_TIMES_ALLOWED, excess=text)


def describe_followers(checks: Mapping[str, int], why: str) -> str:
    """Return the findings that do not name a cause, by check, and why they are counted with it."""
    return say_count(_FOLLOWERS, sum(checks.values()), checks=list_checks(checks), why=why)


def list_checks(counts: Mapping[str, int]) -> str:
    """Return the first checks, each with the number of its cases, and how many more there are."""
    told = [say(_CHECK, check=check, count=count) for check, count in counts.items()]
    left = len(told) - MOST_CHECKS
    return ", ".join(told if left <= 1 else [*told[:MOST_CHECKS], say(_MORE_CHECKS, count=left)])


def _count_cases(suite: str, count: int) -> str:
    if suite == PERF:
        return say_count(_CASES_OF_PROFILE, count)
    return say_count(_CASES_OF, count, suite=clean_name(suite)) if suite else say_count(_CASES, count)
