"""The section of a report that shows the studies in the folder of the report."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from attnbench.report.figures.svg_files import encode, read_size
from attnbench.report.sections import Section

__all__ = ["make_section"]

# Id of the section, and the name of its entry point.
NAME = "studies"


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


def make_section(content: object, folder: Path) -> Section | None:
    """Return the section of the studies whose ``study-<name>.json`` is in a folder; None if there is none."""
    del content
    found = [
        _Study(stem=path.stem, **json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(folder.glob("study-*.json"))
    ]
    if not found:
        return None
    drawn = [
        (study, [_embed((folder / f"{study.stem}{suffix}.svg").read_bytes()) for suffix in study.figures])
        for study in found
    ]
    template = (resources.files("attnstudies") / "templates" / "studies.html.j2").read_text(encoding="utf-8")
    return Section(
        anchor=NAME, title="Studies of attention", template=template, source=True, values={"drawn": drawn}
    )  # fmt: skip


def _embed(svg: bytes) -> dict[str, str | int]:
    """Return the data URI of a figure, and its size in CSS pixels."""
    width, height = read_size(svg)
    return {"uri": encode(svg), "width": width, "height": height}
