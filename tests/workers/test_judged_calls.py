"""Tests of ``JudgedCalls``, which chooses the timed calls whose results are evaluated."""

from collections import Counter
from collections.abc import Sequence

import pytest

from attnbench.workers.judged_calls import JudgedCall, JudgedCalls

# Number of sequences of calls. The standard deviation of a count of one in three is 26.
TRIES = 3000


def choose(clean: Sequence[bool]) -> Counter[int]:
    """Count which of several calls is kept, over many tries; ``clean`` tells which calls are clean."""
    counts: Counter[int] = Counter()
    calls = [JudgedCall(values={}, result=(), is_clean=one) for one in clean]
    for _ in range(TRIES):
        judged = JudgedCalls()
        for call in calls:
            judged.offer("own", call)
        counts[next(number for number, call in enumerate(calls) if call is judged.kept["own"])] += 1
    return counts


@pytest.mark.parametrize(
    ("clean", "possible"),
    [
        ([True, True, True], [0, 1, 2]),
        ([False, True, False, True, False, True], [1, 3, 5]),
        ([True, False, True, False, True], [0, 2, 4]),
        ([False, False, False], [0, 1, 2]),
    ],
)
def test_each_clean_call_is_as_likely_as_another(clean: Sequence[bool], possible: Sequence[int]) -> None:
    """A call that was disturbed is kept only if all calls were; counts of equal chances differ by chance alone."""
    counts = choose(clean)
    assert sorted(counts) == possible
    assert all(abs(count - TRIES / 3) < 200 for count in counts.values())


def test_names_do_not_share_their_choice() -> None:
    """A call of one name does not replace a call of another name."""
    judged, calls = JudgedCalls(), [JudgedCall(values={}, result=(), is_clean=True) for _ in range(2)]
    for name, call in zip(("one", "two"), calls, strict=True):
        judged.offer(name, call)
    assert judged.kept == dict(zip(("one", "two"), calls, strict=True))
