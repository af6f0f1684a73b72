"""Formats numbers and lists for reading: three significant digits, and a unit that suits the size of the number."""

import math
from collections.abc import Sequence

__all__ = [
    "format_bytes",
    "format_count",
    "format_digits",
    "format_estimate",
    "format_seconds",
    "format_thousands",
    "shorten_text",
]

MISSING = "–"


def format_digits(value: float, count: int = 3) -> str:
    """Format a number with ``count`` significant digits; below 10⁻⁴ and from 10⁶ on, with an exponent."""
    if math.isnan(value):
        return MISSING
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent < 6:
        return f"{value:.{count - 1}e}"
    return f"{value:.{max(0, count - 1 - exponent)}f}"


def format_estimate(value: float, low: float, high: float, processes: float, *, unit: str = "", digits: int = 3) -> str:
    """Format a median over processes with its confidence interval: "1.23 [1.20 to 1.26]".

    The unit, such as "×", follows the value. One process gives "1.23, 1 process, no interval".
    """
    if math.isnan(value):
        return MISSING
    shown = f"{format_digits(value, digits)}{unit}"
    if processes <= 1 or math.isnan(low):
        return f"{shown}, 1 process, no interval"
    return f"{shown} [{format_digits(low, digits)} to {format_digits(high, digits)}]"


def format_seconds(seconds: float) -> str:
    """Format a time with three significant digits, in s, ms, µs or ns."""
    return _format_scaled(seconds, ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))


def format_bytes(count: float) -> str:
    """Format a number of bytes with three significant digits, in B, KiB, MiB, GiB or TiB."""
    return _format_scaled(count, ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")))


def format_thousands(count: int) -> str:
    """Format a whole number with a space between groups of three digits."""
    return f"{count:,}".replace(",", " ")


def format_count(count: int, word: str, plural: str = "") -> str:
    """Format a count and a word; unless the count is 1, the word is ``plural``, or gets an s if ``plural`` is empty."""
    return f"{format_thousands(count)} {word if count == 1 else plural or word + 's'}"


def shorten_text(text: str, longest: int) -> str:
    """Return the text, or as many of its words as ``longest`` characters hold, and a sign that more follows."""
    if len(text) <= longest:
        return text
    start = text[: longest + 1]
    return f"{start.rpartition(' ')[0].rstrip() or text[:longest]} …"


def _format_scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    # The factor 1 - 1e-9 tolerates rounding: an axis tick at 10⁻³ s, stored one bit below 10⁻³, is still 1 ms.
    factor, unit = next(((f, u) for f, u in units if abs(value) >= f * (1 - 1e-9)), units[-1])
    rounded = float(f"{value / factor:.3g}")
    # From 1000 on, ``g`` alone would write an exponent.
    return f"{format_thousands(round(rounded)) if abs(rounded) >= 1000 else f'{rounded:g}'} {unit}"
