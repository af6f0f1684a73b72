"""Series: groups of measurements that are comparable with one another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from attnbench.records.run_file import StoredRun
from attnbench.records.types import Result
from attnbench.report import tables
from attnbench.report.growth import GROWTH, fit_growths
from attnbench.report.numbers import format_count

__all__ = ["Series", "group_series", "join_growths"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Comparable measurements: same machine, threads, device and dtype; the cases differ only in length and pass."""

    title: str
    # Name of the reference implementation. A ratio is a time divided by the time of the reference.
    reference: str
    # Suffix in the file names of this series; empty if the report has only one series.
    suffix: str
    timings: pd.DataFrame
    memory: pd.DataFrame
    untimed: pd.DataFrame
    kernels: pd.DataFrame
    growths: pd.DataFrame


def group_series(runs: Sequence[StoredRun], results: Sequence[Result]) -> Iterator[Series]:
    """Group the results of these runs into series."""
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
        timings, memory = tables.tabulate_timings(own, reached), tables.tabulate_memory(own)
        yield Series(
            title=f"{machine}, {device}, {dtype}, {format_count(threads, 'thread')}: {series.rsplit('/', 2)[0]}",
            reference=tables.find_reference(series),
            suffix=suffix if len(keys) > 1 else "",
            timings=timings,
            memory=memory,
            untimed=tables.tabulate_untimed(own),
            kernels=tables.tabulate_kernels(own),
            growths=fit_growths(timings, memory),
        )


def join_growths(series: Sequence[Series]) -> pd.DataFrame:
    """Join the growth exponents of all series into one data frame; each row has the title of its series."""
    rows = [{**row, "series": one.title} for one in series for row in one.growths.to_dict("records")]
    return pd.DataFrame(rows, columns=[*GROWTH, "series"])
