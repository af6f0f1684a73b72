"""Series of values over commits, and the steps in them."""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from attnbench.jobs.command_lines import format_command
from attnhistory.points import MEASURED, RATIO, Key, Point, Reading, Skipped
from attnhistory.steps import Rule, find_counter_steps, find_ratio_steps

__all__ = ["History", "Series", "Step", "find_settings", "make_history", "write_gate"]

# Digits of a commit in commands and tables, as asv shows it.
DIGITS = 8
# Where a case, which is a case id or the parameters of a benchmark, has a dtype or a mask other than the gate's own.
SETTINGS: Mapping[str, str] = {
    "--dtype": r"[/=](float64|bfloat16|float16)(?:[/ ]|$)",
    "--mask": r"\bmask=(?!none\b)([^/ ]+)",
}


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A change between two neighbouring points of a series."""

    earlier: Point
    later: Point
    # The later value divided by the earlier one; None where the earlier one is 0.
    factor: float | None
    rule: Rule
    # Settles the step in a checkout of the later commit; None where a commit is missing.
    command: str | None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one quantity, in the order of commits, with one value for each commit."""

    key: Key
    points: tuple[Point, ...]
    steps: tuple[Step, ...]

    @property
    def lacks_intervals(self) -> bool:
        """Whether it is a ratio, and some value has no confidence interval."""
        return self.key.quantity == RATIO and any(point.low is None for point in self.points)


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All series that were read, and what was not read."""

    series: tuple[Series, ...]
    skipped: tuple[Skipped, ...]


def make_history(readings: Iterable[Reading], skipped: Iterable[Skipped]) -> History:
    """Return the series of the readings, sorted by key; whether a case is measured, only where it changed.

    A commit that was measured several times has its last value, at its first date.
    """
    found: dict[Key, dict[str, Point]] = {}
    for reading in sorted(readings, key=lambda one: (one.point.date, one.point.run)):
        points = found.setdefault(reading.key, {})
        first = points.get(reading.point.place, reading.point)
        points[reading.point.place] = msgspec.structs.replace(reading.point, date=first.date)
    series = (_make_series(key, tuple(found[key].values())) for key in sorted(found))
    kept = tuple(one for one in series if one.key.quantity != MEASURED or one.steps)
    return History(series=kept, skipped=tuple(skipped))


def find_settings(case: str) -> tuple[str, ...]:
    """Return the options by which a gate measures the dtype and the mask of a case, where they are not its defaults."""
    found = ((option, re.search(pattern, case)) for option, pattern in SETTINGS.items())
    return tuple(word for option, match in found if match for word in (option, match[1]))


def write_gate(keys: Sequence[Key], base: str) -> str:
    """Return the command that settles the steps of series since the commit ``base``: it measures the same lengths.

    The series have the same settings. Without a ratio among them, nothing needs to be timed. By default, the gate
    tolerates a few bytes.
    """
    names = dict.fromkeys(key.implementation for key in keys)
    lengths = ",".join(map(str, sorted({key.length for key in keys if key.length})))
    exact = any(key.quantity.endswith("_bytes") for key in keys)
    timed = any(key.quantity == RATIO for key in keys)
    chosen = [
        *([] if timed else ["--fail-on", "wrong,bigger"]),
        *(["--lengths", lengths] if lengths else []),
        *(["--bigger", "1"] if exact else []),
    ]
    return format_command(["gate", *names, "--base", base[:DIGITS], *chosen, *find_settings(keys[0].case)])


def _make_series(key: Key, points: tuple[Point, ...]) -> Series:
    find = find_ratio_steps if key.quantity == RATIO else find_counter_steps
    steps = tuple(_make_step(key, points[place - 1], points[place], rule) for place, rule in find(points))
    return Series(key=key, points=points, steps=steps)


def _make_step(key: Key, earlier: Point, later: Point, rule: Rule) -> Step:
    command = write_gate([key], earlier.commit) if earlier.commit and later.commit else None
    factor = later.value / earlier.value if earlier.value else None
    return Step(earlier=earlier, later=later, factor=factor, rule=rule, command=command)
