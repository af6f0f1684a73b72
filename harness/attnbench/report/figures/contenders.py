"""Contenders: the implementations that a reader chooses from, which figures draw in colour."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd

from attnbench.analysis.crossover import DECISIVE, Entry, find_seen
from attnbench.report.figures.style import Look, choose_looks
from attnbench.report.series import Place, Series

__all__ = ["BASES", "describe_colours", "find_contenders", "find_looks", "rank"]

# Number of contenders that are chosen over all series of a reference; the most frequent one of each series is added.
# More than about six curves in colour are hard to follow.
MOST = 5
# Why implementations are in colour, by where their names are from; the first one that a series has decides.
BASES = {
    "answer": 'what the answers of "What to use here" name most often',
    "seen": "where nothing is decided, what was seen ahead of the reference most often, which is no recommendation",
    "memory": "where nothing was timed, what needs the least memory",
}


def find_looks(series: Sequence[Series], entries: Sequence[Entry]) -> dict[str, Look]:
    """Return how each implementation is drawn, which is the same in all figures of a report.

    ``entries`` say which implementations are drawn in colour.
    """
    names = {name for one in series for frame in (one.timings, one.memory) for name in frame["implementation"]}
    return choose_looks(names, {one.reference for one in series}, find_contenders(series, entries))


def find_contenders(series: Sequence[Series], entries: Iterable[Entry]) -> list[str]:
    """Return the implementations that are most often in the answers of ``entries``, for each reference of the series.

    Every series counts alike. The contenders for a reference are the ``MOST`` most frequent implementations, and the
    most frequent implementation of each series. In a series without answers, those that were seen ahead count; in a
    series without times, those with the smallest peak.
    """
    answers = _group(entries)
    chosen: dict[str, None] = {}
    for reference in dict.fromkeys(one.reference for one in series):
        total: dict[str, float] = {}
        first: dict[str, None] = {}
        for own in (one for one in series if one.reference == reference):
            _, cells = _find_named(own, answers)
            won = Counter(name for names in cells for name in names if name != reference)
            for name, count in won.items():
                total[name] = total.get(name, 0.0) + count / len(cells)
            first |= dict.fromkeys(_order(won)[:1])
        chosen |= dict.fromkeys([*_order(total)[:MOST], *first])
    return list(chosen)


def describe_colours(series: Sequence[Series], entries: Iterable[Entry]) -> str:
    """Return what is in colour in the figures of these series, in words."""
    answers = _group(entries)
    bases = {basis for one in series for basis, cells in [_find_named(one, answers)] if _has_others(cells, one)}
    told = [words for basis, words in BASES.items() if basis in bases]
    if not told:
        return "Black: the reference. No other implementation is named ahead of it, so all others are grey."
    return f"Black: the reference. In colour: {'; '.join(told)}. Grey: the others."


def _has_others(cells: Iterable[Sequence[str]], series: Series) -> bool:
    return any(name != series.reference for names in cells for name in names)


def _group(entries: Iterable[Entry]) -> dict[tuple[Place, str], list[Entry]]:
    found: dict[tuple[Place, str], list[Entry]] = {}
    for entry in entries:
        place = Place(entry.machine, entry.device, entry.dtype, entry.threads)
        found.setdefault((place, entry.form), []).append(entry)
    return found


def _find_named(
    series: Series, answers: Mapping[tuple[Place, str], Sequence[Entry]]
) -> tuple[str, list[Sequence[str]]]:
    """Return where the contenders of a series are from, a key of ``BASES``, and the names in each of its cells."""
    own = answers.get((series.place, series.form), ())
    if decided := [one for one in own if one.answer.kind in DECISIVE]:
        return "answer", [(one.best if one.best.kind in DECISIVE else one.answer).names for one in decided]
    if own:
        best = [find_seen(one.contenders, one.reference) for one in own]
        return "seen", [(one.implementation,) for one in best if one and (one.shown or 1.0) < 1]
    return "memory", list(_find_smallest(series))


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
