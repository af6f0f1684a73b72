"""Contenders: the implementations that a reader chooses from, which figures draw in colour."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd

from attnbench.analysis.crossover import Entry
from attnbench.report.series import Place, Series

__all__ = ["find_contenders", "rank"]

# Most contenders of a reference, besides the reference. More than about six curves in colour are hard to follow.
MOST = 5


def find_contenders(series: Sequence[Series], entries: Iterable[Entry]) -> list[str]:
    """Return the implementations that are most often in the answers of ``entries``, for each reference of the series.

    Every series counts alike. At most ``MOST`` implementations are contenders for a reference, and the one that is most
    often in the answers of a series is always a contender.
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
    """Return the implementations of these rows, that with the smallest values of its passes and lengths first."""
    least = rows.groupby(["pass", "length"])[value].transform("min")
    relative = rows.assign(relative=rows[value] / least).groupby("implementation")["relative"].median()
    found = {str(name): float(factor) for name, factor in relative.items()}
    return sorted(found, key=lambda name: (found[name], name))


def _order(counts: Mapping[str, float]) -> list[str]:
    """Return the names, those with the highest numbers first; equal ones in the order of the alphabet."""
    return sorted(counts, key=lambda name: (-counts[name], name))
