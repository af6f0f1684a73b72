"""Ticks of the y axes of figures."""

import math
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

__all__ = ["set_log_axis", "set_ratio_axis"]

# ``FEWEST``: smallest number of ticks at powers of the base of a logarithmic axis. If there are fewer, the ticks are at
# the multiples ``STEPS`` of powers of ten, or evenly spaced.
FEWEST, STEPS = 4, (1.0, 2.0, 5.0)
FRACTIONS = {0.25: "¼", 0.5: "½"}
# Ticks of an axis of ratios, by the smallest span in powers of two of an axis that gets them. An axis with a smaller
# span is divided evenly.
RATIOS: tuple[tuple[float, tuple[float, ...]], ...] = (
    (2.5, (0.25, 0.5, 1, 2, 4)),
    (0.9, (0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5, 3, 4)),
)


def set_log_axis(axes: Axes, text: Callable[[float], str], *, base: int) -> None:
    """Make the y axis logarithmic, and set its ticks, which ``text`` formats."""
    axes.set_yscale("log", base=base)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    _label(axes, text)
    for subs in ((1.0,), STEPS) if base == 10 else ((1.0,),):
        axes.yaxis.set_major_locator(LogLocator(base=base, subs=subs))
        if sum(low <= tick <= high for tick in axes.yaxis.get_majorticklocs()) >= FEWEST:
            return
    unit = 1024.0 ** max(0, math.floor(math.log(high, 1024))) if base == 2 else 1.0
    axes.set_yticks([tick * unit for tick in _divide(low / unit, high / unit)])


def set_ratio_axis(axes: Axes, low: float, high: float) -> None:
    """Set the ticks of a logarithmic y axis of ratios between ``low`` and ``high``."""
    span = math.log2(high / low)
    ticks = next(([*found] for least, found in RATIOS if span >= least), _divide(low, high))
    axes.yaxis.set_major_locator(NullLocator())
    axes.yaxis.set_ticks([tick for tick in ticks if low * 0.999 <= tick <= high * 1.001])
    _label(axes, lambda value: FRACTIONS.get(value, f"{value:g}"))


def _divide(low: float, high: float) -> list[float]:
    """Return about five round numbers between ``low`` and ``high``."""
    even = MaxNLocator(nbins=5, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(f"{tick:.6g}") for tick in even if low <= tick <= high]


def _label(axes: Axes, text: Callable[[float], str]) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
