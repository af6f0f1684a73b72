"""Timings that cannot be right: their samples have another layout, or values that no measurement has."""

from collections.abc import Sequence
from dataclasses import replace

from attnbench.records.types import SAMPLE_FIELDS, Timing
from attnbench.records.value_facts import Phrase, phrase

__all__ = ["LARGEST", "find_timing_fault", "show_number"]

# Largest number that a measurement may contain, in any unit: the largest signed integer of 64 bits. In nanoseconds it
# is 292 years, in bytes 8 EiB.
LARGEST = 2**63 - 1
# Sample fields that are times of calls, and therefore above 0. The numbers in the other sample fields may be 0.
TIMES = ("samples_ns", "device_ns", "graph_ns")


def find_timing_fault(timing: Timing) -> Phrase | None:
    """Return why a timing cannot be used; None if it can."""
    if not any(timing.samples_ns):
        return phrase("no_samples")
    for field in ("samples_ns", *SAMPLE_FIELDS):
        if fault := _find_field_fault(timing, field):
            return fault
    for field in ("build_ns", "first_call_ns"):
        values = getattr(timing, field)
        if values and not 0 <= min(values) <= max(values) <= LARGEST:
            return phrase("impossible_time", field=field, number=show_number(_find_worst(values)))
    if timing.twin is None:
        return None
    count, control = len(timing.samples_ns), len(timing.twin.samples_ns)
    if control != count:
        return phrase("processes_of_control", count=count, control=control)
    fault = find_timing_fault(replace(timing.twin, twin=None))
    return Phrase(key=f"control_{fault.key}", values=fault.values) if fault else None


def _find_field_fault(timing: Timing, field: str) -> Phrase | None:
    """Return why the samples of one field cannot be used: another layout, or a value that is not possible."""
    samples = getattr(timing, field)
    if not samples:
        return None
    if len(samples) != len(timing.samples_ns):
        return phrase("processes", field=field, count=len(samples), needed=len(timing.samples_ns))
    least = 1 if field in TIMES else 0
    for number, (values, calls) in enumerate(zip(samples, timing.samples_ns, strict=True)):
        if not values:
            continue
        if len(values) != len(calls):
            return phrase("numbers", field=field, count=len(values), process=number, needed=len(calls))
        # No value is above a sum of values that are not negative, and a sum takes less time than a maximum.
        if min(values) < least or (sum(values) > LARGEST and max(values) > LARGEST):
            worst = show_number(_find_worst(values))
            return phrase("impossible_sample", field=field, number=worst, process=number, least=least)
    return None


def _find_worst(values: Sequence[int]) -> int:
    """Return the largest value if it is too large, else the smallest one."""
    return max(values) if max(values) > LARGEST else min(values)


def show_number(number: int) -> str:
    """Format a number; beyond ``LARGEST``, only by a power of two, because Python formats at most 4,300 digits."""
    return str(number) if abs(number) <= LARGEST else f"{'−' if number < 0 else ''}2^{number.bit_length() - 1} or more"
