"""The section of a report that shows the models in the folder of the report."""

from importlib import resources
from pathlib import Path

from attnbench.report.sections import Section
from attnmodels.documents import STEM, TITLE, read_sources, summarize
from attnmodels.texts import LEGEND, MARKS

__all__ = ["NAME", "make_section"]

# Name of the entry point.
NAME = STEM


def make_section(content: object, folder: Path) -> Section | None:
    """Return the section of the models in models.json in a folder; None without the file."""
    del content
    sources = read_sources(folder)
    if not sources:
        return None
    summary = summarize(sources)
    template = (resources.files("attnmodels") / "templates" / "models.html.j2").read_text(encoding="utf-8")
    values = {
        "summary": summary, "legend": LEGEND, "title": TITLE, "timed": any(row.time for row in summary.rows),
        "bad": (MARKS["deviates"], MARKS["failed"]),
    }  # fmt: skip
    return Section(anchor=STEM, title=TITLE, template=template, source=True, values=values)
