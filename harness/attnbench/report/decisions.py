"""What to use: the fastest implementation at each length, in sentences."""

import math
from collections.abc import Iterator
from itertools import groupby

import pandas as pd

from attnbench.report.numbers import format_digits, join_words
from attnbench.report.series import Series
from attnbench.report.tables import INCONCLUSIVE

__all__ = ["describe_fastest"]

RATIO = ("ratio", "ratio_low", "ratio_high")


def describe_fastest(series: Series) -> Iterator[str]:
    """Yield sentences that name the fastest implementation at each length.

    One sentence covers all adjacent lengths that have the same fastest implementation.
    """
    for name, part in series.timings.groupby("pass"):
        winners = [
            (int(str(length)), *_find_fastest(rows, series.reference)) for length, rows in part.groupby("length")
        ]
        for words, group in groupby(winners, key=lambda winner: winner[1]):
            stretch = list(group)
            lengths = [length for length, _, _ in stretch]
            gains = [gain for *_, gain in stretch if gain == gain]
            at = f"L = {lengths[0]}" if len(lengths) == 1 else f"L = {lengths[0]} to {lengths[-1]}"
            low, high = (_format_gain(min(gains)), _format_gain(max(gains))) if gains else ("", "")
            gain = (
                f", {low if low == high else f'{low} to {high}'} times as fast as {series.reference}" if gains else ""
            )
            fastest_one, *rest = words.split(", but ")
            but = f", but {rest[0]}" if rest else ""
            yield f"{str(name).capitalize()}, {at}: {fastest_one}{gain}{but}."


def _format_gain(value: float) -> str:
    # A gain below 1.1 gets three digits. With two digits, 1.02 would be written as 1.0, as if there were no gain.
    return format_digits(value, 3 if value < 1.1 else 2)


def _find_fastest(rows: pd.DataFrame, reference: str) -> tuple[str, float]:
    """Return a phrase about the fastest implementation, and its speed-up over the reference.

    The phrase names the fastest implementation, and the implementations that cannot be distinguished from it. If every
    implementation has a ratio to the reference, the ratios are compared, else the times. Ratios are more exact, since
    times also contain the disturbances of each process. The speed-up is NaN if the reference may be as fast.
    """
    disturbed = rows["state"] == INCONCLUSIVE
    if disturbed.iloc[int(rows["median_ns"].argmin())]:
        return "inconclusive", math.nan
    rows = rows[~disturbed]
    all_ratios = not rows["ratio"].isna().any()
    value, low, high = RATIO if all_ratios else ("median_ns", "low_ns", "high_ns")
    ordered = rows.sort_values(value)
    best = ordered.iloc[0]
    state = str(best["state"])
    level = set(ordered[ordered[low] <= best[high]]["implementation"])
    if all_ratios and state != "faster" and best["implementation"] != reference:
        level.add(reference)
    # No speed-up is stated if the reference may be as fast as the best implementation.
    gain = math.nan if reference in level or state != "faster" else 1 / best["ratio"]
    if len(level) == 1:
        return f"{best['implementation']} is fastest", gain
    others = join_words([name for name in ordered["implementation"] if name in level - {best["implementation"]}])
    return f"{best['implementation']} is fastest, but cannot be distinguished from {others}", gain
