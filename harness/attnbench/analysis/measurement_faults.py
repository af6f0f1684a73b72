"""Finds stored measurements that cannot be right, such as negative times; reports leave them out, and name them."""

import math
from collections.abc import Iterable
from dataclasses import fields, replace

from attnbench.records.types import Ceiling, Memory, Result, Timing

__all__ = ["leave_out_faults", "select_ceilings"]

# Fields of a Timing with times per process or per sample.
TIMES = ("samples_ns", "device_ns", "graph_ns")


def leave_out_faults(results: Iterable[Result]) -> tuple[list[Result], list[str]]:
    """Return the results without timings and memory that cannot be right, and one line for each that was left out."""
    lines: list[str] = []
    kept = [_check_memory(_check_timing(result, lines), lines) for result in results]
    return kept, lines


def select_ceilings(ceilings: Iterable[Ceiling]) -> list[Ceiling]:
    """Return the ceilings whose rates are positive; no call can be compared with another one."""
    return [one for one in ceilings if min(one.flop_per_s, one.bytes_per_s) > 0 and math.isfinite(one.flop_per_s)]


def _check_timing(result: Result, lines: list[str]) -> Result:
    timing = result.timing
    if timing is None:
        return result
    if fault := _find_timing_fault(timing):
        lines.append(f"the timing of {_name(result)} is left out: {fault}")
        return replace(result, timing=None, untimed=f"the timing is left out: {fault}")
    if timing.twin and (fault := _find_twin_fault(timing, timing.twin)):
        lines.append(f"the A/A control of {_name(result)} is left out: {fault}")
        return replace(result, timing=replace(timing, twin=None))
    return result


def _check_memory(result: Result, lines: list[str]) -> Result:
    if result.memory is None or not (fault := _find_memory_fault(result.memory)):
        return result
    lines.append(f"the memory of {_name(result)} is left out: {fault}")
    return replace(result, memory=None)


def _name(result: Result) -> str:
    return f"{result.implementation} on {result.case} in run {result.run}"


def _find_timing_fault(timing: Timing) -> str:
    """Return why a timing cannot be right; empty if nothing is wrong with it."""
    if not any(timing.samples_ns):
        return "it has no samples"
    if len({len(timing.samples_ns)} | {len(getattr(timing, name)) for name in TIMES if getattr(timing, name)}) > 1:
        return "its lists of samples have different numbers of processes"
    for name in TIMES:
        least = min((sample for process in getattr(timing, name) for sample in process), default=1)
        if least <= 0:
            return f"{name} has a sample of {least} ns, and every sample must be positive"
    if any(timing.device_ns) and list(map(len, timing.device_ns)) != list(map(len, timing.samples_ns)):
        return "device_ns and samples_ns have different numbers of samples"
    least = min((*timing.build_ns, *timing.first_call_ns), default=0)
    return f"a time of building or of a first call is {least} ns" if least < 0 else ""


def _find_twin_fault(timing: Timing, twin: Timing) -> str:
    if len(twin.samples_ns) != len(timing.samples_ns):
        return f"it has {len(twin.samples_ns)} processes, and the timing {len(timing.samples_ns)}"
    return _find_timing_fault(twin)


def _find_memory_fault(memory: Memory) -> str:
    """Return which number of bytes is negative; empty if none is."""
    for name in (field.name for field in fields(memory) if field.name.endswith("_bytes")):
        count = getattr(memory, name)
        if count is not None and count < 0:
            return f"{name} is {count}"
    return ""
