"""The cells of the crossover map: what follows from the tables of a report for each place, form, length and pass."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from attnbench.analysis.completeness import Unfinished
from attnbench.analysis.coverage import FEWEST_CHECKED, is_checked
from attnbench.analysis.crossover import DECISIVE, Answer, Contender, Entry, Interval, choose
from attnbench.analysis.limits import LimitsOfRuns
from attnbench.analysis.speed_verdict import State
from attnbench.cases import CaseId
from attnbench.records.run_file import StoredRun
from attnbench.records.types import FRONTIER, PERF, Result, Status, find_pass
from attnbench.report.series import Place, Series
from attnbench.report.tables import list_rows

__all__ = ["Conformance", "collect_entries"]

# Statuses with which an implementation is no choice. An implementation that runs out of time or memory at one length
# may still be a choice at other lengths.
WRONG: frozenset[Status] = frozenset({"failed", "error", "crashed"})


class Conformance:
    """What is known of each implementation on a machine and a device: its checked cases, and whether it fails.

    ``results`` are the merged results of all runs.
    """

    def __init__(self, runs: Sequence[StoredRun], results: Iterable[Result], unfinished: Unfinished) -> None:
        machines = {stored.run.id: stored.run.machine.name for stored in runs}
        self._checked: dict[tuple[str, str, str], int] = {}
        self._wrong: set[tuple[str, str, str]] = set()
        self._unfinished = unfinished
        for result in results:
            if result.suite == FRONTIER:
                continue
            key = machines[result.run], CaseId.parse(result.case).device, result.implementation
            self._checked[key] = self._checked.get(key, 0) + (result.suite != PERF and is_checked(result))
            if any(finding.status in WRONG for finding in result.findings):
                self._wrong.add(key)

    def is_wrong(self, place: Place, name: str) -> bool:
        """Whether an implementation fails a check on the machine and device of a place."""
        return (place.machine, place.device, name) in self._wrong

    def is_unfinished(self, place: Place, name: str) -> bool:
        """Whether a run on the machine of a place left out checks of an implementation."""
        return name in self._unfinished.get(place.machine, ())

    def count(self, place: Place, name: str) -> int:
        """Return how many cases of suites were checked on the machine and device of a place."""
        return self._checked.get((place.machine, place.device, name), 0)


def collect_entries(runs: Sequence[StoredRun], series: Sequence[Series], conformance: Conformance) -> tuple[Entry, ...]:
    """Return the cells of the crossover map."""
    limits = LimitsOfRuns(runs)
    return tuple(entry for one in series for entry in _list_entries(one, limits, conformance))


def _list_entries(series: Series, limits: LimitsOfRuns, conformance: Conformance) -> Iterator[Entry]:
    """Yield the entries of a series by mode and length; a case without timings has none."""
    place, reference = series.place, series.reference
    by_case: dict[str, list[dict[str, Any]]] = {}
    for row in list_rows(series.timings):
        by_case.setdefault(str(row["case"]), []).append(row)
    peaks = {
        (str(case), str(name)): float(peak)
        for case, name, peak in zip(
            series.memory["case"], series.memory["implementation"], series.memory["peak_bytes"], strict=True
        )
        if peak == peak
    }
    for case, rows in sorted(by_case.items(), key=lambda item: _order_case(item[0])):
        every = [_make_contender(row) for row in rows]
        wrong = {one.implementation for one in every if conformance.is_wrong(place, one.implementation)}
        # Calls that all have the same values may be shorter because results are kept.
        fixed = frozenset(str(row["implementation"]) for row in rows if row["values"] == "fixed")
        # A reference that fails checks stays a contender, because all times are compared with the reference's time.
        contenders = [one for one in every if one.implementation not in (wrong | fixed) - {reference}]
        if not contenders:
            continue
        answer = choose(contenders, reference)
        checked = {one.implementation: conformance.count(place, one.implementation) for one in contenders}
        timed_in = {one.implementation: one.run for one in contenders}
        unfinished = {name for name in timed_in if conformance.is_unfinished(place, name)}
        conform = {name for name, count in checked.items() if count >= FEWEST_CHECKED} - unfinished - wrong
        parsed = CaseId.parse(case)
        queries, keys = parsed.lengths
        device = place.device
        conforming = _choose_conforming(contenders, reference, conform)
        yield Entry(
            machine=series.place.machine,
            device=device,
            dtype=series.place.dtype,
            threads=series.place.threads,
            form=series.form,
            queries=queries,
            keys=keys,
            mode=parsed.mode,
            pass_=find_pass(case),
            reference=series.reference,
            answer=answer,
            excluded=tuple(sorted(wrong)),
            conform=frozenset(conform),
            conforming=conforming,
            case=case,
            contenders=tuple(contenders),
            contender_limits={name: limits.find(name, run, device) for name, run in timed_in.items()},
            contender_checked=checked,
            peak_bytes=peaks.get((case, answer.names[0])),
            reference_peak_bytes=peaks.get((case, reference)),
            conforming_peak_bytes=peaks.get((case, conforming.names[0])) if conforming else None,
            timed=frozenset(timed_in),
            fixed=fixed,
        )


def _choose_conforming(contenders: Sequence[Contender], reference: str, conform: Set[str]) -> Answer | None:
    """Return the answer among the reference and the implementations that conform.

    Return None if all contenders conform, or if the answer is not known to conform.
    """
    known = [one for one in contenders if one.implementation in {*conform, reference}]
    if not conform or len(conform) == len(contenders):
        return None
    found = choose(known, reference)
    # A reference that fails checks, or on which too few cases were checked, is compared with, but never recommended.
    advised = found.names[0] if found.kind in DECISIVE else reference
    return found if advised in conform else None


def _order_case(case: str) -> tuple[str, int, int, int]:
    parsed = CaseId.parse(case)
    queries, keys = parsed.lengths
    return parsed.mode, max(queries, keys), queries, keys


def _make_contender(row: Mapping[str, Any]) -> Contender:
    ratio = None
    if row["ratio"] == row["ratio"]:
        ratio = Interval(
            value=row["ratio"], low=row["ratio_low"], high=row["ratio_high"], processes=int(row["counted"])
        )
    state: State = row["state"]
    return Contender(
        implementation=str(row["implementation"]),
        time_ns=float(row["median_ns"]),
        ratio=ratio,
        state=state,
        reason=str(row["reason"]),
        run=str(row["run"]),
        seen=None if row["seen_ratio"] != row["seen_ratio"] else float(row["seen_ratio"]),
    )
