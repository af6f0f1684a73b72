"""The verdict of a report, in sentences: what was checked, and how much of it passed."""

from collections import Counter
from collections.abc import Iterator, Sequence

import pandas as pd

from attnbench.records.types import FAILURES, Result, Status
from attnbench.report import tables
from attnbench.report.numbers import format_count, format_thousands
from attnbench.report.series import Series

__all__ = ["make_headline"]

# Statuses of findings whose check did not run.
SILENT: frozenset[Status] = frozenset({"unsupported", "not_run"})
# Words of the headline for statuses that are neither passed nor a failure.
WORDS = {
    "expected_failure": "failed as expected",
    "unsupported": "refused with a reason",
    "not_run": "not run",
}


def make_headline(
    results: Sequence[Result], found: pd.DataFrame, series: Sequence[Series], undecided: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the sentences that say what was checked, and how many findings passed or failed.

    ``undecided`` are the implementations on which there is no verdict.
    """
    names, cases = len({r.implementation for r in results}), len({r.case for r in results})
    counts = Counter(found["status"])
    checked = sum(count for status, count in counts.items() if status not in SILENT)
    bad = sum(counts[status] for status in FAILURES)
    if found.empty:
        yield "These runs contain no findings: nothing was checked."
        return
    counted = ((names, "implementation"), (cases, "case"), (found["check"].nunique(), "check"))
    start = f"{', '.join(format_count(*one) for one in counted)}:"
    if not checked:
        yield f"{start} nothing was checked."
    elif bad:
        yield f"{start} {format_thousands(bad)} of {format_count(checked, 'finding')} failed."
    elif undecided:
        yield f"{start} no finding of {format_count(checked, 'finding')} failed; no verdict on {', '.join(undecided)}."
    elif counts["expected_failure"]:
        passed = format_thousands(counts["passed"])
        yield f"{start} of {format_count(checked, 'finding')}, {passed} passed and the others failed as expected."
    else:
        yield f"{start} all {format_count(checked, 'finding')} passed."
    others = [f"{format_thousands(counts[status])} {words}" for status, words in WORDS.items() if counts[status]]
    if others:
        yield f"{', '.join(others)}."
    timed = sum(len(one.timings) for one in series)
    if timed:
        yield f"{format_count(timed, 'call')} timed."
    elif tables.tabulate_untimed(results).empty:
        yield "These runs contain no timings: speed was not measured."
    else:
        yield "These runs contain no timings; the reason is listed for each call below."
