"""Whether a call was disturbed: its threads waited for a core, or the clock of the device changed."""

__all__ = ["is_clean", "is_throttled"]

# NVML's throttle reasons that do not slow a call down: the device is idle, or an application set the clocks. NVML adds
# reasons from time to time, so every other bit counts as a slowdown.
IDLE, SETTING = 0x1, 0x2
HARMLESS = IDLE | SETTING
# Relative change of the clock that is allowed between two readings. Clocks change in steps of at most 15 MHz, which is
# under 1 % from 1500 MHz on, so one step is allowed and two are not.
STEADY_SHARE = 0.01
# Share of a call's wall time for which its threads may have waited for a core. Not zero: even on an idle machine a call
# of 100 ms on several threads is rarely free of context switches.
CLEAN_SHARE = 0.005


def is_clean(time_ns: int, waited_ns: int | None, switches: int | None) -> bool:
    """Whether a call had its cores all the time, by its waiting time or else by its switches; True without either."""
    if waited_ns is not None:
        return waited_ns <= CLEAN_SHARE * time_ns
    return not switches


def is_throttled(before_mhz: int, after_mhz: int, reasons: int) -> bool:
    """Whether the clock changed between two readings, was throttled at either, or could not be read."""
    if not before_mhz or not after_mhz or reasons & ~HARMLESS:
        return True
    return abs(after_mhz - before_mhz) > STEADY_SHARE * before_mhz
