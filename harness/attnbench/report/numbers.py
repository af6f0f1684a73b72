"""Numbers as they are read: three digits, and the unit that makes them short."""

import math
from collections.abc import Sequence

__all__ = ["bytes_text", "digits", "interval_text", "many", "ratio_text", "seconds_text", "thousands"]

MISSING = "–"


def digits(value: float, count: int = 3) -> str:
    """Number with this many significant digits, and never an exponent where a reader would not want one."""
    if math.isnan(value):
        return MISSING
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent < 6:
        return f"{value:.{count - 1}e}"
    return f"{value:.{max(0, count - 1 - exponent)}f}"


def interval_text(low: float, high: float) -> str:
    """Interval in the digits of its ends."""
    return MISSING if math.isnan(low) else f"{digits(low)}–{digits(high)}"


def ratio_text(value: float) -> str:
    """Ratio and its sign."""
    return MISSING if math.isnan(value) else f"{digits(value)}×"


def seconds_text(seconds: float) -> str:
    """Time in the unit that makes it short."""
    return _scaled(seconds, ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))


def bytes_text(count: float) -> str:
    """Bytes in the binary unit that makes them short."""
    return _scaled(count, ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")))


def thousands(count: int) -> str:
    """Whole number with a space before each three digits."""
    return f"{count:,}".replace(",", " ")


def many(count: int, word: str) -> str:
    """Number and the word that it counts."""
    return f"{thousands(count)} {word}" + ("s" if count != 1 else "")


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    # The tick at 10⁻³ s may be one bit short of it.
    factor, unit = next(((f, u) for f, u in units if abs(value) >= f * (1 - 1e-9)), units[-1])
    return f"{float(f'{value / factor:.3g}'):g} {unit}"
