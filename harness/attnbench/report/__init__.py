"""Reports on stored runs: an HTML page, a Markdown file, plots and CSV tables."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.records.run_file import ResultsError, StoredRun

if TYPE_CHECKING:
    from attnbench.report.content import Content
    from attnbench.report.figures.drawing import SeriesFigures

__all__ = ["collect", "write", "write_content"]


def write(runs: Sequence[StoredRun], folder: Path) -> Path:
    """Write a report on these runs into a folder, and return the path of its HTML page; see ``write_content``."""
    return write_content(collect(runs), folder)


def collect(runs: Sequence[StoredRun]) -> "Content":
    """Return what a report on these runs shows; hidden characters in stored texts are spelled out."""
    from attnbench.report.content import collect_content
    from attnbench.report.spelled import spell_out_run

    return collect_content([spell_out_run(run) for run in runs])


def write_content(content: "Content", folder: Path) -> Path:
    """Write a report into a folder, and return the path of its HTML page.

    The report also has a Markdown file, plots and CSV files. The page and the Markdown file also show each study whose
    ``study-<name>.json`` is in the folder.

    Raises: ResultsError where the folder cannot be written.
    """
    from attnbench.report.studies.section import place_studies

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, parts in _render_files(content):
            with (folder / name).open("wb") as stream:
                stream.writelines(parts)
        place_studies(folder)
    except OSError as error:
        raise ResultsError(
            f"cannot write the report to {folder}: {error.strerror}; name another folder with --reports DIR"
        ) from error
    return folder / "index.html"


def _render_files(content: "Content") -> Iterator[tuple[str, Iterable[bytes]]]:
    """Yield the name and the parts of each file; a file is written before the next one is made."""
    # Imported here, because pandas takes a second to import, and only a report needs it.
    from attnbench.analysis.dispatch import encode_dispatch
    from attnbench.report import markdown, page, tables
    from attnbench.report.csv_files import render_csv
    from attnbench.report.decision_rows import tabulate_decisions
    from attnbench.report.dispatch import make_dispatch
    from attnbench.report.failures import tabulate_failures
    from attnbench.report.figures.contenders import describe_colours, find_looks
    from attnbench.report.maps import tabulate_maps
    from attnbench.report.nodes import tabulate_nodes
    from attnbench.report.series import join_growths

    looks = find_looks(content.series, content.decisions.entries)
    figures: Sequence[SeriesFigures] = ()
    if content.series:
        # matplotlib takes a second to import, and only a report on measurements needs it.
        from attnbench.report.figures.series_figures import draw_figures, draw_maps

        coloured = describe_colours(content.series, content.decisions.entries)
        figures = draw_figures(content.series, looks, coloured)
        for one in (one for own in figures for one in own.drawings):
            yield f"{one.stem}.svg", [one.svg]
            yield f"{one.stem}.png", [one.png]
        for name, drawn in draw_maps(content.maps.shown, looks).items():
            yield name, [drawn]
    reached = [ceiling for run in content.runs for ceiling in run.ceilings]
    frames = {
        "findings": content.tables.findings,
        "failures": tabulate_failures(content.failures.groups),
        "timings": content.tables.timings,
        "memory": content.tables.memory,
        "kernels": content.tables.kernels,
        "ceilings": tables.tabulate_ceilings(reached),
        "growth": join_growths(content.series),
        "decisions": tabulate_decisions(content.summary.decisions),
    }
    if content.maps.every:
        frames["maps"] = tabulate_maps(content.maps)
    if content.nodes.rows:
        frames["nodes"] = tabulate_nodes(content.nodes)
    if content.left_out:
        frames["left-out"] = tables.tabulate_left_out(content.left_out)
    for name, frame in frames.items():
        yield f"{name}.csv", render_csv(frame)
    yield "dispatch.json", [encode_dispatch(make_dispatch(content.runs, content.summary))]
    yield "report.md", [markdown.render(content, figures).encode()]
    filled = [f"{name}.csv" for name, frame in frames.items() if len(frame)]
    yield "index.html", [page.render(content, figures, [*filled, "dispatch.json", "report.md"], looks).encode()]
