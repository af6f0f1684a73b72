"""Tests of ``JudgedCalls``, which chooses the timed calls whose results are evaluated."""

from collections import Counter
from collections.abc import Sequence

import pytest

from attnbench.measurement.judged_calls import JudgedCalls

# Number of sequences of calls. The standard deviation of a count of one in three is 26.
TRIES = 3000


def choose(clean: Sequence[bool]) -> Counter[int]:
    """Count which of several calls is kept, over many tries; ``clean`` tells which calls are clean."""
    counts: Counter[int] = Counter()
    for _ in range(TRIES):
        judged = JudgedCalls[int]()
        for number, is_clean in enumerate(clean):
            judged.offer("own", number, is_clean=is_clean)
        counts[judged.kept["own"]] += 1
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
    judged = JudgedCalls[int]()
    judged.offer("one", 1)
    judged.offer("two", 2)
    assert judged.kept == {"one": 1, "two": 2}
