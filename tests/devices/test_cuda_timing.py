"""Tests of the computed sizes of cache flushes, and lengths of spins and pauses. test_gpu.py measures on a device."""

import pytest

from attnbench.devices.cuda_timing import LONGEST_NS, SHORTEST_NS, Pauses, flush_bytes, spin_cycles, spin_ns


@pytest.mark.parametrize(
    ("cache_bytes", "expected"),
    [(0, 256_000_000), (50 * 2**20, 256_000_000), (126 * 2**20, 252 * 2**20), (128_000_000, 256_000_000)],
)
def test_the_flush_is_twice_the_cache_and_at_least_256_mb(cache_bytes: int, expected: int) -> None:
    """For a cache of 50 MiB the smallest buffer is enough; a cache of 126 MiB needs a larger buffer."""
    assert flush_bytes(cache_bytes) == expected


@pytest.mark.parametrize(
    ("launches_ns", "expected"),
    [([0], SHORTEST_NS), ([10_000, 60_000, 20_000], SHORTEST_NS), ([50_000, 400_000, 90_000], 1_200_000),
     ([9_000_000], LONGEST_NS)],
)  # fmt: skip
def test_a_spin_lasts_three_times_the_longest_launch(launches_ns: list[int], expected: int) -> None:
    """A spin (a busy kernel that hides the launch of the call) lasts at least 0.2 ms and at most 20 ms."""
    assert spin_ns(launches_ns) == expected


def test_the_cycles_of_a_spin_follow_from_the_measured_clock_rate() -> None:
    """At 1.98 GHz, 0.2 ms are 396 000 cycles."""
    assert spin_cycles(200_000, 1.98) == 396_000


class Clock:
    """A clock in nanoseconds that advances only when the test sets ``now_ns``."""

    now_ns = 0

    def __call__(self) -> int:
        """Return the time of this clock."""
        return self.now_ns


def test_after_5_ms_of_work_a_device_rests_for_as_long_as_it_worked() -> None:
    """The device does not rest before 5 ms of work; the next 5 ms are counted from the end of the rest."""
    clock = Clock()
    pauses = Pauses(now_ns=clock)
    found = []
    for worked_ns in (0, 2_000_000, 2_000_000, 2_000_000, 1_000_000, 4_500_000):
        clock.now_ns += worked_ns
        due_ns = pauses.due_ns()
        found.append(due_ns)
        if due_ns:
            clock.now_ns += due_ns
            pauses.restart()
    assert found == [0, 0, 0, 6_000_000, 0, 5_500_000]


def test_a_rest_is_never_longer_than_50_ms() -> None:
    """Longer rests would double the time of a run with long calls, and such calls lower the device's clock anyway."""
    clock = Clock()
    pauses = Pauses(now_ns=clock)
    assert pauses.due_ns() == 0
    clock.now_ns = 3_000_000_000
    assert pauses.due_ns() == 50_000_000
