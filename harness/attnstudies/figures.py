"""Writes the figures, the table and the text of a study into the folder of a report.

A study explains one property of attention with figures, for example what padding does to the weights.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.records.run_file import ResultsError
from attnbench.report.markdown_text import escape, format_table
from attnbench.report.slugs import make_slug

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["StudyFigures", "write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFigures:
    """What a study shows: a title, a text, figures, a table with every number, and a summary."""

    title: str
    # What the figures show, in a sentence or two with numbers.
    text: str
    # The figures. A key is the suffix that follows the study's name in the figure's file names. If there is only one
    # figure, its suffix is empty.
    figures: Mapping[str, "Figure"]
    # Table of every number that the figures show.
    table: "pd.DataFrame"
    # Table of the most important numbers; the Markdown file shows it.
    summary: "pd.DataFrame"


def write(name: str, study: StudyFigures, folder: Path) -> Path:
    """Write the files ``study-<name>`` (PNG, SVG, CSV, Markdown, JSON), and return the path of the Markdown file.

    A report in the same folder is updated to show the study.

    Raises: ResultsError where the folder cannot be written.
    """
    # Imported here, because matplotlib and pandas take a second to import, and only figures need them.
    from attnbench.report.csv_files import render_csv
    from attnbench.report.figures.saving import draw
    from attnbench.report.plugin_sections import place_section
    from attnstudies.section import NAME, make_section

    stem = f"study-{make_slug(name)}"
    study = replace(study, figures={_name_suffix(suffix): figure for suffix, figure in study.figures.items()})
    rows = study.table.itertuples(index=False, name=None)
    files = {f"{stem}.csv": b"".join(render_csv(list(map(str, study.table.columns)), rows))}
    for suffix, figure in study.figures.items():
        files[f"{stem}{suffix}.svg"] = draw(figure, "svg")
        files[f"{stem}{suffix}.png"] = draw(figure, "png")
    files[f"{stem}.md"] = _markdown(stem, study).encode()
    # A lone surrogate has no bytes in UTF-8; JSON has an escape for it.
    files[f"{stem}.json"] = _json(study).encode(errors="backslashreplace")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        place_section(folder, NAME, make_section(None, folder))
    except OSError as error:
        raise ResultsError(
            f"cannot write the study to {folder}: {error.strerror}; name another folder with --reports DIR"
        ) from error
    return folder / f"{stem}.md"


def _name_suffix(suffix: str) -> str:
    return f"-{make_slug(suffix.removeprefix('-'))}" if suffix else ""


def _markdown(stem: str, study: StudyFigures) -> str:
    title, figures = escape(study.title), study.figures
    heads, rows = _summary(study)
    head, *shown = [[escape(text) for text in row] for row in (heads, *rows)]
    parts = [
        f"# {title}",
        *map(escape, study.text.split("\n\n")),
        *(f"![{title}]({stem}{suffix}.png)" for suffix in figures),
        format_table(head, shown),
        f"Every number: [{stem}.csv]({stem}.csv).",
    ]
    return "\n\n".join(parts) + "\n"


def _json(study: StudyFigures) -> str:
    """Return the content of ``study-<name>.json``: what a report shows of the study."""
    heads, rows = _summary(study)
    plain = {"title": study.title, "text": study.text, "figures": list(study.figures), "head": heads, "rows": rows}
    return json.dumps(plain, ensure_ascii=False, indent=1) + "\n"


def _summary(study: StudyFigures) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows of the study's summary, as text."""
    rows = [[str(value) for value in row] for row in study.summary.itertuples(index=False)]
    return [str(column) for column in study.summary.columns], rows
