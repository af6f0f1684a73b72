"""Inserts the studies of a folder into the report in the same folder.

It does not matter whether the report or a study was written first.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnbench.report.figures.svg_files import encode, read_size
from attnbench.report.page import make_environment
from attnbench.report.placeholders import fill_placeholder

__all__ = ["place_studies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Study:
    """A study that was written to a folder, read from ``<stem>.json``."""

    stem: str
    title: str
    text: str
    # Suffixes that follow the stem in the file names of the study's figures.
    figures: Sequence[str]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


# What renders each part of a file of the report, by the name of its placeholder.
_Renderers = dict[str, Callable[[Sequence[_Study], Path], str]]


def place_studies(folder: Path) -> None:
    """Write the studies of a folder into the HTML page of the report in the same folder.

    If the folder has no report, nothing is written.
    """
    found = [
        _Study(stem=path.stem, **json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(folder.glob("study-*.json"))
    ]
    for name, renderers in FILES.items():
        path = folder / name
        if path.exists():
            text = path.read_text(encoding="utf-8")
            for place, render in renderers.items():
                text = fill_placeholder(text, place, render(found, folder) if found else "")
            path.write_text(text, encoding="utf-8")


def _render_page_section(found: Sequence[_Study], folder: Path) -> str:
    drawn = [
        (study, [_embed((folder / f"{name}.svg").read_bytes()) for name in _name_figures(study)]) for study in found
    ]
    return make_environment().get_template("studies.html.j2").render(drawn=drawn)


def _embed(svg: bytes) -> dict[str, str | int]:
    """Return the data URI of a figure, and its size in CSS pixels."""
    width, height = read_size(svg)
    return {"uri": encode(svg), "width": width, "height": height}


def _render_link(found: Sequence[_Study], folder: Path) -> str:  # noqa: ARG001
    return make_environment().get_template("studies-link.html.j2").render()


def _name_figures(study: _Study) -> list[str]:
    """Return the file names of the study's figures, without ``.svg`` or ``.png``."""
    return [study.stem + suffix for suffix in study.figures]


FILES: dict[str, _Renderers] = {
    "index.html": {"link to studies": _render_link, "studies": _render_page_section},
}
