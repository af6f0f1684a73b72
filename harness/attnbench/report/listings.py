"""Tables of a report without a column for each length: growth, code paths, longest sequences and ceilings."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from attnbench.analysis import max_length
from attnbench.records.types import Ceiling, Result
from attnbench.report.growth import LEVEL
from attnbench.report.kernel_paths import group_by_way
from attnbench.report.numbers import format_digits
from attnbench.report.series import Series

__all__ = ["Listing", "list_ceilings", "list_max_lengths", "make_listings"]

UNDER_GROWTH = (
    "Exponent p of a power law Lᵖ through all lengths, at least five, by least squares on logarithms, with its "
    f"{LEVEL * 100:g} % confidence interval. The interval comes from the residuals: a wide interval means that the "
    "growth is no power law over these lengths. At short lengths p is smaller, because the parts of a call that grow "
    "linearly, such as the projections, weigh more. Times with an inconclusive speed verdict are left out."
)
UNDER_WAYS = (
    "Torch operators and device kernels as torch's profiler names them, with the number of their calls in one pass. "
    "Lengths with the same names share a row, so that a fall-back has a row of its own. kernels.csv has every name."
)
UNDER_CEILINGS = (
    "Rates that the machine reached in the same run on one matrix product and on one copy, the best of several calls. "
    "Bytes of a copy count both its read and its write."
)
UNDER_MAX_LENGTHS = (
    "The longest sequence that fits in memory and in the time limit of one call, found by doubling and then bisecting, "
    "and the reason why the next longer one does not fit."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A table with a heading and an explanatory note."""

    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def make_listings(series: Series) -> list[Listing]:
    """Return the tables of growth and of code paths of a series; a table without rows is left out."""
    made = [
        Listing(
            title="Growth with length",
            note=UNDER_GROWTH,
            head=("implementation", "pass", "time", "its lengths", "peak memory", "its lengths"),
            rows=tuple(_format_growth_rows(series)),
        ),
        Listing(
            title="Which kernel ran",
            note=UNDER_WAYS,
            head=("implementation", "pass", "L", "path", "operators, longest time first"),
            rows=tuple(
                (w.implementation, w.pass_, ", ".join(map(str, w.lengths)), w.way, w.names)
                for w in group_by_way(series.kernels)
            ),
        ),
    ]
    return [one for one in made if one.rows]


def list_ceilings(reached: Iterable[Ceiling]) -> Listing | None:
    """Return the table of the ceilings (highest measured rates) of all runs, or None if no ceiling was measured."""
    rows = tuple(
        (
            c.run,
            c.device,
            c.dtype,
            str(c.threads),
            format_digits(c.flop_per_s / 1e9),
            format_digits(c.bytes_per_s / 1e9),
        )
        for c in reached
    )
    head = ("run", "device", "dtype", "threads", "product, Gflop/s", "copy, GB/s")
    return Listing(title="Ceilings", note=UNDER_CEILINGS, head=head, rows=rows) if rows else None


def list_max_lengths(results: Iterable[Result]) -> Listing | None:
    """Return the table of the longest sequences of all runs, or None if no run searched for them."""
    rows = tuple(max_length.format_row(one) for one in max_length.find_max_lengths(results))
    return Listing(title="Longest sequence", note=UNDER_MAX_LENGTHS, head=max_length.HEAD, rows=rows) if rows else None


def _format_growth_rows(series: Series) -> Iterator[tuple[str, ...]]:
    """Yield rows of implementation, pass, and the exponents of time and of peak memory, each with its lengths."""
    for (name, pass_), own in series.growths.groupby(["implementation", "pass"], sort=False):
        by_measure = {row["measure"]: row for row in own.to_dict("records")}
        fits = [by_measure.get(measure) for measure in ("time", "peak memory")]
        yield str(name), str(pass_), *(text for fit in fits for text in _format_fit(fit))


def _format_fit(row: Any) -> tuple[str, str]:
    """Return the exponent of a fit with its interval, and its lengths."""
    if row is None:
        return "–", "–"
    exponent = f"{row['exponent']:.2f} [{row['low']:.2f} to {row['high']:.2f}]".replace("-", "−")
    return exponent, f"{row['lengths']} from {row['shortest']} to {row['longest']}"
