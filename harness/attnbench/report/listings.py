"""Tables whose rows are sentences rather than lengths: how things grow, what ran, and what the machine can do."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from attnbench.analysis import max_length
from attnbench.records.types import Ceiling, Result
from attnbench.report.growth import LEVEL
from attnbench.report.numbers import digits
from attnbench.report.series import Series
from attnbench.report.ways import ways

__all__ = ["Listing", "ceilings", "frontiers", "listings"]

UNDER_GROWTH = (
    "Exponent p of a power law Lᵖ through all lengths, by least squares on logarithms, with its interval of "
    f"{LEVEL * 100:g} %. The interval is from how far the points lie off the line: a wide one says that the growth is "
    "no power law over these lengths. Linear parts make p smaller at short lengths. Times that are "
    "inconclusive are left out."
)
UNDER_WAYS = (
    "Operators and kernels as torch's profiler names them, with the number of their calls in one pass. Lengths at "
    "which the same ran stand in one row, so that a fall-back has a row of its own. kernels.csv has every name."
)
UNDER_CEILINGS = (
    "What the machine reached in the same run on one matrix product and on one copy, the best of several calls; "
    "a copy reads and writes."
)

UNDER_FRONTIERS = (
    "The longest sequence that fits in memory and in the time limit of one call, found by doubling and then halving, "
    "and what kept the next one from it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A table with a heading and a note."""

    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def listings(series: Series) -> list[Listing]:
    """Tables of a series, those without a row left out."""
    made = [
        Listing(
            title="Growth with length",
            note=UNDER_GROWTH,
            head=("implementation", "pass", "L", "time", "peak memory"),
            rows=tuple(_growth_rows(series)),
        ),
        Listing(
            title="Which kernel ran",
            note=UNDER_WAYS,
            head=("implementation", "pass", "L", "way", "operators, the longest first"),
            rows=tuple(
                (w.implementation, w.pass_, ", ".join(map(str, w.lengths)), w.way, w.names)
                for w in ways(series.kernels)
            ),
        ),
    ]
    return [one for one in made if one.rows]


def ceilings(reached: Iterable[Ceiling]) -> Listing | None:
    """Ceilings of all runs, or None where none was measured."""
    rows = tuple(
        (c.run, c.device, c.dtype, str(c.threads), digits(c.flop_per_s / 1e9), digits(c.bytes_per_s / 1e9))
        for c in reached
    )
    head = ("run", "device", "dtype", "threads", "product, Gflop/s", "copy, GB/s")
    return Listing(title="Ceilings", note=UNDER_CEILINGS, head=head, rows=rows) if rows else None


def frontiers(results: Iterable[Result]) -> Listing | None:
    """Frontiers of all runs, or None where none was searched for."""
    rows = tuple(max_length.row(one) for one in max_length.frontiers(results))
    return (
        Listing(title="The longest sequence", note=UNDER_FRONTIERS, head=max_length.HEAD, rows=rows) if rows else None
    )


def _growth_rows(series: Series) -> Iterator[tuple[str, ...]]:
    """Implementation, pass, lengths, and the exponents of time and of peak memory."""
    for (name, pass_), own in series.growths.groupby(["implementation", "pass"], sort=False):
        by_measure = {row["measure"]: row for _, row in own.iterrows()}
        lengths = f"{own['shortest'].min()} to {own['longest'].max()}"
        texts = (_exponent(by_measure.get(measure)) for measure in ("time", "peak memory"))
        yield str(name), str(pass_), lengths, *texts


def _exponent(row: Any) -> str:
    if row is None:
        return "–"
    return f"{row['exponent']:.2f} ({row['low']:.2f} to {row['high']:.2f})".replace("-", "−")
