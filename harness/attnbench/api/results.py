"""``attnbench.results``: stored runs, and results of asv and pytest-benchmark, as tables of pandas."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from attnbench.api.other_files import expand_folder, is_other_file, tabulate_others
from attnbench.api.stored import FILES, RESULTS
from attnbench.records.run_file import StoredRun, find_runs, read_run

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table", "read", "tabulate_runs"]

# docs/formats.md describes the columns.
Table = Literal["summary", "timings", "memory", "findings", "untimed", "kernels"]


def read(*runs: str | Path, table: Table = "timings", folder: str | Path = RESULTS) -> "pd.DataFrame":
    """Return a table of stored runs, of asv's results or of pytest-benchmark's.

    ``summary`` has a row for each cell of the tables that the terminal shows. Each other table but ``untimed`` has the
    columns of the report's CSV file of this name.

    ``runs`` are ids of runs below ``folder``, paths of run files, of asv's result files and of pytest-benchmark's
    files, or folders of such files; without them, the newest run is read. Measurements that cannot be right are left
    out of runs, as in the report. A table of other files has the columns that their program measures, and those that
    say whose and when they are, such as ``machine`` and ``commit``.

    Raises: ResultsError where a file is not found, cannot be read or lacks the table; ValueError for an unknown table.
    """
    _refuse_unknown(table)
    others, names = [], []
    for one in map(str, runs):
        path = Path(one)
        for found in expand_folder(path) if path.is_dir() else [path]:
            if is_other_file(found):
                others.append(found)
            else:
                names.append(one if found == path else str(found))
    if not others:
        return tabulate_runs([read_run(path) for path in find_runs(Path(folder), names)], table)
    frame = tabulate_others(others, table)
    if not names:
        return frame
    import pandas as pd

    return pd.concat([read(*names, table=table, folder=folder), frame], ignore_index=True)


def tabulate_runs(runs: Sequence[StoredRun], table: Table) -> "pd.DataFrame":
    """Return a table of runs; see ``read``.

    Raises: ValueError for an unknown table.
    """
    _refuse_unknown(table)
    # Imported here, because a command that reads no table does not need them.
    from attnbench.report.content import collect_content
    from attnbench.report.tables import TABLES, make_frame

    found = TABLES[table]
    frame = make_frame(found.columns, found.list_rows(collect_content(runs)))
    frame.attrs[FILES] = [str(run.path) for run in runs]
    return frame


def _refuse_unknown(table: str) -> None:
    if table not in get_args(Table):
        raise ValueError(f"table must be one of {', '.join(get_args(Table))}, got {table!r}")
