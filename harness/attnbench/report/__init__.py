"""Reports on stored runs: an HTML page, a Markdown file, plots and CSV tables."""

import warnings
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
    from attnbench.report.spelled import spell_out_in
    from attnbench.report.studies.section import place_studies

    files = _render_files([spell_out_in(run) for run in runs])
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
    from attnbench.report.csv_files import render_csv
    from attnbench.report.failures import tabulate_failures
    from attnbench.report.series import join_growths

    content = collect_content(runs)
    references = {tables.find_reference(result.case) for result in content.results}
    looks = plots.choose_looks({result.implementation for result in content.results}, references)
    files: dict[str, bytes] = {}
    with warnings.catch_warnings():
        # A name may have letters that the font of the figures lacks: a browser has other fonts, a PNG file shows a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        for series in content.series:
            figures = {
                "time": plots.plot_time(series.timings, series.untimed, looks),
                "memory": plots.plot_memory(series.memory, series.untimed, looks),
                "speed": plots.plot_speed(series.timings, series.untimed, looks, series.reference),
            }
            for name, figure in figures.items():
                if figure is not None:
                    files[f"{name}{series.suffix}.svg"] = plots.draw(figure, "svg")
                    files[f"{name}{series.suffix}.png"] = plots.draw(figure, "png")
    reached = [ceiling for run in runs for ceiling in run.ceilings]
    frames = {
        "findings": tables.tabulate_findings(content.results),
        "failures": tabulate_failures(content.failures.groups),
        "timings": tables.tabulate_timings(content.results, reached),
        "memory": tables.tabulate_memory(content.results),
        "kernels": tables.tabulate_kernels(content.results),
        "ceilings": tables.tabulate_ceilings(reached),
        "growth": join_growths(content.series),
    }
    for name, frame in frames.items():
        files[f"{name}.csv"] = render_csv(frame)
    files["report.md"] = markdown.render(content, set(files)).encode()
    files["index.html"] = page.render(content, files).encode()
    return files
