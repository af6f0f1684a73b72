"""Contenders: the implementations that a reader chooses from, which figures draw in colour."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd

from attnbench.analysis.crossover import Entry
from attnbench.report.series import Place, Series

__all__ = ["COLOURED", "find_contenders", "rank"]

# Number of contenders that are chosen over all series of a reference; the most frequent one of each series is added.
# More than about six curves in colour are hard to follow.
MOST = 5
# What is in colour, in words that need no definition.
COLOURED = "Implementations that are most often the best choice are in colour."


def find_contenders(series: Sequence[Series], entries: Iterable[Entry]) -> list[str]:
    """Return the implementations that are most often in the answers of ``entries``, for each reference of the series.

    Every series counts alike. The contenders for a reference are the ``MOST`` most frequent implementations, and the
    most frequent implementation of each series. In a series without answers, those with the smallest peak count.
    """
    answers: dict[tuple[Place, str], list[Sequence[str]]] = {}
    for entry in entries:
        place = Place(entry.machine, entry.device, entry.dtype, entry.threads)
        answers.setdefault((place, entry.form), []).append(entry.answer.names)
    chosen: dict[str, None] = {}
    for reference in dict.fromkeys(one.reference for one in series):
        total: dict[str, float] = {}
        first: dict[str, None] = {}
        for own in (one for one in series if one.reference == reference):
            cells = answers.get((own.place, own.form)) or list(_find_smallest(own))
            won = Counter(name for names in cells for name in names if name != reference)
            for name, count in won.items():
                total[name] = total.get(name, 0.0) + count / len(cells)
            first |= dict.fromkeys(_order(won)[:1])
        chosen |= dict.fromkeys([*_order(total)[:MOST], *first])
    return list(chosen)


def _find_smallest(series: Series) -> Iterator[list[str]]:
    """Yield the implementations with the smallest peak of memory, for each pass and length."""
    for _, rows in series.memory.groupby(["pass", "length"]):
        yield list(rows[rows["peak_bytes"] == rows["peak_bytes"].min()]["implementation"])


def rank(rows: pd.DataFrame, value: str) -> list[str]:
    """Return the implementations, those with small values first.

    Each value is divided by the smallest value of its pass and length; the median of the quotients decides.
    """
    least = rows.groupby(["pass", "length"])[value].transform("min")
    relative = rows.assign(relative=rows[value] / least).groupby("implementation")["relative"].median()
    found = {str(name): float(factor) for name, factor in relative.items()}
    return sorted(found, key=lambda name: (found[name], name))


def _order(counts: Mapping[str, float]) -> list[str]:
    """Return the names, those with the highest numbers first; names with equal numbers in alphabetical order."""
    return sorted(counts, key=lambda name: (-counts[name], name))
