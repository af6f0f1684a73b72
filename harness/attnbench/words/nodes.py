"""Nodes of the same kind in words: where they disagree on failures, and on the ratios of how many calls."""

from collections.abc import Iterable

from attnbench.analysis.plain_names import clean_name, join_words
from attnbench.analysis.speed_verdict import EFFECT
from attnbench.words.say import say, say_count

__all__ = ["AGREED", "describe_failures", "describe_times"]

_FAILURES = (
    "{name} on {machine}: {count} case failed on node {failing} and not on {passing}. The failures count.",
    "{name} on {machine}: {count} cases failed on node {failing} and not on {passing}. The failures count.",
)
AGREED = (
    "{count} result was checked on several nodes of one kind, and none failed on some of the nodes only.",
    "{count} results were checked on several nodes of one kind, and none failed on some of the nodes only.",
)
_TIMED = (
    "{count} call was timed on several nodes of one kind{found}",
    "{count} calls were timed on several nodes of one kind{found}",
)
_TOO_FEW = ", in too few processes to compare the ratios of the nodes."
_NOWHERE = ". Nowhere do the nodes disagree by more than the intervals of the ratios."
_DIFFER = (
    ". On {rows} of them the ratios to the reference differ by more than {percent:g} %, and their intervals do not "
    "overlap: find out what differs between the nodes before you use either ratio.{more}"
)
_MORE = " nodes.csv has all {rows}."


def describe_failures(name: str, machine: str, *, cases: int, failing: Iterable[str], passing: Iterable[str]) -> str:
    """Return on which nodes cases of an implementation failed, and on which they did not."""
    nodes = {"failing": join_words(failing), "passing": join_words(passing)}
    return say_count(_FAILURES, cases, name=clean_name(name), machine=clean_name(machine), **nodes)


def describe_times(calls: int, *, compared: int, rows: int, most_rows: int) -> str:
    """Return how many calls several nodes timed, and on how many the ratios differ; ``most_rows`` are on the page."""
    if not compared:
        found = say(_TOO_FEW)
    elif not rows:
        found = say(_NOWHERE)
    else:
        more = say(_MORE, rows=rows) if rows > most_rows else ""
        found = say(_DIFFER, rows=rows, percent=100 * EFFECT, more=more)
    return say_count(_TIMED, calls, found=found)
