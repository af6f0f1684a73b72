"""What was seen where nothing is decided: the likely best with its ratio, in words that claim nothing."""

from collections.abc import Sequence
from operator import itemgetter

from attnbench.analysis.crossover import Entry, Interval, find_seen
from attnbench.analysis.plain_names import join_words
from attnbench.analysis.speed_verdict import EFFECT, LEVEL
from attnbench.analysis.stats import rank_of
from attnbench.report.forms import describe_length
from attnbench.report.numbers import format_digits

__all__ = ["describe_sighting", "describe_undecided", "format_time", "list_times", "name_some", "select_some"]

# Most names in a sentence; the others are counted. The table of measures has all names.
SHOWN = 3
UNIT = "× the time"
# The ratios at which a verdict changes: a number near one of them is shown with so many digits that it does not seem to
# lie on the other side.
THRESHOLDS = (1 - EFFECT, 1 + EFFECT)
MOST_DIGITS = 6


def describe_sighting(entries: Sequence[Entry]) -> str:
    """Return what was seen in the cells of a row whose answer is ``unknown`` or ``inconclusive``, and why it is open.

    The entries have the same names, the same kind of answer and the same reason.
    """
    answer, reference = entries[0].best, entries[0].reference
    compared = entries[0].compared
    seen = find_seen(compared, reference)
    if seen is None:
        return f"not decided: no cycle was undisturbed, so no ratio was seen; {answer.reason}"
    first = seen.implementation
    others = [one for one in answer.names if one not in (first, reference)] if answer.kind == "unknown" else []
    unseen = [one.implementation for one in compared if one.state and one.shown is None]
    without = f"; no ratio was seen of {name_some(unseen)}" if unseen else ""
    return f"not decided: {list_times(entries, [first, *others])}; {answer.reason}{without}"


def describe_undecided(entries: Sequence[Entry]) -> str:
    """Return which further implementations may be as fast as those of the answers; empty if none may."""
    best = entries[0].best
    if not best.undecided:
        return ""
    listed = join_words(f"{name}{_bracket(format_time(entries, name))}" for name in best.undecided)
    return f"not decided: whether {listed} {'is' if len(best.undecided) == 1 else 'are'} as fast as {best.names[0]}"


def list_times(entries: Sequence[Entry], names: Sequence[str]) -> str:
    """Return the first names, each with its time in cells of a row, and how many more there are."""
    return ", ".join(select_some([f"{name} {format_time(entries, name)}".rstrip() for name in names]))


def format_time(entries: Sequence[Entry], name: str) -> str:
    """Return the time of an implementation relative to the reference in cells of a row; empty if no ratio was seen.

    If the times of several cells only rise or only fall along the row, the first and the last are returned, each with
    its length, else the smallest and the largest. The intervals are shown where enough processes have a ratio.
    """
    own = [
        (describe_length(entry.queries, entry.keys), one)
        for entry in entries
        for one in entry.contenders
        if one.implementation == name
    ]
    if own and all(one.ratio and rank_of(one.ratio.processes, LEVEL) for _, one in own):
        return _describe_range(
            [(one.ratio.value, _format_ratio(one.ratio), length) for length, one in own if one.ratio]
        )
    return _describe_range([(one.shown, f"{_format(one.shown)}{UNIT}", length) for length, one in own if one.shown])


def _describe_range(times: Sequence[tuple[float, str, str]]) -> str:
    """Return the range of the times of a row, each a number, its text and its length; empty without times."""
    if not times:
        return ""
    rising = sorted(times, key=itemgetter(0))
    values, sizes = ([value for value, *_ in some] for some in (times, rising))
    is_ordered = values in (sizes, sizes[::-1])
    (_, first, begin), (_, last, end) = (times[0], times[-1]) if is_ordered else (rising[0], rising[-1])
    if first == last:
        return first
    return f"{first} at {begin} to {last} at {end}" if is_ordered else f"between {first} and {last}"


def name_some(names: Sequence[str]) -> str:
    """Name the first implementations, and count the others."""
    return join_words(select_some(names))


def select_some(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the first texts, and how many more there are."""
    more = len(texts) - SHOWN
    return (*texts[:SHOWN], f"{more} more") if more > 0 else tuple(texts)


def _format_ratio(one: Interval) -> str:
    return f"{_format(one.value)}{UNIT} [{_format(one.low)} to {_format(one.high)}]"


def _format(ratio: float) -> str:
    """Format a ratio with as many digits as keep it on its side of both thresholds: three as a rule."""
    for digits in range(3, MOST_DIGITS):
        shown = float(format_digits(ratio, digits))
        if all((shown > one) == (ratio > one) and (shown < one) == (ratio < one) for one in THRESHOLDS):
            return format_digits(ratio, digits)
    return format_digits(ratio, MOST_DIGITS)


def _bracket(text: str) -> str:
    return f" ({text})" if text else ""
