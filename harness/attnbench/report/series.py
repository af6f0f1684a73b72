"""Measurements that may be compared with one another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from attnbench.records.run_file import StoredRun
from attnbench.records.types import Result
from attnbench.report import tables
from attnbench.report.growth import GROWTH, growths
from attnbench.report.numbers import many

__all__ = ["Series", "growths_in", "series_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Measurements that may be compared: one machine, its threads, device, dtype; cases differ in length and pass."""

    title: str
    # Implementation whose times others are told by.
    reference: str
    # Ending of its files' names; empty where a report has one series.
    suffix: str
    timings: pd.DataFrame
    memory: pd.DataFrame
    untimed: pd.DataFrame
    kernels: pd.DataFrame
    growths: pd.DataFrame


def series_in(runs: Sequence[StoredRun], results: Sequence[Result]) -> Iterator[Series]:
    """Series in the results of these runs."""
    reached = [ceiling for stored in runs for ceiling in stored.ceilings]
    places = {stored.run.id: (stored.run.machine.name, stored.run.threads) for stored in runs}
    keys: dict[tuple[str, int, str], list[Result]] = {}
    for result in results:
        if result.timing or result.memory:
            keys.setdefault((*places[result.run], tables.series_of(result.case)), [])
    for result in results:
        key = *places[result.run], tables.series_of(result.case)
        if key in keys:
            keys[key].append(result)
    for (machine, threads, series), own in sorted(keys.items(), key=lambda item: item[0][:2]):
        *_, dtype, device = series.split("/")
        alike = [(m, t, s) for m, t, s in keys if m == machine and s.endswith(f"/{dtype}/{device}")]
        other = sum(key < (machine, threads, series) for key in alike)
        suffix = f"-{machine}-{device}-{dtype}" + (f"-{other + 1}" if other else "")
        timings, memory = tables.timings(own, reached), tables.memory(own)
        yield Series(
            title=f"{machine}, {device}, {dtype}, {many(threads, 'thread')}: {'/'.join(series.split('/')[:-2])}",
            reference=tables.reference(series),
            suffix=suffix if len(keys) > 1 else "",
            timings=timings,
            memory=memory,
            untimed=tables.untimed(own),
            kernels=tables.kernels(own),
            growths=growths(timings, memory),
        )


def growths_in(series: Sequence[Series]) -> pd.DataFrame:
    """Exponents of all series, each row with the series that it is of."""
    rows = [{**row, "series": one.title} for one in series for row in one.growths.to_dict("records")]
    return pd.DataFrame(rows, columns=[*GROWTH, "series"])
