"""Reports without their figures, for tests of their text: drawing the figures takes most of the time of a report."""

from collections.abc import Sequence

from attnbench.analysis.summarize import summarize
from attnbench.records.run_file import StoredRun
from attnbench.report import markdown, page
from attnbench.report.content import Content, collect_content
from attnbench.report.figures.contenders import find_looks
from attnbench.report.figures.drawing import SeriesFigures
from attnbench.report.spelled import spell_out_run

__all__ = ["render_markdown", "render_page"]


def render_page(runs: Sequence[StoredRun]) -> str:
    """Return the page of a report on these runs, without figures and without links to files beside it."""
    content, figures = _collect(runs)
    return page.render(content, figures, looks=find_looks(content.series, content.decisions.entries))


def render_markdown(runs: Sequence[StoredRun]) -> str:
    """Return the text of report.md on these runs."""
    return markdown.render(summarize([spell_out_run(run) for run in runs]))


def _collect(runs: Sequence[StoredRun]) -> tuple[Content, list[SeriesFigures]]:
    content = collect_content([spell_out_run(run) for run in runs])
    return content, [SeriesFigures(drawings=(), missing=())] * len(content.series)
