"""``attnbench.results``: stored runs as tables of pandas."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from attnbench.api.stored import FILES, RESULTS
from attnbench.records.run_file import StoredRun, find_runs, read_run

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table", "read", "tabulate_runs"]

# docs/formats.md describes the columns.
Table = Literal["summary", "timings", "memory", "findings", "untimed", "kernels"]


def read(*runs: str | Path, table: Table = "timings", folder: str | Path = RESULTS) -> "pd.DataFrame":
    """Return a table of stored runs.

    ``summary`` has a row for each cell of the tables that the terminal shows. Each other table but ``untimed`` has the
    columns of the report's CSV file of this name.

    ``runs`` are ids of runs below ``folder``, or paths of files; without them, the newest run is read. Measurements
    that cannot be right are left out, as in the report.

    Raises: ResultsError where a run is not found or cannot be read; ValueError for an unknown table.
    """
    return tabulate_runs([read_run(path) for path in find_runs(Path(folder), [str(run) for run in runs])], table)


def tabulate_runs(runs: Sequence[StoredRun], table: Table) -> "pd.DataFrame":
    """Return a table of runs; see ``read``.

    Raises: ValueError for an unknown table.
    """
    if table not in get_args(Table):
        raise ValueError(f"table must be one of {', '.join(get_args(Table))}, got {table!r}")
    # Imported here, because a command that reads no table does not need them.
    from attnbench.report.content import collect_content
    from attnbench.report.tables import TABLES, make_frame

    found = TABLES[table]
    frame = make_frame(found.columns, found.list_rows(collect_content(runs)))
    frame.attrs[FILES] = [str(run.path) for run in runs]
    return frame
