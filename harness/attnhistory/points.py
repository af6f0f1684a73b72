"""Values that were stored at commits, each with the series to which it belongs."""

from typing import Literal

import msgspec

__all__ = ["MEASURED", "RATIO", "Key", "Point", "Quantity", "Reading", "Skipped"]

Quantity = Literal[
    "peak_bytes", "saved_bytes", "workspace_bytes", "kernel_calls", "flop", "measured", "time_ratio"
]  # fmt: skip
# Times in nanoseconds of different commits are not compared, because the machine may have changed between them; times
# divided by the reference's are. All others are exact numbers.
RATIO: Quantity = "time_ratio"
# 1 where there are numbers, 0 where an implementation refuses the case or fails its checks.
MEASURED: Quantity = "measured"


class Key(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What the values of a series have in common."""

    machine: str
    # Libraries and number of threads, as far as the file stores them: values of two environments are not compared.
    environment: str
    implementation: str
    # Number of positions in the case; 0 where its operator has no length.
    length: int
    # Parameters of the benchmark, or the id of the case.
    case: str
    quantity: Quantity
    # Version of the benchmark, which asv raises if a number changes its meaning; for a run, how calls are made.
    version: str = ""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A value of a series at a commit."""

    # The commit, without changes that are in no commit; None where none is stored.
    commit: str | None
    # Id of the run; empty for asv.
    run: str = ""
    # Date of the commit, or of the run where the commit's is not stored; UTC, in the format of ISO 8601.
    date: str
    value: float
    # Confidence interval; None where none is stored. A counter has none.
    low: float | None = None
    high: float | None = None

    @property
    def place(self) -> str:
        """What tells the points of a series apart: the commit, or the run where there is none."""
        return self.commit or self.run


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A value that was read, and its series."""

    key: Key
    point: Point


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A file, or a benchmark of a file, that was not read, and the reason."""

    path: str
    reason: str
