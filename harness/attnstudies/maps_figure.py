"""Attention maps: a panel for each head or each sentence, tokens on the axes, padding hatched."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attnbench.report.figures.style import COLOURS, INK, MUTED, SETTINGS
from attnbench.report.numbers import format_digits
from attnstudies.figures import StudyFigures

__all__ = ["draw"]

# Largest number of panels side by side in a figure with a panel per head.
COLUMNS = 4
# Lengths in inches. ``CELL``: height of the row of a token. ``SMALLEST``: smallest side of a panel. ``TOKENS``,
# ``HEADER`` and ``KEY``: space for token labels, for the title, and for the colour bar. ``APART``: space between
# panels.
CELL, SMALLEST, TOKENS, HEADER, KEY, APART = 0.165, 1.5, 0.75, 0.66, 0.75, 0.32
COLOURS_OF_WEIGHT = LinearSegmentedColormap.from_list("weights", ["#ffffff", "#a9cbe6", COLOURS[0], "#123a5a"])
LEGEND = "rows: queries; columns: keys; hatched: padding; entropy: mean of the real rows"
# A square-root colour scale, so that small weights are visible beside large ones.
SCALE = PowerNorm(0.5, vmin=0, vmax=1)


def draw(found: Mapping[str, Any]) -> StudyFigures:
    """Draw the attention maps of the chosen heads.

    For one head, one figure has a panel per sentence. For several heads, each sentence has a figure with a panel per
    head.
    """
    heads, sentences = found["heads"], found["sentences"]
    source = f"{found['implementation']}, layer {found['layer']}"
    with mpl.rc_context(SETTINGS):
        if len(heads) == 1:
            panels = [
                (sentence, 0, f"sentence {number + 1} · entropy {sentence['entropy_bits'][0]:.1f} bits")
                for number, sentence in enumerate(sentences)
            ]
            figures = {"": _figure(panels, columns=len(panels), title=f"Attention of head {heads[0]}: {source}")}
        else:
            figures = {
                f"-{number + 1}": _figure(
                    [
                        (sentence, i, f"head {head} · entropy {sentence['entropy_bits'][i]:.1f} bits")
                        for i, head in enumerate(heads)
                    ],
                    columns=min(COLUMNS, len(heads)),
                    title=f"Attention of {len(heads)} heads: {source}, sentence {number + 1} of {len(sentences)}",
                )
                for number, sentence in enumerate(sentences)
            }
    return StudyFigures(
        title=f"Attention maps: {source}",
        text=(
            "Rows are queries, columns keys; a row's weights sum to 1. Hatched: padding. The columns of padding are "
            "masked, so their weights are exactly 0; the rows of padding have no meaning. The entropy above each map "
            "is the mean over the rows of real tokens."
        ),
        figures=figures,
        table=_table(found),
        summary=_summary(found),
    )


def _figure(panels: Sequence[tuple[Mapping[str, Any], int, str]], *, columns: int, title: str) -> Figure:
    rows = -(-len(panels) // columns)
    side = max(SMALLEST, CELL * max(len(sentence["tokens"]) for sentence, _, _ in panels))
    # Panels of the same sentence share their token labels. Panels of different sentences each have their own labels.
    shared = len({id(sentence) for sentence, _, _ in panels}) == 1
    apart = APART if shared else APART + TOKENS
    width = TOKENS + columns * side + (columns - 1) * (0.12 if shared else apart) + KEY
    height = HEADER + rows * side + (rows - 1) * apart + TOKENS
    figure = Figure(figsize=(width, height))
    figure.text(0.08 / width, 1 - 0.17 / height, title, fontsize=10, fontweight="bold", color=INK, va="center")
    figure.text(0.08 / width, 1 - 0.36 / height, LEGEND, fontsize=7.5, color=MUTED, va="center")
    image = None
    for place, (sentence, head, name) in enumerate(panels):
        row, column = divmod(place, columns)
        left = TOKENS + column * (side + (0.12 if shared else apart))
        bottom = height - HEADER - (row + 1) * side - row * apart
        axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
        image = axes.imshow(sentence["weights"][head], cmap=COLOURS_OF_WEIGHT, norm=SCALE, aspect="equal")
        _dress(
            axes, sentence, name, queries=column == 0 or not shared, keys=not shared or place + columns >= len(panels)
        )
    if image is not None:
        at = figure.add_axes(
            ((width - KEY + 0.18) / width, (height - HEADER - side) / height, 0.12 / width, side / height)
        )
        bar = figure.colorbar(image, cax=at, ticks=[0, 0.04, 0.25, 0.5, 1])
        bar.set_label("weight (color: square root)", color=MUTED, fontsize=7.5)
        bar.ax.tick_params(labelsize=7, length=2)
        bar.outline.set_visible(False)
    return figure


def _dress(axes: Axes, sentence: Mapping[str, Any], name: str, *, queries: bool, keys: bool) -> None:
    """Set the title of a panel, and hatch the padding.

    ``queries`` and ``keys`` say whether the query axis and the key axis are labelled with tokens.
    """
    tokens, real = sentence["tokens"], sentence["real"]
    length = len(tokens)
    axes.grid(visible=False)
    axes.set_title(name, fontsize=8, color=INK, pad=3, loc="left")
    axes.set_xticks(range(length), tokens if keys else [], rotation=90, fontsize=6.5)
    axes.set_yticks(range(length), tokens if queries else [], fontsize=6.5)
    axes.tick_params(length=0, pad=2)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.4)
    for corner, width, height in (((real, 0), length - real, length), ((0, real), real, length - real)):
        axes.add_patch(
            Rectangle(
                (corner[0] - 0.5, corner[1] - 0.5), width, height,
                facecolor="#e9e9ec", edgecolor="#b4b5ba", hatch="////", linewidth=0,
            )
        )  # fmt: skip


def _table(found: Mapping[str, Any]) -> pd.DataFrame:
    """Tabulate all attention weights, one per row."""
    rows = [
        (number + 1, head, i, query, j, key, weight)
        for number, sentence in enumerate(found["sentences"])
        for head, matrix in zip(found["heads"], sentence["weights"], strict=True)
        for i, (query, row) in enumerate(zip(sentence["tokens"], matrix, strict=True))
        for j, (key, weight) in enumerate(zip(sentence["tokens"], row, strict=True))
    ]
    return pd.DataFrame(rows, columns=["sentence", "head", "query", "query_token", "key", "key_token", "weight"])


def _summary(found: Mapping[str, Any]) -> pd.DataFrame:
    """Tabulate mean entropy, largest weight on another token and largest weight on padding, by sentence and head."""
    rows = []
    for number, sentence in enumerate(found["sentences"]):
        tokens, real = sentence["tokens"], sentence["real"]
        for head, matrix, entropy in zip(found["heads"], sentence["weights"], sentence["entropy_bits"], strict=True):
            weight, i, j = max((matrix[i][j], i, j) for i in range(real) for j in range(real) if i != j)
            padded = max((sum(matrix[i][real:]) for i in range(real)), default=0.0)
            rows.append(
                {
                    "sentence": number + 1,
                    "head": head,
                    "mean entropy (bits)": format_digits(entropy),
                    "largest weight on another token": f"{tokens[i]} → {tokens[j]} ({format_digits(weight)})",
                    "largest weight on padding": f"{padded:g}",
                }
            )
    return pd.DataFrame(rows)
