"""The options that several commands share, each defined once.

The values of the fields of a job stay words here, which ``attnbench.jobs`` reads.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from attnbench.cases import LEVELS
from attnbench.devices import HOST, list_devices
from attnbench.jobs.fields import FIELDS
from attnbench.jobs.values import FLAG
from attnbench.plugins.registry import list_names

__all__ = ["AXES", "OUTPUT_FILES", "JsonFile", "complete_names", "options"]

F = TypeVar("F", bound=Callable[..., Any])

# Options that write one file for one run, by parameter name.
OUTPUT_FILES = {"json_file": "--json", "html_file": "--html", "markdown_file": "--markdown"}
# Names of the options that choose sizes and masks of timed calls.
AXES = ("batch", "heads", "head_dim", "width", "kv_heads", "mask", "padding", "like")


class JsonFile(click.File):
    """A file that is written when the command ends; - is standard output."""

    def __init__(self) -> None:
        super().__init__("w", encoding="utf-8", lazy=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse a folder, and a file in a folder that does not exist."""
        path = Path(value)
        if path.is_dir() or not path.parent.is_dir():
            self.fail(f"needs a file in an existing folder, got {value!r}; - is standard output", param, ctx)
        return super().convert(value, param, ctx)


def complete_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Return what a shell offers where an implementation is named: registered names, and files."""
    names = [CompletionItem(name) for name in list_names() if name.startswith(incomplete)]
    # Files come first, because click's code for bash forgets what came before them.
    return [CompletionItem(incomplete, type="file"), *names]


def _make_field(name: str, told: str = "", *, default: object = None, word: str = "") -> Callable[[F], F]:
    """Return the option of a field of jobs; its value is a word, or None.

    ``told`` is the help, ``default`` the default of the field, and ``word`` stands for the value; None: that of its
    kind.
    """
    field = FIELDS[name]
    if field.kind is FLAG:
        return click.option(field.option, name, is_flag=True, help=told)
    shown = f"{told}  [default: {default}]" if default is not None else told
    return click.option(
        field.option, name, multiple=field.repeated, metavar=word or field.kind.word, help=shown.strip()
    )


def _describe_devices() -> str:
    never_run = ", ".join(device.name for device in list_devices() if not device.was_run)
    return "Device of the cases." + (f" Never tried: {never_run}." if never_run else "")


_ALL: dict[str, Callable[[Any], Any]] = {
    "suite": _make_field("suite", "Suite of cases to run.", default="quick", word=f"[{'|'.join(LEVELS)}]"),
    "suite_or_fuzz": _make_field(
        "suite", "Suite of cases to run; the suite fuzz generates its cases.", default="quick"
    ),
    "budget": _make_field("budget_s", "Fuzz each implementation for this time, such as 60s."),
    "examples": _make_field("examples", "Fuzz each implementation with this many cases."),
    "seed": _make_field("seed", "Seed of the generated cases; the same seed gives the same cases."),
    "keep_found": click.option(
        "--keep-found",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Append ids of the smallest failing cases to this file.",
    ),
    "case": _make_field("cases", "Case to run: a pattern of ids such as '*bfloat16*', or a complete id."),
    "check": _make_field("checks", "Check to run: a name, or a pattern of names."),
    "device": _make_field("device", _describe_devices(), default=HOST),
    "dtype": _make_field("dtype", "Run every case in this dtype."),
    "lengths": _make_field("lengths", "Sequence lengths, such as 128,256,512; 1:512 is one query and 512 keys."),
    "batch": _make_field("batch", "Numbers of sequences, such as 1,8."),
    "heads": _make_field("heads", "Numbers of heads, such as 12."),
    "head_dim": _make_field("head_dim", "Widths of a head, such as 64,128."),
    "width": _make_field("width", "Widths of all heads together, such as 768."),
    "kv_heads": _make_field("kv_heads", "Numbers of key heads, for operators that share them."),
    "mask": _make_field("mask", "Masks, such as none,causal,bool,float,padding, or masks of case ids."),
    "padding": _make_field(
        "padding",
        "Shares of the batch that are padding, such as 0.3; sequences are as long as real sentences. Needs a batch of "
        "at least 2.",
    ),
    "like": _make_field("like", "Take sizes, mask and typical lengths of a well-known model."),
    "operator": _make_field(
        "operators",
        "Operator whose implementations are used if no IMPLEMENTATION is named.",
        default="multihead",
        word="OPERATOR",
    ),
    "mutants_of": _make_field("operators", "With --mutants: run the mutants of this operator.", word="OPERATOR"),
    "passes": _make_field("passes", "Pass to time; default: both passes."),
    "results": _make_field("results", "Folder of run files.", default="results"),
    "reports": _make_field("reports", "Folder of the report.", default="reports"),
    "expected": _make_field(
        "expected_failures",
        "TOML file of expected failures. expected_failures.toml beside an implementation is always read.",
    ),
    "case_budget": _make_field("case_budget_s", "Time limit for timing one case. A slow case gets fewer processes."),
    "timeout": _make_field("timeout_s", "Time limit of one check on one case.", default=120.0),
    "memory_limit": _make_field("memory_bytes", "Memory limit of each worker, such as 8GiB."),
    "work_limit": _make_field(
        "work_limit_s",
        "Do not start calls predicted to take longer than this; default: 0.75 s, in the suite quick 0.12 s.",
    ),
    "shard": _make_field("shard", "Run part I of N of the cases."),
    "frontier": _make_field(
        "frontier",
        "Find the longest sequence that fits in --memory-limit and whose call takes no longer than --work-limit.",
    ),
    "no_completion": _make_field(
        "no_completion",
        "Run only the cases of the list; do not add supplementary cases for an implementation that refuses cases.",
    ),
    "no_cache": _make_field("no_cache", "Compute all expected values; do not use the cache of expected values."),
    "processes": _make_field("processes", "Number of timing processes; each is newly started."),
    "threads": _make_field("threads", "Threads of each worker."),
    "thread_counts": _make_field(
        "threads",
        "Threads of each worker, such as 1,2. Each number has processes and a run file of its own.",
        word="NUMBERS",
    ),
    "resume": click.option(
        "--resume",
        metavar="RUN",
        help="Resume the stored run with this id or file, with the options with which it was started.",
    ),
    "json": click.option(
        "--json", "json_file", type=JsonFile(), help="File for the findings as JSON; - is standard output."
    ),
    "markdown": click.option(
        "--markdown",
        "markdown_file",
        type=JsonFile(),
        help="File for the table and the failures as Markdown, short enough for a pull request; - is standard output.",
    ),
    "comparison_html": click.option(
        "--html", "html_file", type=JsonFile(), help="File for the comparison as an HTML page; - is standard output."
    ),
    "comparison_markdown": click.option(
        "--markdown",
        "markdown_file",
        type=JsonFile(),
        help="File for the comparison as Markdown, short enough for a pull request; - is standard output.",
    ),
    "certificate": click.option(
        "--certificate",
        "certificate_file",
        type=JsonFile(),
        help="File for the certificate of a whole suite as JSON; - is standard output.",
    ),
    "mutants": click.option(
        "--mutants",
        is_flag=True,
        help="Run the shipped mutants instead of an IMPLEMENTATION, and print the mutation score.",
    ),
    "matrix": click.option(
        "--matrix",
        is_flag=True,
        help="Print the findings by chapter. With --mutants: run every mutant and correct variant on every case.",
    ),
}


def options(*asked: str) -> Callable[[F], F]:
    """Return a decorator that adds to a command the shared options with these names."""

    def add(function: F) -> F:
        for name in reversed(asked):
            function = _ALL[name](function)
        return function

    return add
