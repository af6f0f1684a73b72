"""Series: groups of measurements that are comparable with one another."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import pandas as pd

from attnbench.cases import CaseId
from attnbench.records.run_file import StoredRun
from attnbench.records.types import Result
from attnbench.report import tables
from attnbench.report.forms import describe_form
from attnbench.report.growth import GROWTH, fit_growths
from attnbench.report.numbers import format_count
from attnbench.report.slugs import make_slug

__all__ = [
    "MachineDevice",
    "Place",
    "Series",
    "describe_undrawn",
    "group_series",
    "join_growths",
    "label_devices",
    "split_by_device",
]

# ``MOST_DRAWN``: most series with figures. ``MOST_CALLS``: most timed calls in the figures of all series; the largest
# series is always drawn. A series of 14 implementations with 70 calls takes two seconds of processor time and 250 kB of
# the page; a series of 400 calls takes four seconds.
MOST_DRAWN, MOST_CALLS = 4, 600
# Largest share of the ceiling; a larger one would be shown as 101 %.
MOST_SHARE = 1.005


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
    """Comparable measurements: same machine, threads, device and dtype; the cases differ only in length and pass.

    Cases with as many queries as keys are one series, and cases with one other number of queries are another one: their
    times do not lie on one curve.
    """

    place: Place
    # The problem of the cases, without its length.
    form: str
    # Number of queries, if it differs from the number of keys; else 0.
    queries: int = 0
    # Name of the reference implementation. A ratio is a time divided by the time of the reference.
    reference: str
    # Suffix in the names of the plot files of this series; empty if the report has only one series.
    suffix: str
    timings: pd.DataFrame
    memory: pd.DataFrame
    untimed: pd.DataFrame
    kernels: pd.DataFrame
    growths: pd.DataFrame
    # Whether the report has figures of this series, and its growth and code paths; see ``MOST_DRAWN``.
    drawn: bool = True
    # Whether a call at this place was faster than the measured ceiling allows. If so, shares of the ceiling mean
    # nothing.
    exceeds_ceiling: bool = False

    @property
    def heading(self) -> str:
        """The place and the form of the series, in words."""
        return f"{self.place.label}: {self.form_words}"

    @property
    def form_words(self) -> str:
        """The form of the series in words, with the number of queries if it differs from that of the keys."""
        few = f", {format_count(self.queries, 'query', 'queries')}" if self.queries else ""
        return describe_form(self.form) + few

    @property
    def title(self) -> str:
        """The place in words, and the form of the series as in the ids of its cases."""
        return f"{self.place.label}: {self.form}" + (f", {self.queries} queries" if self.queries else "")


class _Key(NamedTuple):
    """What the cases of a series have in common."""

    place: Place
    form: str
    queries: int


class MachineDevice(NamedTuple):
    """A machine and one of its devices; ``label`` names the device only if there are results of several."""

    machine: str
    device: str
    label: str


def split_by_device(runs: Iterable[StoredRun], results: Iterable[Result]) -> dict[MachineDevice, list[Result]]:
    """Return the results of each machine and device, in the order of their names."""
    machines = {stored.run.id: stored.run.machine.name for stored in runs}
    found: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        found.setdefault((machines[result.run], CaseId.parse(result.case).device), []).append(result)
    labels = label_devices(found)
    return {MachineDevice(*where, labels[where]): own for where, own in sorted(found.items())}


def label_devices(places: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the label of each machine and device: the machine, and the device if the machine has several."""
    every = list(dict.fromkeys(places))
    counts = Counter(machine for machine, _ in every)
    return {(machine, device): f"{machine}, {device}" if counts[machine] > 1 else machine for machine, device in every}


