"""Two compared runs in words: how they were compared, what they lack, and in what they differ."""

from collections.abc import Iterator, Sequence

from attnbench.analysis.plain_names import join_words
from attnbench.records.types import Run
from attnbench.words.say import say

__all__ = [
    "DIFFERENCE",
    "EXCLUDED",
    "INCOMPLETE",
    "SOURCE",
    "describe_method",
    "explain_differences",
]

_INTERLEAVED = (
    "The two implementations were timed with interleaved calls in the same processes. A time below is the new "
    "implementation's time compared with the base's."
)
_TWO_RUNS = (
    "Times of two runs are compared by their ratios to the reference's time in the same run. A change is slower or "
    "faster if its whole interval is beyond {percent:g} %. Bytes, flop and kernel calls are exact."
)
INCOMPLETE = "{side} is incomplete: {gaps}"
EXCLUDED = "Left out, because it cannot be right: {things}. The first: {first}."
SOURCE = "source of {name}"
DIFFERENCE = "{what} {base} → {new}"
_MORE = "{count} more"
_DIFFER = "The runs differ in {differences}."
_MACHINES = "The runs are from different machines: times and bytes are not compared."
_THREADS = "The runs had different numbers of threads: bytes and kernel calls are not compared."
_LISTS = "The runs have different lists of cases: only common cases are compared."
_SAME = "BASE and NEW are the same run."


def describe_method(threshold: float | None) -> str:
    """Return how two sides were compared; None: two implementations that were timed interleaved."""
    return say(_INTERLEAVED) if threshold is None else say(_TWO_RUNS, percent=100 * threshold)


def explain_differences(base: Run, new: Run, named: Sequence[str], more: int) -> Iterator[str]:
    """Yield in what two runs differ, of which ``named`` are the first, and what follows from it."""
    if named:
        yield say(_DIFFER, differences=join_words([*named, *([say(_MORE, count=more)] if more else [])]))
    if base.machine.name != new.machine.name:
        yield say(_MACHINES)
    elif base.threads != new.threads:
        yield say(_THREADS)
    if base.suite_digest != new.suite_digest:
        yield say(_LISTS)
    if base.id == new.id:
        yield say(_SAME)
