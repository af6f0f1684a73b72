"""Titles, labels and descriptions of figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attnbench.words.say import say

__all__ = ["FIGURES", "FigureText", "Kind", "describe_ends", "name_panel"]

Kind = Literal["ratio", "time", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureText:
    """The title of a figure, the label of its y axis, and how to read it; ``{baseline}`` is the baseline's name."""

    title: str
    label: str
    reading: str


FIGURES: Mapping[Kind, FigureText] = {
    "ratio": FigureText(
        title="Time over that of {baseline}",
        label="time ÷ time of {baseline}",
        reading=(
            "Below 1 is faster than {baseline}. Bars are confidence intervals. Grey: implementations without a colour. "
            "▲ and ▼: outside of the panel."
        ),
    ),
    "time": FigureText(
        title="Time of a call",
        label="time of a call",
        reading="Lower is faster; both axes are logarithmic. Bars are confidence intervals. A grey + is disturbed.",
    ),
    "memory": FigureText(
        title="Peak memory",
        label="peak memory above the inputs",
        reading="Lower is less; both axes are logarithmic.",
    ),
}


def name_panel(pass_: str, queries: int) -> str:
    """Name a panel: its pass, and the number of queries if it differs from that of the keys; else 0."""
    if not queries:
        return pass_
    return say("{name}, {count} query" if queries == 1 else "{name}, {count} queries", name=pass_, count=queries)


def describe_ends(
    panels: Iterable[tuple[str, int, Sequence[tuple[str, float]]]], format_value: Callable[[float], str]
) -> str:
    """Describe a figure for readers who do not see it: at the longest length of each panel, the least and the most.

    A panel has a title, its longest length, and the names there with their values.
    """
    parts = []
    for title, length, values in panels:
        least, most = min(values, key=lambda one: one[1]), max(values, key=lambda one: one[1])
        parts.append(
            say(
                "{title} at {length}: least {least} ({low}), most {most} ({high})",
                title=title, length=length, least=least[0], low=format_value(least[1]), most=most[0],
                high=format_value(most[1]),
            )
        )  # fmt: skip
    return "; ".join(parts)
