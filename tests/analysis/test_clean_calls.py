"""Tests of the decision whether a call was disturbed by other work on the machine."""

import pytest

from attnbench.analysis.clean_calls import select_clean


@pytest.mark.parametrize(
    ("waited_ns", "switches", "expected"),
    [
        (0, 5, True),
        (5_000, 0, True),
        (5_001, 0, False),
        (None, 0, True),
        (None, 1, False),
        (None, None, True),
    ],
)
def test_a_clean_call_waited_at_most_half_a_percent_of_its_time(
    waited_ns: int | None, switches: int | None, expected: bool
) -> None:
    """A call is clean if it waited at most 0.5 % of its time.

    If only switches were counted, a call without a switch is clean; if neither was counted, every call is clean.
    """
    counters = [None if count is None else [count] for count in (waited_ns, switches)]
    assert list(select_clean([1_000_000], *counters)) == [0] * expected
