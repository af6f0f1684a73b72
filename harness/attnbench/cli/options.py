"""The command-line options that several commands share, each defined once."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from attnbench.api.axes import MODELS, Length
from attnbench.api.padding import Shares
from attnbench.cases import DTYPES, LEVELS
from attnbench.devices import HOST, list_device_names, list_devices
from attnbench.plugins.registry import OPERATORS, list_names
from attnbench.records.environment import count_cores
from attnbench.records.types import Pass
from attnbench.runner import ExpectationError, read_expectations

__all__ = ["AXES", "OUTPUT_FILES", "options"]

F = TypeVar("F", bound=Callable[..., Any])

# Options that write one file for one run, by parameter name.
OUTPUT_FILES = {"json_file": "--json", "html_file": "--html", "markdown_file": "--markdown"}
PASSES = get_args(Pass)
# A memory limit of this many bytes or more is rejected: the operating system cannot set such a limit.
MOST_BYTES = 2**62
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Counts(click.ParamType[tuple[int, ...]]):
    """Comma-separated whole numbers, ascending; ``most`` is the largest number that is allowed, and ``what`` it is."""

    name = "numbers"

    def __init__(self, most: float = math.inf, what: str = "") -> None:
        self._most, self._what = most, what

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
        if max(map(int, parts)) > self._most:
            self.fail(f"needs numbers of at most {self._most}, {self._what}, got {value!r}", param, ctx)
        return tuple(sorted({int(part) for part in parts}))


class Lengths(click.ParamType[tuple[Length, ...]]):
    """Comma-separated sequence lengths, ascending; ``1:512`` is one query and 512 keys."""

    name = "lengths"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Length, ...]:
        if isinstance(value, tuple):
            return value
        found: dict[tuple[int, int], Length] = {}
        for part in value.split(","):
            numbers = [word.strip() for word in part.split(":")]
            if len(numbers) > 2 or not all(word.isdecimal() and int(word) > 0 for word in numbers):
                self.fail(
                    f"needs whole numbers of at least 1, separated by commas, got {value!r}; for example 128,256, or "
                    "1:512 for one query and 512 keys",
                    param,
                    ctx,
                )
            queries, keys = int(numbers[0]), int(numbers[-1])
            found[keys, queries] = queries if queries == keys else (queries, keys)
        return tuple(found[key] for key in sorted(found))


class Words(click.ParamType[tuple[str, ...]]):
    """Comma-separated words."""

    name = "words"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        words = tuple(dict.fromkeys(word.strip() for word in value.split(",")))
        if not all(words):
            self.fail(f"needs words, separated by commas, got {value!r}; for example none,causal", param, ctx)
        return words


class Bytes(click.ParamType[int]):
    """A number of bytes, with or without a unit such as GiB."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)?", str(value))
        number = int(float(found[1]) * _UNITS[found[2] or ""]) if found else 0
        if not 0 < number < MOST_BYTES:
            self.fail(f"needs a number of bytes, got {value!r}; for example 8GiB", param, ctx)
        return number


class Shard(click.ParamType[tuple[int, int]]):
    """Part I of N of the cases, written I/N."""

    name = "I/N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        found = re.fullmatch(r"(\d+)/(\d+)", str(value))
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            self.fail(f"needs part I of N with 1 <= I <= N, got {value!r}; for example 1/4", param, ctx)
        return int(found[1]), int(found[2])


class Seconds(click.ParamType[float]):
    """A positive number of seconds."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(str(value).removesuffix("s"))
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < math.inf:
            self.fail(f"needs a number of seconds above 0, got {value!r}; for example 2.5", param, ctx)
        return seconds


class Folder(click.ParamType[Path]):
    """A folder, which is created if it does not exist."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not str(value):
            self.fail("needs a folder, got an empty name; . is the working directory", param, ctx)
        path = Path(value)
        if path.exists() and not path.is_dir():
            self.fail(f"needs a folder, got the file {str(value)!r}; name another path", param, ctx)
        return path


