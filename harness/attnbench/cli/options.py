"""One vocabulary of options for every command."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from attnbench.cases import DEVICES, DTYPES, LEVELS

__all__ = ["BUDGETS", "LENGTHS", "QUICK_LENGTHS", "options"]

F = TypeVar("F", bound=Callable[..., Any])

# Sequence lengths of a quick profile, and those of any other.
QUICK_LENGTHS = (64, 128, 256, 512)
LENGTHS = (128, 256, 512, 1024, 2048)
# Processes, and seconds given to one case in one process, by level.
BUDGETS = {"quick": (3, 0.4), "core": (10, 1.0), "full": (10, 2.0), "slow": (10, 4.0)}
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Lengths(click.ParamType):
    """Comma-separated sequence lengths, ascending."""

    name = "lengths"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = value.split(",")
        if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
            self.fail(
                f"needs whole numbers of at least 1, separated by commas, got {value!r}; for example 128,256",
                param,
                ctx,
            )
        return tuple(sorted({int(part) for part in parts}))


class Bytes(click.ParamType):
    """A number of bytes with a unit."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)?", str(value))
        if not found:
            self.fail(f"needs a number of bytes, got {value!r}; for example 8GiB", param, ctx)
        return int(float(found[1]) * _UNITS[found[2] or ""])


class Shard(click.ParamType):
    """Part I of N."""

    name = "I/N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        found = re.fullmatch(r"(\d+)/(\d+)", str(value))
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            self.fail(f"needs part I of N with 1 <= I <= N, got {value!r}; for example 1/4", param, ctx)
        return int(found[1]), int(found[2])


class Seconds(click.FloatRange):
    """A positive number of seconds."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)


_ALL: dict[str, Callable[[F], F]] = {
    "suite": click.option("--suite", type=click.Choice(LEVELS), default="quick", show_default=True, help="Cases to run."),
    "case": click.option("--case", "patterns", multiple=True, help="Keep cases whose id matches, or add a case by its id."),
    "check": click.option("--check", "checks", multiple=True, help="Keep these checks."),
    "device": click.option("--device", type=click.Choice(DEVICES), default="cpu", show_default=True),
    "dtype": click.option("--dtype", "dtypes", type=click.Choice(DTYPES), multiple=True, help="Run every case in it."),
    "lengths": click.option("--lengths", type=Lengths(), help="Sequence lengths, such as 128,256,512."),
    "passes": click.option(
        "--passes", type=click.Choice(["forward", "forward+backward"]), multiple=True, help="Passes to time; both if not given."
    ),
    "results": click.option(
        "--results", type=click.Path(file_okay=False, path_type=Path), default=Path("results"), show_default=True,
        help="Folder of run files.",
    ),
    "expected": click.option(
        "--expected-failures", "expected", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="TOML file of known deviations; expected_failures.toml beside an implementation is always read.",
    ),
    "timeout": click.option("--timeout", type=Seconds(), default=120.0, show_default=True, help="Of one check on one case."),
    "memory_limit": click.option("--memory-limit", type=Bytes(), help="Of each worker, such as 8GiB."),
    "work_limit": click.option(
        "--work-limit", type=Seconds(), default=2.0, show_default=True, help="Predicted time of a call that is not started."
    ),
    "shard": click.option("--shard", type=Shard(), help="Run part I of N of the cases."),
    "resume": click.option("--resume", metavar="RUN", help="Go on with a stored run: its id or its file."),
    "json": click.option("--json", "json_file", type=click.File("w", lazy=True), help="Write findings as JSON; - for standard output."),
    "processes": click.option("--processes", type=click.IntRange(min=1), help="Fresh timing processes."),
    "threads": click.option("--threads", type=click.IntRange(min=1), help="Threads of every worker; torch's choice if not given."),
    "reports": click.option(
        "--reports", type=click.Path(file_okay=False, path_type=Path), default=Path("reports"), show_default=True,
        help="Folder of the report.",
    ),
}  # fmt: skip


def options(*names: str) -> Callable[[F], F]:
    """Decorator that adds options of the vocabulary by name."""

    def add(function: F) -> F:
        for name in reversed(names):
            function = _ALL[name](function)
        return function

    return add
