"""Tests of the tables of results of the detection study."""

from research.detection.plants import BYTE_SHARE
from research.detection.presentation import format_runs_table


def test_the_table_of_runs_has_rates_with_upper_bounds() -> None:
    """The table has one row for each condition and plant."""
    rows = [
        ("1 thread, quiet", BYTE_SHARE, {"bigger": 2, "same": 1}, 12.0),
        ("1 thread, quiet", 2, {"slower": 2, "inconclusive": 1}, 53.6),
    ]
    assert format_runs_table(rows).splitlines()[2:] == [
        "| 1 thread, quiet | one byte | 3 | 12.0 | 2 bigger, 1 same "
        "| 66.7 % (≤ 98.3 %) | 0.0 % (≤ 63.2 %) | 0.0 % (≤ 63.2 %) |",
        "| 1 thread, quiet | about 2 % | 3 | 53.6 | 1 inconclusive, 2 slower "
        "| 66.7 % (≤ 98.3 %) | 0.0 % (≤ 63.2 %) | 33.3 % (≤ 86.5 %) |",
    ]
