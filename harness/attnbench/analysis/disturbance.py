"""Whether a call was disturbed: its threads had to wait for a core, or the device's clock changed under it."""

__all__ = ["clean", "throttled"]

# Reasons that slow nothing down: nothing runs, and clocks that somebody set. NVML adds reasons now and then, so every
# other bit counts as one that does.
IDLE, SETTING = 0x1, 0x2
HARMLESS = IDLE | SETTING
# Share by which the clock may move between two readings. A device steps by 15 MHz or less, which is under 1 % from
# 1500 MHz on, so one step passes and two do not.
STEADY_SHARE = 0.01
# Share of a call's wall time that its threads may have waited for a core. Not zero: a call of 100 ms on several
# threads is hardly ever free of switches, on an idle machine either.
CLEAN_SHARE = 0.005


def clean(time_ns: int, waited_ns: int | None, switches: int | None) -> bool:
    """Whether a call had its cores all the time, by the finest counter there is; a call without any counts as such."""
    if waited_ns is not None:
        return waited_ns <= CLEAN_SHARE * time_ns
    return not switches


def throttled(before_mhz: int, after_mhz: int, reasons: int) -> bool:
    """Whether the clock moved between two readings, was held down at either, or could not be read."""
    if not before_mhz or not after_mhz or reasons & ~HARMLESS:
        return True
    return abs(after_mhz - before_mhz) > STEADY_SHARE * before_mhz
