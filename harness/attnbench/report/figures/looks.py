"""Which implementations have a colour in the figures of a report, and how each one is drawn."""

from collections.abc import Iterator, Sequence

from attnbench.analysis.summary import SummaryTable
from attnbench.report.figures.style import COLOURS, Look, choose_looks

__all__ = ["find_looks"]

# Most implementations in colour. More curves are hard to follow.
MOST = len(COLOURS) - 1


def find_looks(tables: Sequence[SummaryTable]) -> dict[str, Look]:
    """Return how each implementation is drawn in every figure: in colour what is used, then the fastest ones."""
    measured = [row.subject for table in tables for row in table.rows if row.cells]
    chosen = list(dict.fromkeys(name for name in (*_list_used(tables), *_list_fastest(tables))))
    baselines = {table.baseline for table in tables if table.baseline}
    return choose_looks(measured, baselines, [name for name in chosen if name not in baselines][:MOST])


def _list_used(tables: Sequence[SummaryTable]) -> Iterator[str]:
    yield from (answer.name for table in tables for answer in table.answers.values())


def _list_fastest(tables: Sequence[SummaryTable]) -> Iterator[str]:
    """Yield the timed implementations of the first table, whose rows are sorted by time."""
    for table in tables[:1]:
        yield from (row.subject for row in table.rows if any(cell.time_ns for cell in row.cells.values()))
