"""What was seen where nothing is decided: the likely best with its ratio, in words that claim nothing."""

from collections.abc import Iterable, Sequence

from attnbench.analysis.crossover import Entry, Interval, find_seen
from attnbench.analysis.plain_names import join_words
from attnbench.analysis.speed_verdict import EFFECT, LEVEL
from attnbench.analysis.stats import rank_of
from attnbench.report.numbers import format_digits, format_estimate

__all__ = ["describe_sighting", "describe_undecided", "format_gains", "name_some"]

# Most names in a sentence; the others are counted. The table of measures has all names.
SHOWN = 3
UNIT = "× as fast"
# The gains at which a verdict changes, and what 1 % is to a reader: a number near one of them is shown with so many
# digits that it does not seem to lie on the other side.
THRESHOLDS = (1 - EFFECT, 1 / (1 + EFFECT), 1 + EFFECT, 1 / (1 - EFFECT))
MOST_DIGITS = 6


def describe_sighting(entries: Sequence[Entry]) -> str:
    """Return what was seen in the cells of a row whose answer is ``unknown`` or ``inconclusive``, and why it is open.

    The entries have the same names, the same kind of answer and the same reason.
    """
    answer, reference = entries[0].answer, entries[0].reference
    verb = "judged" if answer.kind == "inconclusive" else "decided"
    seen = find_seen(entries[0].contenders, reference)
    if seen is None:
        return f"no cycle was undisturbed, so no ratio was seen; not {verb}: {answer.reason}"
    name = seen.implementation
    ahead = (seen.shown or 0.0) < 1
    words = f"{name} seen at {_format_seen(entries, name)}"
    if not ahead:
        words = f"{reference} seen ahead, then {name} at {_format_seen(entries, name)}"
    others = [one for one in answer.names if one not in (name, reference)] if answer.kind == "unknown" else []
    also = f"; {name_some(others)} may be as fast" if others else ""
    unseen = [one.implementation for one in entries[0].contenders if one.state and one.shown is None]
    without = f"; no ratio was seen of {name_some(unseen)}" if unseen else ""
    return f"{words}, not {verb}: {answer.reason}{also}{without}"


def describe_undecided(entries: Sequence[Entry]) -> str:
    """Return which further implementations may be as fast as those of the answers; empty if none may."""
    names = entries[0].answer.undecided
    if not names:
        return ""
    listed = join_words(f"{name}{_bracket(_format_seen(entries, name))}" for name in names)
    return f"not decided: whether {listed} {'is' if len(names) == 1 else 'are'} as fast as {entries[0].answer.names[0]}"


def format_gains(gains: Iterable[Interval]) -> str:
    """Format the gain with its interval; of several lengths, the smallest and the largest gain."""
    every = list(gains)
    if not every:
        return ""
    ends = (min(every, key=lambda one: one.value), max(every, key=lambda one: one.value))
    return " to ".join(dict.fromkeys(_format_gain(one) for one in ends))


def _format_gain(one: Interval) -> str:
    digits = max(map(_count_digits, (one.value, one.low, one.high)))
    return format_estimate(one.value, one.low, one.high, one.processes, unit=UNIT, digits=digits)


def _format_seen(entries: Sequence[Entry], name: str) -> str:
    """Return how fast an implementation was in cells of a row, with the intervals of enough processes; may be empty."""
    found = [one for entry in entries for one in entry.contenders if one.implementation == name]
    if found and all(one.ratio and rank_of(one.ratio.processes, LEVEL) for one in found):
        return format_gains(one.ratio.invert() for one in found if one.ratio)
    gains = sorted(1 / one.shown for one in found if one.shown)
    ends = dict.fromkeys([*gains[:1], *gains[-1:]])
    return " to ".join(dict.fromkeys(f"{format_digits(gain, _count_digits(gain))}{UNIT}" for gain in ends))


def _count_digits(gain: float) -> int:
    """Return how many digits keep a gain on its side of every threshold: three as a rule."""
    for digits in range(3, MOST_DIGITS):
        shown = float(format_digits(gain, digits))
        if all((shown > one) == (gain > one) and (shown < one) == (gain < one) for one in THRESHOLDS):
            return digits
    return MOST_DIGITS


def _bracket(text: str) -> str:
    return f" ({text})" if text else ""


def name_some(names: Sequence[str]) -> str:
    """Name the first implementations, and count the others."""
    more = len(names) - SHOWN
    return join_words([*names[:SHOWN], f"{more} more"]) if more > 0 else join_words(names)