def group_series(runs: Sequence[StoredRun], results: Sequence[Result], made: tables.Tables) -> list[Series]:
    """Group the measurements in ``results`` into series.

    ``runs`` are the runs that made these results, and ``made`` are the tables of the results. A series has the rows of
    these tables that belong to it.
    """
    places = {stored.run.id: (stored.run.machine.name, stored.run.threads) for stored in runs}
    having = [result for result in results if any(has_row(result) for has_row in tables.HAS_ROW.values())]
    every = [_make_key(result.case, *places[result.run]) for result in having]
    keys = {key: result.case for key, result in zip(every, having, strict=True) if result.timing or result.memory}
    split = {name: _split_rows(getattr(made, name), name, having, every) for name in tables.HAS_ROW}
    alike = Counter(key.place[:3] for key in keys)
    found = []
    for key, case in sorted(keys.items()):
        place, form, queries = key
        # File names contain the number of threads and the form only where other series have the same other words.
        several = (*map(str, place), form, *([f"queries {queries}"] if queries else []))
        words = place[:3] if alike[place[:3]] == 1 else several
        own = {name: parts[key] if key in parts else getattr(made, name)[:0] for name, parts in split.items()}
        found.append(
            Series(
                place=place,
                form=form,
                queries=queries,
                reference=tables.find_reference(case),
                suffix="-" + make_slug(*words) if len(keys) > 1 else "",
                timings=own["timings"],
                memory=own["memory"],
                untimed=own["untimed"],
                kernels=own["kernels"],
                growths=fit_growths(own["timings"], own["memory"]),
            )
        )
    return _choose_drawn(_mark_exceeded(found))


def _split_rows(
    frame: pd.DataFrame, name: str, results: Sequence[Result], keys: Sequence[_Key]
) -> dict[_Key, pd.DataFrame]:
    """Return the rows of each series in the table ``name``; ``HAS_ROW`` says which results have a row in the table."""
    rows: dict[_Key, list[int]] = {}
    having = (key for key, result in zip(keys, results, strict=True) if tables.HAS_ROW[name](result))
    for row, key in enumerate(having):
        rows.setdefault(key, []).append(row)
    return {key: frame.iloc[own].reset_index(drop=True) for key, own in rows.items()}


def _mark_exceeded(series: Sequence[Series]) -> list[Series]:
    """Mark the series of places where a call was faster than the ceiling allows."""
    beyond = {one.place for one in series if (one.timings["share"] > MOST_SHARE).any()}
    return [replace(one, exceeds_ceiling=one.place in beyond) for one in series]


def _choose_drawn(series: Sequence[Series]) -> list[Series]:
    """Mark the series without figures: if not all fit into the limits, those with the fewest measured calls."""
    by_size = sorted(series, key=lambda one: -max(len(one.timings), len(one.memory)))
    sizes = accumulate(max(len(one.timings), len(one.memory)) for one in by_size)
    drawn = {
        id(one)
        for place, (one, calls) in enumerate(zip(by_size, sizes, strict=True))
        if place < MOST_DRAWN and (place == 0 or calls <= MOST_CALLS)
    }
    return [one if id(one) in drawn else replace(one, drawn=False) for one in series]


def describe_undrawn(series: Sequence[Series]) -> str:
    """Return the sentence that says how many series have figures; empty if all series have them."""
    drawn = sum(one.drawn for one in series)
    if drawn == len(series):
        return ""
    return (
        f"Figures, growth and code paths are shown for {drawn} of {format_count(len(series), 'series', 'series')}, "
        "with the most measured calls; timings.csv, memory.csv, growth.csv and kernels.csv have all of them."
    )


# The forms of a profile repeat: every implementation is timed on the same cases.
@lru_cache(maxsize=1 << 16)
def _make_key(case_id: str, machine: str, threads: int) -> _Key:
    case = CaseId.parse(case_id)
    queries, keys = case.lengths
    place = Place(machine, case.device, case.dtype, threads)
    return _Key(place, case.form, queries if queries and keys and queries != keys else 0)


def join_growths(series: Sequence[Series]) -> pd.DataFrame:
    """Join the growth exponents of all series into one data frame; each row has the title of its series."""
    rows = [{**row, "series": one.title} for one in series for row in tables.list_rows(one.growths)]
    return pd.DataFrame(rows, columns=[*GROWTH, "series"])
