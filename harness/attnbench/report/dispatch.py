"""The file ``dispatch.json`` of a report: what to use at which shape, for programs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnbench.analysis.dispatch import Dispatch, DispatchCell, Offer
from attnbench.analysis.refused_features import RefusalsOfRuns
from attnbench.analysis.stats import Interval
from attnbench.analysis.summary import Decision, Summary
from attnbench.cases import Case, Problem
from attnbench.plugins.registry import load_problem_types
from attnbench.records.run_file import StoredRun

__all__ = ["make_dispatch"]


def make_dispatch(runs: Sequence[StoredRun], summary: Summary) -> Dispatch:
    """Return every timed call of these runs with the implementations that may be chosen for it."""
    refusals, types = RefusalsOfRuns(runs), load_problem_types()
    return Dispatch(
        versions={stored.run.id: stored.run.versions for stored in runs},
        cells=[_make_cell(one, refusals, types) for one in summary.decisions],
    )


def _make_cell(decision: Decision, refusals: RefusalsOfRuns, types: Mapping[str, type[Problem]]) -> DispatchCell:
    table, column = decision.table, decision.column
    bounds = table.bounds.get(column)
    # Of a damaged or merged run, the bounds may name an implementation whose time is left out.
    timed = [name for name in (bounds.over if bounds else ()) if name in decision.cells]
    names = sorted(timed, key=lambda name: _find_time_ns(decision, name))
    cell = DispatchCell(
        machine=table.place.machine,
        device=table.place.device,
        dtype=table.place.dtype,
        threads=table.place.threads,
        case=column.case,
        passes=column.pass_,
        queries=column.queries,
        keys=column.keys,
        reference=table.baseline,
        offers=tuple(_make_offer(decision, name, refusals) for name in names),
        processes=bounds.processes if bounds else 0,
        control_failed=bounds is not None and bounds.control_failed,
        conforming=table.conforming,
    )
    return _add_sizes(cell, types)


def _find_time_ns(decision: Decision, name: str) -> float:
    time = decision.cells[name].time_ns
    return math.inf if time is None else time.value


def _make_offer(decision: Decision, name: str, refusals: RefusalsOfRuns) -> Offer:
    cell, conformance = decision.cells[name], decision.conformance[name]
    found = refusals.find(name, cell.run, decision.table.place.device)
    over = decision.table.bounds[decision.column].over[name]
    ratio = cell.ratio
    return Offer(
        name=name,
        time_ns=_find_time_ns(decision, name),
        ratio=Interval(value=ratio.value, low=ratio.low, high=ratio.high) if ratio else None,
        over={other: bound if math.isfinite(bound) else None for other, bound in over.items()},
        run=cell.run,
        line=cell.line,
        checked=conformance.checked,
        suite=conformance.suite,
        refused=found.names,
        refusals_known=found.known,
    )


def _add_sizes(cell: DispatchCell, types: Mapping[str, type[Problem]]) -> DispatchCell:
    """Return the cell with the sizes and the mask of its case; without them if its operator is not installed."""
    try:
        problem = Case.parse(cell.case, dict(types)).problem
    except ValueError:
        return cell
    return replace(
        cell,
        batch=problem.sequences,
        heads=problem.num_heads,
        kv_heads=problem.head_groups,
        head_dim=getattr(problem, "head_dim", None),
        mask=problem.mask,
    )
