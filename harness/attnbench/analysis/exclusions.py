"""Measurements that cannot be right: found before anything is computed from them, named, and left out.

A run file may have been edited, or damaged where it was stored. ``read_run`` refuses records of another form. The
values of a record of the right form are judged here. A result keeps its findings where its timing or its memory is left
out.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.analysis.max_length import find_length
from attnbench.cases import CaseId
from attnbench.plugins.registry import PluginError
from attnbench.records.compact_reading import Inspection, inspect_timing, load_samples
from attnbench.records.outcome_facts import Implausible
from attnbench.records.run_file import StoredRun
from attnbench.records.sample_faults import LARGEST, show_number
from attnbench.records.types import FRONTIER, Ceiling, Memory, Result, Run
from attnbench.records.value_facts import Phrase, phrase

__all__ = ["Exclusion", "exclude_implausible"]

# Fields of a Memory, in bytes; all except ``peak_bytes`` may be None.
BYTES = ("peak_bytes", "saved_bytes", "workspace_bytes", "physical_bytes", "outside_bytes", "reserved_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Something that is left out of all numbers, and why; ``kind`` is one word, such as "timing"."""

    kind: str
    run: str
    # ``implementation``, ``case``: empty if what is left out belongs to no implementation, or to no case.
    implementation: str
    case: str
    # Described by ``words.exclusions``.
    reason: Phrase


def exclude_implausible(runs: Sequence[StoredRun]) -> tuple[list[StoredRun], tuple[Exclusion, ...]]:
    """Return these runs without what cannot be right, and what was left out."""
    kept: dict[str, StoredRun] = {}
    left: list[Exclusion] = []
    whole: list[StoredRun] = []
    for stored in runs:
        if stored.run.id in kept and stored.run != kept[stored.run.id].run:
            left.append(_name("run", stored.run, phrase("same_id", file=stored.path.name)))
            continue
        kept[stored.run.id] = stored
        whole.append(_clean_run(stored, left))
    return whole, tuple(left)


def _clean_run(stored: StoredRun, left: list[Exclusion]) -> StoredRun:
    run = stored.run
    ceilings = []
    for ceiling in stored.ceilings:
        if fault := _find_ceiling_fault(ceiling):
            left.append(_name("ceiling", run, fault))
        else:
            ceilings.append(ceiling)
    cleaned = [pair for result in stored.results if (pair := _clean_result(result, run, left))]
    names = {*run.implementations, *(one.implementation for one in stored.results)}
    results = tuple(_separate(run, cleaned, names, left))
    machine = run.machine
    if not 0 <= machine.memory_bytes <= LARGEST:
        left.append(_name("machine", run, phrase("machine_memory", number=show_number(machine.memory_bytes))))
        run = replace(run, machine=replace(machine, memory_bytes=0))
    return replace(stored, run=run, results=results, ceilings=tuple(ceilings))


def _name(kind: str, run: Run, reason: Phrase, result: Result | None = None) -> Exclusion:
    implementation, case = (result.implementation, result.case) if result else ("", "")
    return Exclusion(kind=kind, run=run.id, implementation=implementation, case=case, reason=reason)


def _clean_result(result: Result, run: Run, left: list[Exclusion]) -> tuple[Result, Inspection | None] | None:
    """Return a result without its unusable measurements, and how it was timed; None if no part of it is usable.

    What is unusable is added to ``left``.
    """
    interleaved = None
    if fault := _find_result_fault(result):
        left.append(_name("result", run, fault, result))
        return None
    timing, memory = result.timing, result.memory
    if timing is not None:
        found = inspect_timing(timing)
        if found.fault:
            left.append(_name("timing", run, found.fault, result))
            result = replace(result, timing=None, untimed=result.untimed or Implausible(fault=found.fault))
        else:
            interleaved = found
    if memory is not None and (fault := _find_memory_fault(memory)):
        left.append(_name("memory", run, fault, result))
        result = replace(result, memory=None)
    if fault := _find_count_fault("flop", result.flop):
        left.append(_name("work", run, fault, result))
        result = replace(result, flop=None)
    if fault := _find_count_fault("bytes", result.bytes):
        left.append(_name("work", run, fault, result))
        result = replace(result, bytes=None)
    return result, interleaved


def _find_count_fault(field: str, value: int | None) -> Phrase | None:
    """Return why a number of operations or bytes cannot be used; None if it can, or if there is none."""
    if value is None or 0 <= value <= LARGEST:
        return None
    return phrase("impossible_count", field=field, number=show_number(value))


def _find_result_fault(result: Result) -> Phrase | None:
    """Return why a whole result cannot be used; None if it can."""
    try:
        length = CaseId.parse(result.case).length
    except ValueError as error:
        return phrase("unreadable_case", error=str(error))
    if length > LARGEST:
        return phrase("endless_case")
    if length == 0 and (result.timing or result.memory):
        # The length is also 0 for an operator without lengths. A case without tokens has a 0 written in its id.
        sizes = CaseId.parse(result.case).problem.partition("/")[0].split(".")
        if any(size in ("L0", "S0") for size in sizes):
            return phrase("no_tokens")
    return _find_search_fault(result) if result.suite == FRONTIER else None


def _find_search_fault(result: Result) -> Phrase | None:
    """Return why a result of a search for the longest sequence cannot be used; None if it can."""
    if not result.findings:
        return phrase("search_without_finding")
    try:
        find_length(result.case)
    except (ValueError, PluginError) as error:
        return phrase("search_without_length", error=str(error))
    return None


def _find_memory_fault(memory: Memory) -> Phrase | None:
    return next((fault for field in BYTES if (fault := _find_count_fault(field, getattr(memory, field)))), None)


def _find_ceiling_fault(ceiling: Ceiling) -> Phrase | None:
    for field in ("flop_per_s", "bytes_per_s"):
        rate = getattr(ceiling, field)
        if not 0 < rate < math.inf:
            return phrase("impossible_rate", device=ceiling.device, dtype=ceiling.dtype, field=field, rate=rate)
    return None


def _separate(
    run: Run,
    cleaned: Sequence[tuple[Result, Inspection | None]],
    names: Collection[str],
    left: list[Exclusion],
) -> Iterator[Result]:
    """Yield the results; what a timing cannot have been interleaved with is removed from it, and added to ``left``.

    It cannot be known which of two contradicting timings is wrong. Each keeps its time, but they are not compared with
    each other. ``names`` are the implementations of the run. An implementation without a timing of the case, such as
    one that failed meanwhile, is no contradiction.
    """
    timed = {(one.case, one.implementation): own for one, own in cleaned if own}
    for result, own in cleaned:
        faults = dict(_list_contradictions(result.case, own, timed, names)) if own else {}
        if not own or not faults or result.timing is None:
            yield result
            continue
        left += [_name("comparison", run, fault, result) for fault in faults.values()]
        partners = tuple(name for name in own.partners if name not in faults)
        yield replace(result, timing=replace(load_samples(result.timing), interleaved_with=partners))


def _list_contradictions(
    case: str, own: Inspection, timed: Mapping[tuple[str, str], Inspection], names: Collection[str]
) -> Iterator[tuple[str, Phrase]]:
    """Yield each implementation with which a timing cannot have been interleaved, although it says so, and why."""
    for name in own.partners:
        other = timed.get((case, name))
        if name not in names:
            yield name, phrase("absent_partner", name=name)
        elif other is not None and other.processes != own.processes:
            fault = phrase("contradicting_partner", count=own.processes, name=name, other=other.processes)
            yield name, fault
