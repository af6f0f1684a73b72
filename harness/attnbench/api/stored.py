"""The stored run that an argument of a Python call names."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, Union

from attnbench.records.run_file import StoredRun, find_runs, read_run

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FILES", "RESULTS", "HasRun", "Source", "find_run"]

# Default folder of stored runs, as of the command line.
RESULTS = Path("results")
# Key of ``DataFrame.attrs`` with the paths of the run files of a table that ``attnbench.results.read`` returned.
FILES = "attnbench_files"


class HasRun(Protocol):
    """What has a run, such as the result of ``attnbench.profile``."""

    @property
    def run(self) -> StoredRun:
        """The run with its results."""


# A run: its id, the path of its file, what was read of it, or a result that has it.
Source: TypeAlias = Union[str, Path, StoredRun, HasRun, "pd.DataFrame"]


def find_run(argument: str, source: object, results: Path) -> StoredRun:
    """Return the run that an argument names; an id is looked for below the folder ``results``.

    Raises: ResultsError where the run is not found or cannot be read; ValueError where the argument names no run.
    """
    if isinstance(source, StoredRun):
        return source
    if isinstance(source, str | Path):
        (path,) = find_runs(results, [str(source)])
        return read_run(path)
    files = getattr(source, "attrs", {}).get(FILES, ())
    if len(files) == 1:
        return read_run(Path(files[0]))
    if files:
        raise ValueError(f"{argument} must be a table of one run, got one of {len(files)} runs; read a single run")
    own = getattr(source, "run", None)
    if isinstance(own, StoredRun):
        return own
    raise ValueError(
        f"{argument} must be a run, got a {type(source).__name__}; pass the id of a run, the path of its file, or the "
        "result of attnbench.profile"
    )
