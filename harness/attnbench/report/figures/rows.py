"""Rows of tables that a figure can draw, and sentences about them."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from attnbench.analysis.plain_names import join_words
from attnbench.report.figures.labels import make_labels
from attnbench.report.numbers import format_count, format_thousands

__all__ = ["describe_ends", "keep_drawable", "name_left_out", "name_single"]

# Most implementations that a sentence names.
MOST_NAMED = 4


def keep_drawable(frame: pd.DataFrame, value: str, low: str, high: str) -> pd.DataFrame:
    """Return the rows whose value is finite and above 0, with the columns ``value``, ``low`` and ``high``.

    Where the ends of the interval are no such numbers, the value takes their place. Of several rows about one
    implementation, pass and length, the last one is kept.
    """
    drawn = frame[np.isfinite(frame[value].astype(float)) & (frame[value].astype(float) > 0)]
    values = drawn[value].astype(float)
    ends = {}
    for name, column in (("low", low), ("high", high)):
        end = drawn[column].astype(float)
        ends[name] = end.where(np.isfinite(end) & (end > 0), values)
    return drawn.assign(value=values, **ends).drop_duplicates(["implementation", "pass", "length"], keep="last")


def name_left_out(rows: pd.DataFrame, why: str, what: str = "call") -> tuple[str, ...]:
    """Return a sentence that names the implementations of calls that a figure leaves out, if there are any."""
    if rows.empty:
        return ()
    return (f"Left out, {why}: {format_count(len(rows), what)} of {_name(list(rows['implementation'].unique()))}.",)


def name_single(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return a sentence about calls that were timed in one process, if there are any."""
    single = rows[rows["processes"] == 1]
    if single.empty:
        return ()
    if len(single) == len(rows):
        return ("All points: 1 process, no interval.",)
    names = _name(list(single["implementation"].unique()))
    return (f"1 process, no interval: {format_count(len(single), 'point')} of {names}.",)


def describe_ends(rows: pd.DataFrame, reference: str, text: Callable[[float], str], words: tuple[str, str]) -> str:
    """Describe the longest calls of each pass for readers who do not see a figure: least, reference and most.

    ``words`` are put before the implementations with the smallest and the largest value, such as fastest and slowest.
    Values from disturbed calls are left out.
    """
    parts = []
    if "calls" in rows:
        rows = rows[rows["calls"] != "disturbed"]
    if rows.empty:
        return "All calls were disturbed."
    for name, part in rows.groupby("pass"):
        last = part[part["length"] == part["length"].max()].sort_values("value", kind="stable")
        labels = make_labels(last["implementation"])
        shown = {words[0]: last.iloc[0], words[1]: last.iloc[-1]}
        own = last[last["implementation"] == reference]
        found = [f"{word} {labels[row['implementation']]} {text(row['value'])}" for word, row in shown.items()]
        found += [f"reference {labels[reference]} {text(own.iloc[0]['value'])}"] if len(own) else []
        length = format_thousands(int(last.iloc[0]["length"]))
        parts.append(f"{name} at L = {length}: {', '.join(found if len(last) > 1 else found[:1])}")
    return "; ".join(parts) + "."


def _name(names: Sequence[str]) -> str:
    labels = list(make_labels(names).values())
    more = [f"{len(labels) - MOST_NAMED} others"] if len(labels) > MOST_NAMED + 1 else []
    return join_words([*labels[: MOST_NAMED if more else None], *more])