class JsonFile(click.File):
    """A file that is written when the command ends; - is standard output."""

    def __init__(self) -> None:
        super().__init__("w", encoding="utf-8", lazy=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(value)
        if path.is_dir() or not path.parent.is_dir():
            self.fail(f"needs a file in an existing folder, got {value!r}; - is standard output", param, ctx)
        return super().convert(value, param, ctx)


class Expectations(click.ParamType[Path]):
    """A file of expected failures.

    The file is read while the command line is parsed, so errors in it are reported before any run.
    """

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        try:
            read_expectations(Path(value))
        except ExpectationError as error:
            self.fail(str(error), param, ctx)
        return Path(value)


class OperatorName(click.ParamType[str]):
    """The name of a registered operator."""

    name = "operator"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        registered = list_names(OPERATORS)
        if value not in registered:
            self.fail(f"unknown operator {value!r}; available: {', '.join(registered)}", param, ctx)
        return str(value)


FOLDER = Folder()
# Names of the options that choose sizes and masks of timed calls.
AXES = ("batch", "heads", "head_dim", "width", "kv_heads", "mask", "padding", "like")


def _make_option(*names: str, **settings: Any) -> Callable[[F], F]:
    return click.option(*names, show_default=settings.get("default") is not None, **settings)


def _describe_devices() -> str:
    never_run = ", ".join(device.name for device in list_devices() if not device.was_run)
    return "Device of the cases." + (f" Never tried: {never_run}." if never_run else "")


_ALL: dict[str, Callable[[Any], Any]] = {
    "suite": _make_option("--suite", type=click.Choice(LEVELS), default="quick", help="Suite of cases to run."),
    "suite_or_fuzz": _make_option(
        "--suite",
        type=click.Choice((*LEVELS, "fuzz")),
        default="quick",
        help="Suite of cases to run; the suite fuzz generates its cases.",
    ),
    "budget": _make_option("--budget", type=Seconds(), help="Fuzz each implementation for this time, such as 60s."),
    "examples": _make_option(
        "--examples", type=click.IntRange(min=1), help="Fuzz each implementation with this many cases."
    ),
    "seed": _make_option(
        "--seed", type=click.IntRange(min=0), help="Seed of the generated cases; the same seed gives the same cases."
    ),
    "keep_found": _make_option(
        "--keep-found",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Append ids of the smallest failing cases to this file.",
    ),
    "case": _make_option(
        "--case",
        "patterns",
        multiple=True,
        help="Case to run: a pattern of ids such as '*bfloat16*', or a complete id.",
    ),
    "check": _make_option("--check", "checks", multiple=True, help="Check to run: a name, or a pattern of names."),
    "device": _make_option("--device", type=click.Choice(list_device_names()), default=HOST, help=_describe_devices()),
    "dtype": _make_option(
        "--dtype", "dtypes", type=click.Choice(DTYPES), multiple=True, help="Run every case in this dtype."
    ),
    "lengths": _make_option(
        "--lengths", type=Lengths(), help="Sequence lengths, such as 128,256,512; 1:512 is one query and 512 keys."
    ),
    "batch": _make_option("--batch", type=Counts(), help="Numbers of sequences, such as 1,8."),
    "heads": _make_option("--heads", type=Counts(), help="Numbers of heads, such as 12."),
    "head_dim": _make_option("--head-dim", type=Counts(), help="Widths of a head, such as 64,128."),
    "width": _make_option("--width", type=Counts(), help="Widths of all heads together, such as 768."),
    "kv_heads": _make_option("--kv-heads", type=Counts(), help="Numbers of key heads, for operators that share them."),
    "mask": _make_option(
        "--mask", "masks", type=Words(), help="Masks, such as none,causal,bool,float,padding, or masks of case ids."
    ),
    "padding": _make_option(
        "--padding",
        type=Shares(),
        help="Shares of the batch that are padding, such as 0.3; sequences are as long as real sentences. Needs a "
        "batch of at least 2.",
    ),
    "like": _make_option(
        "--like", type=click.Choice(sorted(MODELS)), help="Take sizes, mask and typical lengths of a well-known model."
    ),
    "operator": _make_option(
        "--operator",
        "operators",
        type=OperatorName(),
        multiple=True,
        default=("multihead",),
        help="Operator whose implementations are used if no IMPLEMENTATION is named.",
    ),
    "passes": _make_option(
        "--passes", type=click.Choice(PASSES), multiple=True, help="Pass to time; default: both passes."
    ),
    "results": _make_option("--results", type=FOLDER, default=Path("results"), help="Folder of run files."),
    "reports": _make_option("--reports", type=FOLDER, default=Path("reports"), help="Folder of the report."),
    "expected": _make_option(
        "--expected-failures",
        "expected",
        type=Expectations(),
        multiple=True,
        help="TOML file of expected failures. expected_failures.toml beside an implementation is always read.",
    ),
    "case_budget": _make_option(
        "--case-budget", type=Seconds(), help="Time limit for timing one case. A slow case gets fewer processes."
    ),
    "timeout": _make_option("--timeout", type=Seconds(), default=120.0, help="Time limit of one check on one case."),
    "memory_limit": _make_option("--memory-limit", type=Bytes(), help="Memory limit of each worker, such as 8GiB."),
    "work_limit": _make_option(
        "--work-limit",
        type=Seconds(),
        help="Do not start calls predicted to take longer than this; default: 0.75 s, in the suite quick 0.12 s.",
    ),
    "shard": _make_option("--shard", type=Shard(), help="Run part I of N of the cases."),
    "resume": _make_option(
        "--resume",
        metavar="RUN",
        help="Resume the stored run with this id or file, with the options with which it was started.",
    ),
    "json": _make_option(
        "--json", "json_file", type=JsonFile(), help="File for the findings as JSON; - is standard output."
    ),
    "markdown": _make_option(
        "--markdown",
        "markdown_file",
        type=JsonFile(),
        help="File for the table and the failures as Markdown, short enough for a pull request; - is standard output.",
    ),
    "comparison_html": _make_option(
        "--html", "html_file", type=JsonFile(), help="File for the comparison as an HTML page; - is standard output."
    ),
    "comparison_markdown": _make_option(
        "--markdown",
        "markdown_file",
        type=JsonFile(),
        help="File for the comparison as Markdown, short enough for a pull request; - is standard output.",
    ),
    "certificate": _make_option(
        "--certificate",
        "certificate_file",
        type=JsonFile(),
        help="File for the certificate of a whole suite as JSON; - is standard output.",
    ),
    "mutants": _make_option(
        "--mutants",
        is_flag=True,
        help="Run the shipped mutants instead of an IMPLEMENTATION, and print the mutation score.",
    ),
    "mutants_of": _make_option(
        "--operator",
        "operators",
        type=OperatorName(),
        multiple=True,
        help="With --mutants: run the mutants of this operator.",
    ),
    "matrix": _make_option(
        "--matrix",
        is_flag=True,
        help="Print the findings by chapter. With --mutants: run every mutant and correct variant on every case.",
    ),
    "frontier": _make_option(
        "--frontier",
        is_flag=True,
        help="Find the longest sequence that fits in --memory-limit and whose call takes no longer than --work-limit.",
    ),
    "no_completion": _make_option(
        "--no-completion",
        is_flag=True,
        help="Run only the cases of the list; do not add supplementary cases for an implementation that refuses cases.",
    ),
    "no_cache": _make_option(
        "--no-cache", is_flag=True, help="Compute all expected values; do not use the cache of expected values."
    ),
    "processes": _make_option(
        "--processes", type=click.IntRange(min=1), help="Number of timing processes; each is newly started."
    ),
    # At most one thread per core: further threads would only wait for one another, and a very large number would use up
    # the threads that the system allows.
    "threads": _make_option("--threads", type=click.IntRange(min=1, max=count_cores()), help="Threads of each worker."),
    "thread_counts": _make_option(
        "--threads",
        type=Counts(most=count_cores(), what="the number of cores"),
        help="Threads of each worker, such as 1,2. Each number has processes and a run file of its own.",
    ),
}


def options(*asked: str) -> Callable[[F], F]:
    """Return a decorator that adds to a command the shared options with these names."""

    def add(function: F) -> F:
        for name in reversed(asked):
            function = _ALL[name](function)
        return function

    return add
