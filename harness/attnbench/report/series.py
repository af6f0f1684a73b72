"""Series: groups of measurements that are comparable with one another."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from attnbench.cases import CaseId
from attnbench.records.run_file import StoredRun
from attnbench.records.types import Result
from attnbench.report import tables
from attnbench.report.growth import GROWTH, fit_growths
from attnbench.report.numbers import format_count
from attnbench.report.slugs import make_slug

__all__ = ["Place", "Series", "group_series", "join_growths", "split_by_machine"]


class Place(NamedTuple):
    """Where measurements are comparable with one another, if their cases are: machine, device, dtype and threads."""

    machine: str
    device: str
    dtype: str
    threads: int

    @property
    def label(self) -> str:
        """The place in words."""
        return f"{self.machine}, {self.device}, {self.dtype}, {format_count(self.threads, 'thread')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Comparable measurements: same machine, threads, device and dtype; the cases differ only in length and pass."""

    place: Place
    # The problem of the cases, without its length.
    form: str
    # Name of the reference implementation. A ratio is a time divided by the time of the reference.
    reference: str
    # Suffix in the names of the plot files of this series; empty if the report has only one series.
    suffix: str
    timings: pd.DataFrame
    memory: pd.DataFrame
    untimed: pd.DataFrame
    kernels: pd.DataFrame
    growths: pd.DataFrame

    @property
    def title(self) -> str:
        """The place and the form of the series, in words."""
        return f"{self.place.label}: {self.form}"


def split_by_machine(runs: Iterable[StoredRun], results: Iterable[Result]) -> dict[str, list[Result]]:
    """Return the results of each machine, by the machine's name, in the order of their first results."""
    machines = {stored.run.id: stored.run.machine.name for stored in runs}
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(machines[result.run], []).append(result)
    return found


def group_series(runs: Sequence[StoredRun], results: Sequence[Result]) -> Iterator[Series]:
    """Group the measurements in ``results`` into series; ``runs`` are the runs that made these results."""
    reached = [ceiling for stored in runs for ceiling in stored.ceilings]
    places = {stored.run.id: (stored.run.machine.name, stored.run.threads) for stored in runs}
    keys: dict[tuple[Place, str], list[Result]] = {}
    for result in results:
        if result.timing or result.memory:
            keys.setdefault(_make_key(result, *places[result.run]), [])
    for result in results:
        key = _make_key(result, *places[result.run])
        if key in keys:
            keys[key].append(result)
    alike = Counter(place[:3] for place, _ in keys)
    for (place, form), own in sorted(keys.items(), key=lambda item: item[0]):
        # Number of threads and form are in the names of files only where another series differs in nothing else.
        words = place[:3] if alike[place[:3]] == 1 else (*map(str, place), form)
        timings, memory = tables.tabulate_timings(own, reached), tables.tabulate_memory(own)
        yield Series(
            place=place,
            form=form,
            reference=tables.find_reference(own[0].case),
            suffix="-" + make_slug(*words) if len(keys) > 1 else "",
            timings=timings,
            memory=memory,
            untimed=tables.tabulate_untimed(own),
            kernels=tables.tabulate_kernels(own),
            growths=fit_growths(timings, memory),
        )


def _make_key(result: Result, machine: str, threads: int) -> tuple[Place, str]:
    case = CaseId.parse(result.case)
    return Place(machine, case.device, case.dtype, threads), case.form


def join_growths(series: Sequence[Series]) -> pd.DataFrame:
    """Join the growth exponents of all series into one data frame; each row has the title of its series."""
    rows = [{**row, "series": one.title} for one in series for row in one.growths.to_dict("records")]
    return pd.DataFrame(rows, columns=[*GROWTH, "series"])
