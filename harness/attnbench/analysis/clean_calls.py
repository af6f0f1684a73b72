"""Decides whether a call was disturbed: a thread waited for a core, or the device clock changed."""

from collections.abc import Sequence

__all__ = ["is_throttled", "select_clean"]

# Bits of NVML's throttle reasons that do not slow a call down: the device is idle (0x1), or an
# application set the clocks (0x2). New NVML versions add reasons, so every other bit counts as a
# slowdown.
IDLE, SETTING = 0x1, 0x2
HARMLESS = IDLE | SETTING
# Largest relative change between two readings of a clock that counts as steady. Clocks change in steps of at most
# 15 MHz. One step is at most 1 % of a clock of 1500 MHz or more, and therefore counts as steady.
STEADY_SHARE = 0.01
# Largest fraction of a clean call's wall time for which its threads waited for a core. The fraction is not zero,
# because a call of 100 ms on several threads is rarely free of context switches, even on an idle machine.
CLEAN_SHARE = 0.005


def select_clean(
    times_ns: Sequence[int], waited_ns: Sequence[int] | None, switches: Sequence[int] | None
) -> Sequence[int]:
    """Return the indices of the clean calls; a counter that was not recorded is None.

    A call is judged by ``waited_ns``, the time for which its threads waited for a core. If this time is not known, the
    call is judged by ``switches``, the number of its involuntary context switches. If neither is known, the call counts
    as clean. If all counters are 0, as on a quiet machine, the calls are not tested one by one, because a report has
    millions of calls.
    """
    if waited_ns is not None and any(waited_ns):
        pairs = zip(times_ns, waited_ns, strict=True)
        return [call for call, (time, waited) in enumerate(pairs) if not waited or waited <= CLEAN_SHARE * time]
    if waited_ns is None and switches is not None and any(switches):
        return [call for call, count in enumerate(switches) if not count]
    return range(len(times_ns))


def is_throttled(before_mhz: int, after_mhz: int, reasons: int) -> bool:
    """Whether the device's clock changed between two readings, was throttled, or could not be read.

    A reading of 0 MHz means that the clock could not be read. ``reasons`` contains the bits of
    NVML's throttle reasons at either reading.
    """
    if not before_mhz or not after_mhz or reasons & ~HARMLESS:
        return True
    return abs(after_mhz - before_mhz) > STEADY_SHARE * before_mhz
