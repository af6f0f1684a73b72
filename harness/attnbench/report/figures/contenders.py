"""Contenders: the implementations that a reader chooses from, which figures draw in colour."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from attnbench.report.series import Series
from attnbench.report.tables import INCONCLUSIVE

__all__ = ["find_contenders", "find_winners", "rank"]

# Most contenders of a reference, besides the reference. More than about six curves in colour are hard to follow.
MOST = 5


def find_contenders(series: Sequence[Series]) -> list[str]:
    """Return the implementations that win or tie most often in the series of each reference.

    Every series counts alike. At most ``MOST`` implementations are contenders for a reference, and the one that wins
    most in a series is always a contender.
    """
    chosen: dict[str, None] = {}
    for reference in dict.fromkeys(one.reference for one in series):
        total: dict[str, float] = {}
        first: dict[str, None] = {}
        for own in (one for one in series if one.reference == reference):
            cells = list(find_winners(own))
            won = Counter(name for names in cells for name in names if name != reference)
            for name, count in won.items():
                total[name] = total.get(name, 0.0) + count / len(cells)
            first |= dict.fromkeys(_order(won)[:1])
        chosen |= dict.fromkeys([*_order(total)[:MOST], *first])
    return list(chosen)


def find_winners(series: Series) -> Iterator[list[str]]:
    """Yield, for each pass and length, the fastest implementation and those whose interval overlaps its interval.

    The comparison is by ratio if every implementation has one, else by time. Disturbed measurements do not win. If
    nothing was timed, the implementations with the smallest peak of memory win.
    """
    if series.timings.empty:
        for _, rows in series.memory.groupby(["pass", "length"]):
            yield list(rows[rows["peak_bytes"] == rows["peak_bytes"].min()]["implementation"])
        return
    for _, rows in series.timings.groupby(["pass", "length"]):
        fair = rows[rows["state"] != INCONCLUSIVE]
        value, low, high = ("median_ns", "low_ns", "high_ns") if fair["ratio"].isna().any() else (
            "ratio", "ratio_low", "ratio_high",
        )  # fmt: skip
        if not fair.empty:
            limit = fair.sort_values(value).iloc[0][high]
            yield list(fair[fair[low] <= limit]["implementation"])


def rank(rows: pd.DataFrame, value: str) -> list[str]:
    """Return the implementations of these rows, that with the smallest values of its passes and lengths first."""
    least = rows.groupby(["pass", "length"])[value].transform("min")
    relative = rows.assign(relative=rows[value] / least).groupby("implementation")["relative"].median()
    found = {str(name): float(factor) for name, factor in relative.items()}
    return sorted(found, key=lambda name: (found[name], name))


def _order(counts: Mapping[str, float]) -> list[str]:
    """Return the names, those with the highest numbers first; equal ones in the order of the alphabet."""
    return sorted(counts, key=lambda name: (-counts[name], name))
