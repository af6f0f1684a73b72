"""Inserts the studies of a folder into the report in the same folder.

It does not matter whether the report or a study was written first.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnbench.report.figures.saving import encode, read_size
from attnbench.report.page import make_environment

__all__ = ["BEGIN", "END", "place_studies"]

# Markers before and after the studies in the HTML page and in the Markdown file of a report.
BEGIN, END = "<!-- studies -->", "<!-- end of studies -->"


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


def place_studies(folder: Path) -> None:
    """Write the studies of a folder into the HTML page and the Markdown file of the report in the same folder.

    If the folder has no report, nothing is written.
    """
    found = [
        _Study(stem=path.stem, **json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(folder.glob("study-*.json"))
    ]
    for name, section in (("index.html", _html), ("report.md", _markdown)):
        path = folder / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        before, begin, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if end:
            inside = section(found, folder) if found else ""
            path.write_text(f"{before}{begin}\n{inside}{end}{after}", encoding="utf-8")


def _html(found: Sequence[_Study], folder: Path) -> str:
    drawn = [(study, [_embed((folder / f"{name}.svg").read_bytes()) for name in _figures(study)]) for study in found]
    return make_environment().get_template("studies.html.j2").render(drawn=drawn)


def _embed(svg: bytes) -> dict[str, str | int]:
    """Return the data URI of a figure, and its size in CSS pixels."""
    width, height = read_size(svg)
    return {"uri": encode(svg), "width": width, "height": height}


def _markdown(found: Sequence[_Study], folder: Path) -> str:  # noqa: ARG001
    parts = ["## Studies that explain attention"]
    for study in found:
        figures = [f"![{study.title}]({name}.png)" for name in _figures(study)]
        parts += [f"### {study.title}", study.text, *figures, f"Its numbers: [{study.stem}.md]({study.stem}.md)."]
    return "\n" + "\n\n".join(parts) + "\n\n"


def _figures(study: _Study) -> list[str]:
    """Return the file names of the study's figures, without ``.svg`` or ``.png``."""
    return [study.stem + suffix for suffix in study.figures]
