"""Reports on stored runs: an HTML page, a Markdown file, plots and CSV tables."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.records.run_file import ResultsError, StoredRun

if TYPE_CHECKING:
    import pandas as pd

    from attnbench.report.content import Content
    from attnbench.report.figures.drawings import Drawing

__all__ = ["collect", "write", "write_content"]


def write(runs: Sequence[StoredRun], folder: Path) -> Path:
    """Write a report on these runs into a folder, and return the path of its HTML page; see ``write_content``."""
    return write_content(collect(runs), folder)


def collect(runs: Sequence[StoredRun]) -> "Content":
    """Return what a report on these runs shows."""
    from attnbench.report.content import collect_content

    return collect_content(runs)


def write_content(content: "Content", folder: Path) -> Path:
    """Write a report into a folder, and return the path of its HTML page.

    The report also has a Markdown file, plots and CSV files. The page also shows each study whose ``study-<name>.json``
    is in the folder.

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
    from attnbench.report import markdown, page
    from attnbench.report.csv_files import render_csv
    from attnbench.report.figures.looks import find_looks

    looks = find_looks(content.summary.tables)
    drawings: Sequence[Drawing] = ()
    if any(row.cells for table in content.summary.tables for row in table.rows):
        # matplotlib takes a second to import, and only a report on measurements needs it.
        from attnbench.report.figures.drawings import draw_maps, draw_tables

        drawings = list(draw_tables(content.summary.tables, looks))
        for one in drawings:
            yield f"{one.stem}.svg", [one.svg]
            yield f"{one.stem}.png", [one.png]
        for name, drawn in draw_maps(content.maps.shown, looks):
            yield name, [drawn]
    filled = []
    for name, frame in _list_frames(content):
        yield f"{name}.csv", render_csv(frame)
        filled += [f"{name}.csv"] * bool(len(frame))
    yield "dispatch.json", [_encode_dispatch(content)]
    yield "report.md", [markdown.render(content.summary).encode()]
    yield "index.html", [page.render(content, drawings, [*filled, "dispatch.json", "report.md"], looks).encode()]


def _list_frames(content: "Content") -> Iterator[tuple[str, "pd.DataFrame"]]:
    """Yield the table of each CSV file."""
    from attnbench.report import growth, maps, nodes, tables
    from attnbench.report.decision_rows import tabulate_decisions
    from attnbench.report.failures import tabulate_failures

    yield "findings", content.tables.findings
    yield "failures", tabulate_failures(content.failures.groups)
    yield "timings", content.tables.timings
    yield "memory", content.tables.memory
    yield "kernels", content.tables.kernels
    yield "ceilings", tables.tabulate_ceilings(content.ceilings)
    yield "growth", growth.tabulate_growth(content.summary.tables)
    yield "decisions", tabulate_decisions(content.summary.decisions)
    if content.maps.every:
        yield "maps", maps.tabulate_maps(content.maps)
    if content.nodes.rows:
        yield "nodes", nodes.tabulate_nodes(content.nodes)
    if content.summary.left_out:
        yield "left-out", tables.tabulate_left_out(content.summary.left_out)


def _encode_dispatch(content: "Content") -> bytes:
    from attnbench.analysis.dispatch import encode_dispatch
    from attnbench.report.dispatch import make_dispatch

    return encode_dispatch(make_dispatch(content.runs, content.summary))
