"""Series: groups of measurements that are comparable with one another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from attnbench.cases import CaseId
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
    # Suffix in the names of the plot files of this series; empty if the report has only one series.
    suffix: str
    timings: pd.DataFrame
    memory: pd.DataFrame
    untimed: pd.DataFrame
    kernels: pd.DataFrame
    growths: pd.DataFrame


class _Key(NamedTuple):
    """What the measurements of a series have in common; ``form`` is the problem without its length."""

    machine: str
    threads: int
    form: str
    dtype: str
    device: str


def group_series(runs: Sequence[StoredRun], results: Sequence[Result]) -> Iterator[Series]:
    """Group the measurements in ``results`` into series; ``runs`` are the runs that made these results."""
    reached = [ceiling for stored in runs for ceiling in stored.ceilings]
    places = {stored.run.id: (stored.run.machine.name, stored.run.threads) for stored in runs}
    keys: dict[_Key, list[Result]] = {}
    for result in results:
        if result.timing or result.memory:
            keys.setdefault(_make_key(result, *places[result.run]), [])
    for result in results:
        key = _make_key(result, *places[result.run])
        if key in keys:
            keys[key].append(result)
    for key, own in sorted(keys.items(), key=lambda item: item[0][:2]):
        machine, threads, form, dtype, device = key
        alike = [one for one in keys if (one.machine, one.dtype, one.device) == (machine, dtype, device)]
        other = sum(one < key for one in alike)
        suffix = f"-{machine}-{device}-{dtype}" + (f"-{other + 1}" if other else "")
        timings, memory = tables.tabulate_timings(own, reached), tables.tabulate_memory(own)
        yield Series(
            title=f"{machine}, {device}, {dtype}, {format_count(threads, 'thread')}: {form}",
            reference=tables.find_reference(own[0].case),
            suffix=suffix if len(keys) > 1 else "",
            timings=timings,
            memory=memory,
            untimed=tables.tabulate_untimed(own),
            kernels=tables.tabulate_kernels(own),
            growths=fit_growths(timings, memory),
        )


def _make_key(result: Result, machine: str, threads: int) -> _Key:
    case = CaseId.parse(result.case)
    return _Key(machine, threads, case.form, case.dtype, case.device)


def join_growths(series: Sequence[Series]) -> pd.DataFrame:
    """Join the growth exponents of all series into one data frame; each row has the title of its series."""
    rows = [{**row, "series": one.title} for one in series for row in one.growths.to_dict("records")]
    return pd.DataFrame(rows, columns=[*GROWTH, "series"])
