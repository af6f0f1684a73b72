"""Colours, markers and settings of every figure; a drawn figure is readable on white and on near-black."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "BACKGROUNDS", "COLOURS", "DARK", "INK", "MARKERS", "MUTED", "OTHERS", "RULE", "SETTINGS", "SIZE", "SMALL", "Look",
    "choose_looks",
]  # fmt: skip

Line = Literal["-", "--", ":", "-."]

# ``INK``: titles and the reference. ``MUTED``: labels. ``RULE``: axes and grid lines. ``OTHERS``: curves of
# implementations that are no contenders.
INK, MUTED, RULE, OTHERS = "#1d2024", "#5d636c", "#9aa0a8", "#8d929a"
# Colours of contenders. They began as Okabe and Ito's palette (https://jfly.uni-koeln.de/color/) and were moved apart
# until, for readers with each kind of colour blindness, the distance of any two is at least 13 in CIELAB.
COLOURS = ("#1b78bd", "#c23616", "#12936b", "#a8327a", "#b88700", "#43239a", "#6b3f1d")
# ``DARK``: the colour that replaces each colour on a dark page. ``BACKGROUNDS``: the backgrounds of a light and of a
# dark page. ``MARKERS``: markers of contenders.
DARK = {
    INK: "#e8e6e1", MUTED: "#a1a6ae", RULE: "#6c727b", OTHERS: "#747a84",
    **dict(zip(COLOURS, ("#4f9fe6", "#f2713c", "#36c795", "#e56fb5", "#f3d25c", "#cdb8ff", "#b58a63"), strict=True)),
}  # fmt: skip
BACKGROUNDS = ("#fcfbf9", "#14161a")
MARKERS = ("s", "D", "^", "v", "P", "X", "p", "*")
# ``PLAIN_MARKERS``: markers of implementations that are no contenders. ``LINES``: line styles of all curves.
PLAIN_MARKERS = ("o", "s", "D", "^", "v", "<", ">", "p", "h", "P", "X", "d")
LINES: tuple[Line, ...] = ("-", "--", ":", "-.")

# Font size in points. A point is 4/3 CSS pixels, so names are 12 pixels high on the page.
SIZE = 9.0
# Smallest font size, in points: 11 pixels on the page.
SMALL = 8.25
SETTINGS: Any = {  # ``Any``: matplotlib's type hint accepts only its own literals as keys
    "svg.hashsalt": "attnbench",
    "svg.fonttype": "none",
    # Do not draw text between dollar signs as a formula.
    "text.parse_math": False,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": SIZE,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "text.color": INK,
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How one implementation is drawn in every figure of a report."""

    colour: str
    marker: str
    line: Line = "-"
    contends: bool = True


def choose_looks(
    implementations: Collection[str], references: Collection[str], contenders: Sequence[str]
) -> dict[str, Look]:
    """Choose a look for each implementation: references first, then contenders, then all others in grey.

    The first 56 contenders differ in colour or marker, and the first eight in marker.
    """
    looks = {name: Look(colour=INK, marker="o") for name in sorted(references)}
    for index, name in enumerate(sorted(set(contenders) - set(references))):
        again, place = divmod(index, len(COLOURS))
        # Eight markers and seven colours: the pairs repeat only after 56 names.
        marker, line = MARKERS[index % len(MARKERS)], LINES[again % len(LINES)]
        looks[name] = Look(colour=COLOURS[place], marker=marker, line=line)
    for index, name in enumerate(sorted(set(implementations) - set(looks))):
        again, place = divmod(index, len(PLAIN_MARKERS))
        looks[name] = Look(
            colour=OTHERS, marker=PLAIN_MARKERS[place], line=LINES[(index + again) % len(LINES)], contends=False
        )
    return looks
