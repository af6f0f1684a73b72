"""Rules by which a series has a step between two neighbouring points."""

from collections.abc import Iterator, Sequence
from typing import Literal

from attnbench.analysis.run_diff import classify_factor
from attnbench.analysis.stats import Interval
from attnhistory.points import Point

__all__ = ["THRESHOLD", "WINDOW", "Rule", "find_counter_steps", "find_ratio_steps"]

# ``equality``: two exact numbers differ. ``intervals``: the whole interval of the factor is beyond the threshold, as in
# ``attnbench compare`` of stored runs. ``neighbours``: the same, with the range of neighbouring values as an interval.
Rule = Literal["equality", "intervals", "neighbours"]
# Smallest relative change of a ratio that counts: that of ``attnbench compare`` for two runs made at different moments.
THRESHOLD = 0.05
# Number of values on each side of a step in a series without intervals. Of six values in random order, the first three
# are all smaller, or all larger, than the others with a probability of 2 / 20, and the threshold comes on top.
WINDOW = 3


def find_counter_steps(points: Sequence[Point]) -> Iterator[tuple[int, Rule]]:
    """Yield the number of each point whose exact value differs from the value before it."""
    for place in range(1, len(points)):
        if points[place].value != points[place - 1].value:
            yield place, "equality"


def find_ratio_steps(points: Sequence[Point]) -> Iterator[tuple[int, Rule]]:
    """Yield the number of each point at which a ratio has moved by more than the threshold.

    Between two points without intervals, each side is the range of ``WINDOW`` values.
    """
    for place in range(1, len(points)):
        before, after = _get_interval(points[place - 1]), _get_interval(points[place])
        rule: Rule = "intervals"
        if before is None or after is None:
            rule = "neighbours"
            before = _find_range(points[max(place - WINDOW, 0) : place])
            after = _find_range(points[place : place + WINDOW])
        if before is not None and after is not None and _is_beyond(before, after):
            yield place, rule


def _get_interval(point: Point) -> Interval | None:
    if point.low is None or point.high is None:
        return None
    return Interval(value=point.value, low=point.low, high=point.high)


def _find_range(points: Sequence[Point]) -> Interval | None:
    """Return the range of the values of one side; None if they are too few."""
    values = sorted(point.value for point in points)
    return Interval(value=values[WINDOW // 2], low=values[0], high=values[-1]) if len(values) == WINDOW else None


def _is_beyond(before: Interval, after: Interval) -> bool:
    factor = Interval(value=after.value / before.value, low=after.low / before.high, high=after.high / before.low)
    return classify_factor(factor, THRESHOLD) in ("slower", "faster")
