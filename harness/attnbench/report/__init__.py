"""Reports on stored runs: an HTML page, a Markdown file, plots and CSV tables."""

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.records.run_file import ResultsError, StoredRun

if TYPE_CHECKING:
    from attnbench.report.content import Content
    from attnbench.report.figures.drawings import Drawing

__all__ = ["collect", "load", "write", "write_content"]


def load() -> None:
    """Import the modules that write a report.

    A command that lacks one of their packages can then say so before it measures anything.

    Raises: ModuleNotFoundError.
    """
    for name in ("page", "figures.saving"):
        import_module(f"{__name__}.{name}")


def write(runs: Sequence[StoredRun], folder: Path) -> Path:
    """Write a report on these runs into a folder, and return the path of its HTML page; see ``write_content``."""
    return write_content(collect(runs), folder)


def collect(runs: Sequence[StoredRun]) -> "Content":
    """Return what a report on these runs shows."""
    from attnbench.report.content import collect_content

    return collect_content(runs)


def write_content(content: "Content", folder: Path, links: Sequence[tuple[str, str]] = ()) -> Path:
    """Write a report into a folder, and return the path of its HTML page.

    The report also has a Markdown file, plots and CSV files. The page and the Markdown file end with ``links``, each a
    text and an address. Plug-ins may add sections to the page.

    Raises: ResultsError where the folder cannot be written.
    """
    from attnbench.report.plugin_sections import place_sections

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, parts in _render_files(content, links):
            with (folder / name).open("wb") as stream:
                stream.writelines(parts)
        place_sections(content, folder)
    except OSError as error:
        raise ResultsError(
            f"cannot write the report to {folder}: {error.strerror}; name another folder with --reports DIR"
        ) from error
    return folder / "index.html"


def _render_files(content: "Content", links: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Iterable[bytes]]]:
    """Yield the name and the parts of each file; a file is written before the next one is made."""
    # Imported here, because a command that writes no report does not need them.
    from attnbench.report import markdown, page
    from attnbench.report.columns import list_cells
    from attnbench.report.csv_files import render_csv
    from attnbench.report.figures.looks import find_looks
    from attnbench.report.tables import TABLES

    looks = find_looks(content.summary.tables)
    drawings: Sequence[Drawing] = ()
    if any(row.cells for table in content.summary.tables for row in table.rows):
        # matplotlib takes a second to import, and only a report on measurements needs it.
        from attnbench.report.figures.drawings import draw_tables

        drawings = list(draw_tables(content.summary.tables, looks))
        for one in drawings:
            yield f"{one.stem}.svg", [one.svg]
            yield f"{one.stem}.png", [one.png]
    filled = []
    for name, table in TABLES.items():
        rows = list(list_cells(table.columns, table.list_rows(content))) if table.in_report else []
        if rows or (table.in_report and table.always):
            yield f"{name}.csv", render_csv([column.name for column in table.columns], rows)
        filled += [f"{name}.csv"] * bool(rows)
    yield "dispatch.json", [_encode_dispatch(content)]
    yield "report.md", [markdown.render(content.summary, links).encode()]
    files = [*filled, "dispatch.json", "report.md"]
    yield "index.html", [page.render(content, drawings, files, looks, links).encode()]


def _encode_dispatch(content: "Content") -> bytes:
    from attnbench.analysis.dispatch import encode_dispatch
    from attnbench.report.dispatch import make_dispatch

    return encode_dispatch(make_dispatch(content.runs, content.summary))
