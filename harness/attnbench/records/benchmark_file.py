"""What the fixture ``attention_benchmark`` stores in pytest-benchmark's files, and reading it.

Source: pytest-benchmark 5.3.1, ``pytest_benchmark_generate_json``.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["BenchmarkFile", "MeasuredCall", "StoredCall", "is_benchmark_file", "parse_benchmark_file"]

Cell = str | int | float | bool


class MeasuredCall(msgspec.Struct, frozen=True, kw_only=True):
    """What ``extra_info`` of a benchmark has: rows of the tables in docs/formats.md, without what was not measured."""

    machine: str
    # Version of torch.
    torch: str
    # The status of each check that the call has to pass before it is timed.
    conformance: dict[str, str]
    timings: dict[str, Cell]
    memory: dict[str, Cell]


class _Stats(msgspec.Struct, frozen=True):
    median: float


class _Benchmark(msgspec.Struct, frozen=True):
    fullname: str
    stats: _Stats
    extra_info: dict[str, Any] = {}


class _File(msgspec.Struct, frozen=True):
    """The fields of a file that are read here."""

    datetime: str
    commit_info: dict[str, Any]
    benchmarks: list[_Benchmark]


class StoredCall(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark of the fixture ``attention_benchmark``."""

    # Node id of the test, by which pytest-benchmark compares.
    test: str
    # Median over the processes of the ratio to the reference's time in all cycles: the number that is compared.
    compared_ratio: float
    call: MeasuredCall


class BenchmarkFile(msgspec.Struct, frozen=True, kw_only=True):
    """The benchmarks of the fixture in a file of pytest-benchmark; other benchmarks are left out."""

    commit: str
    # In the format of ISO 8601.
    date: str
    calls: tuple[StoredCall, ...]


def is_benchmark_file(stored: object) -> bool:
    """Whether decoded JSON looks like a file of pytest-benchmark."""
    return isinstance(stored, Mapping) and {"benchmarks", "machine_info"} <= stored.keys()


def parse_benchmark_file(content: bytes) -> BenchmarkFile:
    """Return the benchmarks of the fixture ``attention_benchmark`` in a file.

    Raises: ValueError where it is no whole file of pytest-benchmark, or has no such benchmark.
    """
    try:
        file = msgspec.convert(json.loads(content), _File)
        calls = tuple(
            StoredCall(
                test=one.fullname,
                compared_ratio=one.stats.median,
                call=msgspec.convert(one.extra_info, MeasuredCall),
            )
            for one in file.benchmarks
            if one.extra_info.keys() >= set(MeasuredCall.__struct_fields__)
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no whole file of pytest-benchmark: {error}") from error
    if not calls:
        raise ValueError("it has no benchmark of the fixture attention_benchmark, which attnbench[benchmark] brings")
    return BenchmarkFile(commit=str(file.commit_info.get("id") or ""), date=file.datetime, calls=calls)
