"""Rows of tables from result files of asv and from pytest-benchmark's files, in the columns of stored runs."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.records.asv_file import PARAMETERS, AsvFile, is_asv_file, list_asv_files, parse_asv_file
from attnbench.records.benchmark_file import BenchmarkFile, is_benchmark_file, parse_benchmark_file
from attnbench.records.run_file import ResultsError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["expand_folder", "is_other_file", "tabulate_others"]

Cell = str | int | float | bool
Row = Mapping[str, Cell]
# Names that pytest-benchmark gives its files: a number, the commit and the time.
BENCHMARKS = "[0-9][0-9][0-9][0-9]_*.json"
RUNS = "*.jsonl"
# The column in which a table has each quantity of asv.
ASV_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "timings": {
        "time_ns": "median_ns", "time_ratio": "ratio", "time_ratio_low": "ratio_low", "time_ratio_high": "ratio_high",
        "flop": "flop",
    },
    "memory": {name: name for name in ("peak_bytes", "saved_bytes", "workspace_bytes")},
}  # fmt: skip
# Columns that tables of stored runs do not have, behind those that they have.
FURTHER = ("mask", "compared_ratio", "test", "suite", "machine", "environment", "torch", "commit", "date")


def is_other_file(path: Path) -> bool:
    """Whether a path has the suffix of a result file of asv or of pytest-benchmark."""
    return path.suffix == ".json"


def expand_folder(folder: Path) -> list[Path]:
    """Return the result files of asv and of pytest-benchmark, and the run files, in a folder and its subfolders.

    Raises: ResultsError where it has none.
    """
    found = [*sorted(folder.rglob(RUNS)), *list_asv_files(folder), *sorted(folder.rglob(BENCHMARKS))]
    if not found:
        raise ResultsError(
            f"{folder} has no results: name a folder of run files, of asv's results, or of pytest-benchmark's storage"
        )
    return list(dict.fromkeys(found))


def tabulate_others(paths: Iterable[Path], table: str) -> "pd.DataFrame":
    """Return a table of result files of asv and of pytest-benchmark; a column that no row has is left out.

    Raises: ResultsError where a file cannot be read, or its program does not measure what the table has.
    """
    # Imported here, because a command that reads no table does not need them.
    from attnbench.report.columns import TableColumn
    from attnbench.report.tables import TABLES, make_frame

    rows = [row for path in paths for row in _list_rows(path, table)]
    known = {name for row in rows for name in row}
    names = [*(column.name for column in TABLES[table].columns), *FURTHER]
    columns = tuple(TableColumn(name, "", _read_cell(name)) for name in names if name in known)
    return make_frame(columns, rows)


def _read_cell(name: str) -> Callable[[Row], Cell | None]:
    return lambda row: row.get(name)


def _list_rows(path: Path, table: str) -> list[Row]:
    """Return the rows of a file.

    Raises: ResultsError where it cannot be read, or has no such table.
    """
    try:
        content = path.read_bytes()
        stored = json.loads(content)
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path} is no whole JSON file: {error}") from error
    readers: list[tuple[Callable[[object], bool], str, Callable[[bytes, str], Iterator[Row] | None]]] = [
        (is_asv_file, "asv", _list_asv),
        (is_benchmark_file, "pytest-benchmark", _list_benchmarks),
    ]
    for knows, program, read in readers:
        if knows(stored):
            try:
                rows = read(content, table)
            except ValueError as error:
                raise ResultsError(f"{path}: {' '.join(str(error).split())}") from error
            if rows is None:
                raise ResultsError(f"{path}: files of {program} have no table {table}; read timings or memory")
            return list(rows)
    raise ResultsError(
        f"{path} is neither a result file of asv nor of pytest-benchmark; a run file has the suffix .jsonl"
    )


def _list_asv(content: bytes, table: str) -> Iterator[Row] | None:
    file = parse_asv_file(content)
    if file.problems:
        raise ValueError(file.problems[0])
    return _join_asv(file, ASV_COLUMNS[table]) if table in ASV_COLUMNS else None


def _join_asv(file: AsvFile, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield a row for each call of a suite, from the benchmarks that measured it."""
    rows: dict[tuple[str, tuple[str, ...]], dict[str, Cell]] = {}
    for one in file.values:
        if one.quantity in columns:
            exact = one.quantity.endswith("_bytes") or one.quantity == "flop"
            row = rows.setdefault((one.suite, one.words), {})
            row[columns[one.quantity]] = int(one.value) if exact else one.value
    for (suite, words), measured in rows.items():
        call = dict(zip(PARAMETERS, words, strict=False))
        yield {
            **call, "length": int(call["length"]), **measured, "suite": suite, "machine": file.machine,
            "environment": file.environment, "commit": file.commit, "date": file.date,
        }  # fmt: skip


def _list_benchmarks(content: bytes, table: str) -> Iterator[Row] | None:
    file = parse_benchmark_file(content)
    return _spread_calls(file, table) if table in ("timings", "memory", "findings") else None


def _spread_calls(file: BenchmarkFile, table: str) -> Iterator[Row]:
    for one in file.calls:
        origin: dict[str, Cell] = {
            "test": one.test, "machine": one.call.machine, "torch": one.call.torch, "commit": file.commit,
            "date": file.date,
        }  # fmt: skip
        if table == "timings":
            yield one.call.timings | origin | {"compared_ratio": one.compared_ratio}
        elif table == "memory":
            yield one.call.memory | origin
        else:
            call = {name: one.call.timings[name] for name in ("implementation", "case", "run")}
            for check, status in one.call.conformance.items():
                yield call | origin | {"check": check, "status": status}
