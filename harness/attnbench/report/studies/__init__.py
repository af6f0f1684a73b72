"""Figures and tables of the studies, from what ``attnbench.study`` found."""

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.records.run_file import ResultsError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Shown", "write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A study as it is shown."""

    title: str
    # What is seen, in a sentence or two with its numbers.
    text: str
    # Figures by what follows the study's name in their file names; a single one has nothing.
    figures: Mapping[str, "Figure"]
    # Every number that is drawn.
    table: "pd.DataFrame"
    # What a reader wants of it.
    summary: "pd.DataFrame"


def write(name: str, found: Mapping[str, Any], folder: Path) -> Path:
    """Write ``study-<name>`` as PNG, SVG, CSV, Markdown and JSON, and give the path of the Markdown.

    A report that lies in the folder shows it from then on.

    Raises: ResultsError where the folder cannot be written.
    """
    # matplotlib and pandas take a second to import, and only figures need them.
    from attnbench.report import plots
    from attnbench.report.studies.section import place

    shown: Shown = importlib.import_module(f"{__name__}.{name}").shown(found)
    stem = f"study-{name}"
    files = {f"{stem}.csv": shown.table.to_csv(index=False, lineterminator="\n").encode()}
    for suffix, figure in shown.figures.items():
        files[f"{stem}{suffix}.svg"] = plots.draw(figure, "svg")
        files[f"{stem}{suffix}.png"] = plots.draw(figure, "png")
    files[f"{stem}.md"] = _markdown(stem, shown).encode()
    files[f"{stem}.json"] = _json(shown).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        place(folder)
    except OSError as error:
        raise ResultsError(
            f"cannot write the study to {folder}: {error.strerror}; name another folder with --reports DIR"
        ) from error
    return folder / f"{stem}.md"


def _markdown(stem: str, shown: Shown) -> str:
    figures = [f"![{shown.title}]({stem}{suffix}.png)" for suffix in shown.figures]
    heads, rows = _summary(shown)
    escaped = [[text.replace("|", "\\|") for text in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *escaped)]
    parts = [f"# {shown.title}", shown.text, *figures, "\n".join(lines), f"Every number: [{stem}.csv]({stem}.csv)."]
    return "\n\n".join(parts) + "\n"


def _json(shown: Shown) -> str:
    """What a report shows of it."""
    heads, rows = _summary(shown)
    told = {"title": shown.title, "text": shown.text, "figures": list(shown.figures), "head": heads, "rows": rows}
    return json.dumps(told, ensure_ascii=False, indent=1) + "\n"


def _summary(shown: Shown) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of its summary, as text."""
    rows = [[str(value) for value in row] for row in shown.summary.itertuples(index=False)]
    return [str(column) for column in shown.summary.columns], rows
