"""What padding does to a row of attention weights: the weights, the fraction on padding, and the output error."""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from attnbench.report.figures.style import COLOURS, INK, MUTED, SETTINGS
from attnbench.report.numbers import format_digits
from attnstudies.curves import curve, key, titled
from attnstudies.figures import StudyFigures

__all__ = ["draw"]

NAMES = {"alone": "alone", "masked": "padded, with the mask", "unmasked": "padded, without the mask"}
NUMBERS = {"masked": 0, "unmasked": 1}
BAR_SYMBOL = "■"
COLOUR = {"alone": MUTED, "masked": COLOURS[0], "unmasked": COLOURS[1]}
# Width of one bar, as a fraction of the distance between two tokens on the x axis.
BAR = 0.27
# Width and height of the figure, in inches.
WIDTH, HEIGHT = 7.2, 6.1


def draw(found: Mapping[str, Any]) -> StudyFigures:
    """Draw the figure of the padding study, and tabulate the numbers in the figure."""
    rows = pd.DataFrame(found["rows"])
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, HEIGHT))
        figure.text(
            0.12 / WIDTH, 1 - 0.2 / HEIGHT, f"What padding does to a row: {found['implementation']}, first layer",
            fontsize=10, fontweight="bold", color=INK, va="center",
        )  # fmt: skip
        key(figure, {name: COLOUR[own] for own, name in NAMES.items()}, BAR_SYMBOL * len(NAMES))
        areas = figure.add_gridspec(
            2, 2, left=0.095, right=0.975, top=0.845, bottom=0.085, hspace=0.62, wspace=0.3, height_ratios=(1, 1.05)
        )
        _bars(figure.add_subplot(areas[0, :]), found)
        for place, (measure, title, unit) in enumerate(
            (
                ("weight_on_padding", "Attention weight on padding", "fraction of the row's weight"),
                ("output_off", "Relative error of the output", "error norm / output norm"),
            )
        ):
            axes = figure.add_subplot(areas[1, place])
            for name, number in NUMBERS.items():
                curve(axes, rows[rows["masked"] == (name == "masked")], x="padding_share", y=measure, number=number)
            axes.xaxis.set_major_formatter(PercentFormatter(xmax=1))
            titled(axes, title, x="padding in the padded sequence", y=unit)
            axes.set_ylim(bottom=0)
            axes.set_xlim(0, 1)
            if measure == "weight_on_padding":
                axes.set_ylim(0, 1)
                axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    return StudyFigures(
        title="What padding does to a row, with the mask and without it",
        text=_text(found, rows),
        figures={"": figure},
        table=rows,
        summary=_summary(rows),
    )


def _bars(axes: Axes, found: Mapping[str, Any]) -> None:
    tokens = found["tokens"]
    for place, (own, weights) in enumerate(found["shown"].items()):
        axes.bar([j + (place - 1) * BAR for j in range(len(weights))], weights, BAR, color=COLOUR[own], linewidth=0)
    axes.set_xticks(range(len(tokens)), tokens, rotation=60, ha="right", rotation_mode="anchor", fontsize=7.5)
    axes.set_xlim(-0.6, len(tokens) - 0.4)
    axes.axvspan(found["real"] - 0.5, len(tokens) - 0.4, color=MUTED, alpha=0.1, linewidth=0)
    axes.grid(visible=False, axis="x")
    titled(axes, f"Row of “{found['token']}”, head {found['head']}", x="", y="weight")


def _summary(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "padded length": rows["length"],
            "padding": rows["padding_share"].map(lambda share: f"{share:.0%}"),
            "mask": rows["masked"].map({True: "with", False: "without"}),
            "weight on padding (median row)": rows["weight_on_padding"].map(lambda share: f"{share:.1%}"),
            "relative error of the output (median row)": rows["output_off"].map(format_digits),
        }
    )


def _text(found: Mapping[str, Any], rows: pd.DataFrame) -> str:
    half = rows[(rows["padding_share"] >= 0.5) & ~rows["masked"]].iloc[0]
    masked = rows[rows["masked"]]
    return (
        f"Padding must not change the output of a real token. With the mask, it changes only by rounding: padding gets "
        f"a weight of {format_digits(masked['weight_on_padding_high'].max())}, and the median relative error of the "
        f"output is at most {format_digits(masked['output_off'].max())}. Without the mask, with "
        f"{half['padding_share']:.0%} padding, the median row gives {half['weight_on_padding']:.0%} of its weight to "
        f"padding, and the median relative error is {format_digits(half['output_off'])}. The error is relative to the "
        f"output without padding. The rows are those of {found['real']} real tokens in all heads of the first layer. "
        f"The input of this layer does not depend on padding. Curves are medians over the rows; bands are quartiles."
    )
