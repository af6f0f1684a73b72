"""Reports on stored runs: an HTML page, a Markdown file, plots and CSV tables."""

from collections.abc import Sequence
from pathlib import Path

from attnbench.records.run_file import ResultsError, StoredRun

__all__ = ["write"]


def write(runs: Sequence[StoredRun], folder: Path) -> Path:
    """Write a report on these runs into a folder, and return the path of its HTML page.

    The report also has a Markdown file, plots and CSV files. The page and the Markdown file also show each study whose
    ``study-<name>.json`` is in the folder.

    Raises: ResultsError where the folder cannot be written.
    """
    from attnbench.report.studies.section import place_studies

    files = _render_files(runs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        place_studies(folder)
    except OSError as error:
        raise ResultsError(
            f"cannot write the report to {folder}: {error.strerror}; name another folder with --reports DIR"
        ) from error
    return folder / "index.html"


def _render_files(runs: Sequence[StoredRun]) -> dict[str, bytes]:
    # Imported here, because matplotlib and pandas take a second to import, and only a report needs them.
    from attnbench.report import markdown, page, plots, tables
    from attnbench.report.content import collect_content
    from attnbench.report.failures import tabulate_failures
    from attnbench.report.series import join_growths

    content = collect_content(runs)
    references = {tables.find_reference(result.case) for result in content.results}
    looks = plots.choose_looks({result.implementation for result in content.results}, references)
    files: dict[str, bytes] = {}
    for series in (one for one in content.series if one.drawn):
        figures = {
            "time": plots.plot_time(series.timings, series.untimed, looks),
            "memory": plots.plot_memory(series.memory, series.untimed, looks),
            "speed": plots.plot_speed(series.timings, series.untimed, looks, series.reference),
        }
        for name, figure in figures.items():
            if figure is not None:
                files[f"{name}{series.suffix}.svg"] = plots.draw(figure, "svg")
                files[f"{name}{series.suffix}.png"] = plots.draw(figure, "png")
    reached = [ceiling for run in content.runs for ceiling in run.ceilings]
    frames = {
        "findings": content.tables.findings,
        "failures": tabulate_failures(content.failures.groups),
        "timings": content.tables.timings,
        "memory": content.tables.memory,
        "kernels": content.tables.kernels,
        "ceilings": tables.tabulate_ceilings(reached),
        "growth": join_growths(content.series),
    }
    if content.left_out:
        frames["left-out"] = tables.tabulate_left_out(content.left_out)
    for name, frame in frames.items():
        files[f"{name}.csv"] = frame.to_csv(index=False, lineterminator="\n").encode()
    files["report.md"] = markdown.render(content, set(files)).encode()
    files["index.html"] = page.render(content, files).encode()
    return files
