"""Tests of the marks of statuses."""

from attnbench.records.types import DEADLY, FAILURES, SILENT, STATUSES
from attnbench.words.statuses import MARKS, find_mark


def test_every_status_has_one_mark() -> None:
    """No status lacks a mark or has two, and the marks differ."""
    assert sorted(status for mark in MARKS for status in mark.statuses) == sorted(STATUSES)
    assert [find_mark(status).name for mark in MARKS for status in mark.statuses] == [
        mark.name for mark in MARKS for _ in mark.statuses
    ]
    assert len({mark.sign for mark in MARKS}) == len({mark.name for mark in MARKS}) == len(MARKS)


def test_every_failure_has_the_mark_of_failures() -> None:
    """Statuses that fail a run have one mark, which no status of a check that did not run has."""
    (bad,) = {find_mark(status) for status in FAILURES}
    assert bad.statuses == FAILURES
    assert DEADLY <= FAILURES
    assert not FAILURES & SILENT
