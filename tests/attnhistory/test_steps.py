"""Tests of the rules by which a series has a step."""

import pytest

from attnhistory.points import Point
from attnhistory.steps import find_counter_steps, find_ratio_steps


def make_points(*values: float, spread: float | None = None) -> list[Point]:
    """Return points with these values; with ``spread``, their intervals reach this share below and above."""
    low, high = (None, None) if spread is None else (1 - spread, 1 + spread)
    return [
        Point(
            commit=f"{number}", date=f"2026-11-{number + 1:02}", value=value, low=low and value * low,
            high=high and value * high,
        )
        for number, value in enumerate(values)
    ]  # fmt: skip


def test_a_counter_has_a_step_at_one_byte() -> None:
    """A counter moves wherever it differs from its neighbour, also by one, up or down, and not elsewhere."""
    points = make_points(4096, 4096, 4097, 4097, 4096, 0, 0)
    assert list(find_counter_steps(points)) == [(2, "equality"), (4, "equality"), (5, "equality")]


@pytest.mark.parametrize(
    ("values", "spread", "steps"),
    [
        ((1.0, 1.2), 0.01, [(1, "intervals")]),
        ((1.2, 1.0), 0.01, [(1, "intervals")]),
        # The intervals overlap; they do not, and the change may be below 5 %; it is below.
        ((1.0, 1.2), 0.15, []),
        ((1.0, 1.06), 0.02, []),
        ((1.0, 1.04), 0.001, []),
        ((2.0, 2.0, 2.4, 2.4), 0.01, [(2, "intervals")]),
    ],
)
def test_a_ratio_with_intervals_has_a_step_if_its_whole_change_is_beyond_the_threshold(
    values: tuple[float, ...], spread: float, steps: list[tuple[int, str]]
) -> None:
    """Two neighbours are enough, and the lowest change that both intervals allow counts."""
    assert list(find_ratio_steps(make_points(*values, spread=spread))) == steps


def test_a_ratio_without_intervals_needs_three_values_on_each_side() -> None:
    """The range of three values is the interval of a side, so that one noisy commit is no step, nor is the last one."""
    assert list(find_ratio_steps(make_points(1.0, 1.02, 0.99, 1.2, 1.21, 1.19))) == [(3, "neighbours")]
    assert list(find_ratio_steps(make_points(1.0, 1.02, 0.99, 1.2, 1.21))) == []
    assert list(find_ratio_steps(make_points(1.0, 1.0, 1.0, 1.5, 1.0, 1.0, 1.0))) == []
    assert list(find_ratio_steps(make_points(1.0, 1.0, 1.0, 1.04, 1.04, 1.04))) == []
    mixed = [*make_points(1.0, 1.0, 1.0), *make_points(1.2, 1.2, 1.2, spread=0.01)]
    assert list(find_ratio_steps(mixed)) == [(3, "neighbours")]
