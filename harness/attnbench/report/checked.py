"""What was checked and timed at one place, in one line."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set

from attnbench.analysis.plain_names import clean_name
from attnbench.records.types import FAILURES, PERF, SILENT, Result, Status
from attnbench.report.numbers import format_count, format_thousands

__all__ = ["describe_checked", "find_checked", "list_cases"]

# Words for statuses, in the order in which they are told.
WORDS: dict[Status, str] = {
    "passed": "passed",
    "failed": "failed",
    "error": "raised an exception",
    "crashed": "crashed",
    "timeout": "did not end in time",
    "out_of_memory": "ran out of memory",
    "unexpected_pass": "passed unexpectedly",
    "expected_failure": "failed as expected",
    "unsupported": "refused with a reason",
    "not_run": "not run",
}


def describe_checked(results: Sequence[Result], asked: Set[str], *, untold: bool) -> str:
    """Return what was checked, and how many calls were timed; empty if nothing was checked.

    ``asked`` are the implementations of the runs. ``untold``: no other sentence says that no call was timed.
    """
    if not any(result.findings for result in results):
        return ""
    seen = find_checked(results)
    # What refuses every case, such as for want of a device, is counted among the names only.
    counted_results = [one for one in results if one.implementation in seen or not seen]
    statuses = Counter(finding.status for result in counted_results for finding in result.findings)
    checks = {finding.check for result in counted_results for finding in result.findings}
    wanted = asked | {result.implementation for result in results}
    names = format_count(len(wanted), "implementation")
    counted = (
        f"{len(seen)} of {names}" if wanted - seen else names,
        *list_cases(results),
        format_count(len(checks), "check"),
        f"{format_count(sum(statuses.values()), 'finding')}, each of one check on one case",
    )
    parts = [f"{format_thousands(statuses[status])} {words}" for status, words in WORDS.items() if statuses[status]]
    if not statuses.keys() & FAILURES:
        parts.insert(
            "passed" in statuses, "none failed unexpectedly" if statuses["expected_failure"] else "none failed"
        )
    findings = f" ({', '.join(parts)})"
    timed = sum(result.timing is not None for result in results)
    if timed:
        calls = f"{format_count(timed, 'call')} timed"
    elif reasons := ", ".join(_count_untimed(results)):
        calls = f"no call was timed ({reasons})"
    else:
        calls = "no call was timed" if untold else ""
    return f"Checked: {', '.join(counted)}{findings}{'; ' * bool(calls)}{calls}."


def find_checked(results: Iterable[Result]) -> frozenset[str]:
    """Return the implementations of which a check ran; of the others, every case is refused or was not run."""
    return frozenset(one.implementation for one in results if any(f.status not in SILENT for f in one.findings))


def _count_untimed(results: Sequence[Result]) -> Iterator[str]:
    """Yield for how many calls each kind of reason says why the call was not timed."""
    kinds = Counter(_classify_untimed(result.untimed) for result in results if result.untimed)
    for words, count in kinds.most_common():
        yield f"{format_thousands(count)} {words}"


def _classify_untimed(reason: str) -> str:
    status = reason.partition(":")[0]
    return "failed a check" if status in FAILURES else "refused" if status == "unsupported" else "left out"


def list_cases(results: Sequence[Result]) -> Iterator[str]:
    """Yield the number of cases of each suite, and of profiles."""
    by_suite: defaultdict[str, set[str]] = defaultdict(set)
    for result in results:
        by_suite[result.suite].add(result.case)
    for suite, cases in sorted(by_suite.items(), key=lambda item: (item[0] == PERF, item[0])):
        of = " of the profile" if suite == PERF else f" of {clean_name(suite)}" if suite else ""
        yield format_count(len(cases), "case") + of
