"""Reports without their figures, for tests of their text: drawing the figures takes most of the time of a report."""

from collections.abc import Sequence

from attnbench.records.run_file import StoredRun
from attnbench.report import collect, markdown, page
from attnbench.report.figures.looks import find_looks

__all__ = ["render_markdown", "render_page"]


def render_page(runs: Sequence[StoredRun]) -> str:
    """Return the page of a report on these runs, without figures and without links to files beside it."""
    content = collect(runs)
    return page.render(content, looks=find_looks(content.summary.tables))


def render_markdown(runs: Sequence[StoredRun]) -> str:
    """Return the text of report.md on these runs."""
    return markdown.render(collect(runs).summary)
