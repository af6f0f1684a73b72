"""Figure of the study ``additive``: three panels, with the width of a head on each x axis."""

import math
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.ticker import PercentFormatter

from attnbench.report.figures.style import COLOURS, SETTINGS
from attnbench.report.numbers import format_digits
from attnstudies.curves import curve, grid, head_dims, level, titled
from attnstudies.figures import StudyFigures

__all__ = ["draw"]

NAMES = {"additive": "additive", "scaled dot": "dot product / √d", "dot": "dot product"}


def draw(found: Mapping[str, Any]) -> StudyFigures:
    """Draw the figure from the result of the study; return figure, table and text."""
    rows = pd.DataFrame(found["rows"])
    widths = sorted(rows["head_dim"].unique())
    names = {name: COLOURS[i] for i, name in enumerate(NAMES.values())}
    panels_of = {
        "entropy_bits": (f"Entropy of {found['keys']} weights, before training", "bits"),
        "gradient_norm": ("Gradient w.r.t. scores, before training", "norm"),
        "found": (
            f"Marked token found after {found['steps']} steps",
            f"% of sequences of length {found['length']}",
        ),
    }
    with mpl.rc_context(SETTINGS):
        figure, panels = grid(1, 3, title="Additive and dot-product attention against the width of a head", names=names)
        for axes, (measure, (name, unit)) in zip(panels, panels_of.items(), strict=True):
            for number, score in enumerate(NAMES):
                curve(axes, rows[rows["score"] == score], x="head_dim", y=measure, number=number)
            head_dims(axes, widths)
            titled(axes, name, x="width of a head d", y=unit)
            axes.set_ylim(bottom=0)
        level(panels[0], math.log2(found["keys"]), "equal weights")
        panels[2].set_ylim(0, 1)
        panels[2].yaxis.set_major_formatter(PercentFormatter(xmax=1))
        level(panels[2], 1 / found["length"], "chance")
    return StudyFigures(
        title="Additive and dot-product attention against the width of a head",
        text=_text(found, rows),
        figures={"": figure},
        table=rows,
        summary=_summary(rows),
    )


def _summary(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "width d": rows["head_dim"],
            "score": rows["score"].map(NAMES),
            "standard deviation of scores": rows["score_std"].map(format_digits),
            "entropy (bits)": rows["entropy_bits"].map(format_digits),
            "gradient norm": rows["gradient_norm"].map(format_digits),
            "marked token found": rows["found"].map(lambda share: f"{share:.1%}"),
        }
    )


def _text(found: Mapping[str, Any], rows: pd.DataFrame) -> str:
    last = rows[rows["head_dim"] == rows["head_dim"].max()].set_index("score")
    shares = ", ".join(f"{NAMES[name]} {last.loc[name, 'found']:.0%}" for name in NAMES)
    return (
        f"An additive score is bounded at any width. A dot product has variance d, or variance 1 after division by √d. "
        f"The left and the middle panel show medians and quartiles over rows of {found['keys']} keys before training. "
        f"The dotted line on the left is the entropy of equal weights. The right panel shows a training task: in each "
        f"sequence of {found['length']} tokens, one token is marked by adding a fixed vector, which the model learns "
        f"in {found['steps']} steps of Adam, with the same learning rate for all scores. The curves show in what "
        f"percentage of sequences the marked token has the largest weight: mean, minimum and maximum of three "
        f"trainings with different seeds. The dotted line on the right is the percentage of a random guess. "
        f"Percentages at d = {rows['head_dim'].max()}: {shares}."
    )
