"""The file ``dispatch.json`` of a report: what to use at which shape, for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnbench.analysis.crossover import Entry
from attnbench.analysis.dispatch import Cell, Dispatch, Offer
from attnbench.cases import Case, Problem
from attnbench.plugins.registry import load_problem_types
from attnbench.records.run_file import StoredRun

__all__ = ["make_dispatch"]


def make_dispatch(runs: Sequence[StoredRun], entries: Sequence[Entry]) -> Dispatch:
    """Return every timed call of these runs with the implementations that may be chosen for it."""
    lines = {stored.run.id: stored.timed_lines for stored in runs}
    types = load_problem_types()
    return Dispatch(
        versions={stored.run.id: stored.run.versions for stored in runs},
        cells=[_make_cell(entry, lines, types) for entry in entries],
    )


def _make_cell(
    entry: Entry, lines: Mapping[str, Mapping[tuple[str, str], int]], types: Mapping[str, type[Problem]]
) -> Cell:
    offers = (
        Offer(
            contender=one,
            line=lines.get(one.run, {}).get((one.implementation, entry.case), 0),
            checked=entry.contender_checked[one.implementation],
            refused=entry.contender_limits[one.implementation].refused,
            refusals_known=entry.contender_limits[one.implementation].known,
        )
        for one in sorted(entry.contenders, key=lambda one: one.time_ns)
    )
    cell = Cell(
        machine=entry.machine,
        device=entry.device,
        dtype=entry.dtype,
        threads=entry.threads,
        case=entry.case,
        passes=entry.pass_,
        queries=entry.queries,
        keys=entry.keys,
        reference=entry.reference,
        offers=tuple(offers),
    )
    return _add_sizes(cell, types)


def _add_sizes(cell: Cell, types: Mapping[str, type[Problem]]) -> Cell:
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
