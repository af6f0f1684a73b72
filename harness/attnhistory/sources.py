"""Finds and reads the files that have a history: result files of asv, and run files."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnbench.records.asv_file import list_asv_files
from attnhistory.asv_results import read_asv
from attnhistory.points import Reading, Skipped
from attnhistory.run_results import read_run_file

__all__ = ["HistoryError", "find_default_paths", "read_paths"]

CONFIG, RESULTS, RUN = "asv.conf.json", "results", ".jsonl"
# What asv uses if its configuration does not name a folder.
ASV_RESULTS = "results"
# A string, which is kept, or a comment; asv's configuration may have both kinds of JavaScript's comments.
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


class HistoryError(Exception):
    """Raised where nothing can be read; the message is one line with the remedy."""


def find_default_paths(folder: Path) -> list[Path]:
    """Return the paths of a repository that may have a history: asv's configuration, and the folder of runs.

    Raises: HistoryError where it has neither.
    """
    found = [path for path in (folder / CONFIG, folder / RESULTS) if path.exists()]
    if not found:
        raise HistoryError(f"PATH is missing, and the current folder has no {CONFIG} and no folder {RESULTS}: name one")
    return found


def read_paths(paths: Sequence[Path]) -> Iterator[Reading | Skipped]:
    """Yield the values of all files that the paths name, and what was not read.

    A path is a configuration of asv, a result file of asv, a run file, or a folder, which is searched with its
    subfolders.

    Raises: HistoryError where a path does not exist, or a configuration cannot be read.
    """
    for file in dict.fromkeys(file.resolve() for path in paths for file in _list_files(path)):
        yield from read_run_file(file) if file.suffix == RUN else read_asv(file)


def _list_files(path: Path) -> Iterator[Path]:
    if not path.exists():
        raise HistoryError(f"{path} does not exist: name a folder of asv's results, a run file, or a folder of them")
    if path.name.endswith(".conf.json"):
        folder = path.parent / _read_results_folder(path)
        # The configuration is there before the first measurement.
        yield from _list_files(folder) if folder.exists() else ()
    elif path.is_file():
        yield path
    else:
        yield from sorted(path.rglob(f"*{RUN}"))
        yield from list_asv_files(path)


def _read_results_folder(config: Path) -> str:
    """Return the folder of results that a configuration of asv names.

    Raises: HistoryError where it cannot be read.
    """
    try:
        text = config.read_text("utf-8")
        return str(json.loads(_COMMENT.sub(lambda found: found[1] or "", text)).get("results_dir", ASV_RESULTS))
    except (OSError, ValueError, AttributeError) as error:
        raise HistoryError(f"{config} cannot be read: {error}; name the folder of asv's results instead") from error
