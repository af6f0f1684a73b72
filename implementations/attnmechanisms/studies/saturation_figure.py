"""Figure of the study ``saturation``: four panels, each with the scale 1/√d and without it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from attnbench.report.figures.style import COLOURS, SETTINGS
from attnbench.report.numbers import format_digits, format_thousands
from attnstudies.curves import curve, grid, head_dims, level, titled
from attnstudies.figures import StudyFigures

__all__ = ["draw"]

NAMES = {"1/√d": "scaled by 1/√d", "none": "no scale"}
# Largest number of curves without the scale in the panel of weights by rank. Each curve is for one
# width of a head.
ROWS_DRAWN = 4
MEASURES = {
    "entropy_bits": ("Entropy of a row of weights", "bits"),
    "largest_weight": ("Largest weight of a row", ""),
    "gradient_norm": ("Gradient w.r.t. the scores", "norm"),
}


def draw(found: Mapping[str, Any]) -> StudyFigures:
    """Draw the figure from the result of the study; return figure, table and text."""
    rows = pd.DataFrame(found["rows"])
    widths = sorted(rows["head_dim"].unique())
    title = f"Softmax saturation without 1/√d: {found['keys']} keys, standard normal queries and keys"
    with mpl.rc_context(SETTINGS):
        figure, panels = grid(2, 2, title=title, names={name: COLOURS[i] for i, name in enumerate(NAMES.values())})
        _by_rank(panels[0], rows, widths)
        for axes, (measure, (name, unit)) in zip(panels[1:], MEASURES.items(), strict=True):
            for number, scale in enumerate(NAMES):
                curve(axes, rows[rows["scale"] == scale], x="head_dim", y=measure, number=number)
            head_dims(axes, widths)
            titled(axes, name, x="width of a head d", y=unit)
            axes.set_ylim(bottom=0)
        level(panels[1], math.log2(found["keys"]), "equal weights")
    return StudyFigures(
        title="Softmax saturation without the scale 1/√d",
        text=_text(found, rows, widths),
        figures={"": figure},
        table=rows.drop(columns="by_rank"),
        summary=_summary(rows),
    )


def _by_rank(axes: Axes, rows: pd.DataFrame, widths: Sequence[int]) -> None:
    """Plot the mean weight at each rank, largest weight first.

    One curve is with the scale 1/√d. The other curves are without the scale, for selected widths of
    a head.
    """
    scaled = rows[(rows["scale"] == "1/√d") & (rows["head_dim"] == widths[-1])].iloc[0]["by_rank"]
    ranks = range(1, len(scaled) + 1)
    axes.plot(ranks, scaled, color=COLOURS[0], linewidth=2)
    axes.annotate(
        "any d", xy=(1, scaled[0]), xytext=(-4, 0), textcoords="offset points", ha="right", va="center",
        fontsize=7.5, color=COLOURS[0],
    )  # fmt: skip
    step = max(1, math.ceil(len(widths) / ROWS_DRAWN))
    drawn = widths[::-1][::step][::-1]
    for number, width in enumerate(drawn):
        weights = rows[(rows["scale"] == "none") & (rows["head_dim"] == width)].iloc[0]["by_rank"]
        strength = (number + 1) / len(drawn)
        axes.plot(ranks, weights, color=COLOURS[1], linewidth=1.3, alpha=0.25 + 0.75 * strength)
        axes.annotate(
            f"d = {width}", xy=(1, weights[0]), xytext=(-4, 0), textcoords="offset points", ha="right", va="center",
            fontsize=7.5, color=COLOURS[1],
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    marks = [rank for rank in (1, 2, 4, 8, 16, 32, 64, 128, 256) if rank <= len(scaled)]
    axes.set_xticks(marks, [str(mark) for mark in marks])
    # Leave room for the labels of the curves, to the left of rank 1.
    axes.set_xlim(left=0.3)
    axes.set_ylim(0, 1)
    titled(axes, "Weights of a row, largest first", x="rank of the key", y="mean weight")


def _summary(rows: pd.DataFrame) -> pd.DataFrame:
    summary = pd.DataFrame({"width d": rows["head_dim"], "scale": rows["scale"]})
    for measure, (name, _) in MEASURES.items():
        summary[name.lower() + (" (bits)" if measure == "entropy_bits" else "")] = rows[measure].map(format_digits)
    return summary


def _text(found: Mapping[str, Any], rows: pd.DataFrame, widths: Sequence[int]) -> str:
    low, high, draws, most = widths[0], widths[-1], found["draws"], math.log2(found["keys"])

    def median(measure: str, scale: str, width: int) -> str:
        return format_digits(float(rows[(rows["scale"] == scale) & (rows["head_dim"] == width)][measure].iloc[0]))

    return (
        f"A sum of d products of standard normal numbers has variance d. Without the scale, the softmax of a row of "
        f"{found['keys']} such scores has a median entropy of {median('entropy_bits', 'none', low)} bits at d = {low} "
        f"and {median('entropy_bits', 'none', high)} at d = {high} ({format_digits(most)} for equal weights). "
        f"The median norm of the gradient goes from {median('gradient_norm', 'none', low)} to "
        f"{median('gradient_norm', 'none', high)}. If the scores are divided by √d, "
        f"entropy and gradient norm hardly change with d: "
        f"{median('entropy_bits', '1/√d', high)} bits and {median('gradient_norm', '1/√d', high)} at d = {high}. "
        f"The gradient is the derivative of Σ weight · cotangent with respect to the scores. The cotangent is standard "
        f"normal. "
        f"Curves are medians, bands are quartiles.\n\n"
        f"The softmax of {format_thousands(draws['count'])} numbers of standard deviation {draws['std']:g} gives one "
        f"number a weight of {format_digits(draws['largest_weight'])}. If the numbers are first divided by "
        f"{draws['std']:g}, the largest weight is {format_digits(draws['largest_weight_divided'])}."
    )
