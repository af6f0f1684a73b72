"""``attnbench.profile``: time and memory of implementations, and the result as a table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack, get_args

from attnbench.analysis.summarize import summarize
from attnbench.analysis.summary import Summary
from attnbench.api.arguments import (
    list_counts,
    list_lengths,
    list_shares,
    list_words,
    require_count,
    require_positive,
)
from attnbench.api.axes import MODELS, Length
from attnbench.api.choosing import Asked, Choice, choose
from attnbench.api.command_line import format_command
from attnbench.api.profile_job import record_profile
from attnbench.api.progress import is_watched, show_interactive_progress
from attnbench.api.recording import record
from attnbench.api.results import Table, tabulate_runs
from attnbench.api.stored import RESULTS
from attnbench.api.stored_job import make_job
from attnbench.api.usage import UsageError, name_arguments
from attnbench.api.worker_pool import LocalSession, refuse_in_worker
from attnbench.cases import DTYPES, LEVELS
from attnbench.devices import HOST, list_device_names
from attnbench.plugins.importable import find_name
from attnbench.records.environment import count_cores
from attnbench.records.run_file import StoredRun, merge_runs, read_run
from attnbench.records.types import Pass, Result
from attnbench.report.terminal import format_summary

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ProfileResult", "profile"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProfileResult:
    """Time and memory of a profile; it prints as the table of ``attnbench profile``."""

    run: StoredRun
    # The run file; None if the run was not stored.
    path: Path | None

    @property
    def results(self) -> list[Result]:
        """One result for each implementation and case, with its findings and measurements."""
        return merge_runs([self.run])

    def to_frame(self, table: Table = "timings") -> "pd.DataFrame":
        """Return a table of the run, with the columns that ``attnbench.results.read`` has.

        Raises: ValueError for an unknown table.
        """
        return tabulate_runs([self.run], table)

    def choose(self, *, queries: int, **asked: Unpack[Asked]) -> Choice:
        """Return which implementation to use for a call that was timed, as ``attnbench.choose`` does.

        Raises: NoChoiceError if no such call was timed, or several were.
        """
        return choose(self, queries=queries, **asked)

    @property
    def summary(self) -> Summary:
        """The table of the run, as typed rows."""
        return summarize([self.run])

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        stored = [] if self.path is None else [f"stored in {self.path}"]
        return "\n".join((format_summary(self.summary), *stored))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def profile(
    implementations: object = (),
    *,
    lengths: int | Sequence[Length] = (),
    batch: int | Sequence[int] = (),
    heads: int | Sequence[int] = (),
    head_dim: int | Sequence[int] = (),
    width: int | Sequence[int] = (),
    kv_heads: int | Sequence[int] = (),
    mask: str | Sequence[str] = (),
    padding: float | Sequence[float] = (),
    like: str | None = None,
    dtype: str | Sequence[str] = (),
    device: str = HOST,
    threads: int | None = None,
    passes: Pass | Sequence[Pass] = (),  # passes of a call, not passwords
    cases: str | Sequence[str] = (),
    suite: str = "quick",
    processes: int | None = None,
    case_budget_s: float | None = None,
    timeout_s: float = 120.0,
    work_limit_s: float | None = None,
    memory_bytes: int | None = None,
    results: str | Path | None = RESULTS,
    progress: bool = True,
) -> ProfileResult:
    """Measure time and memory of implementations beside their reference, as ``attnbench profile`` does.

    ``implementations`` is an implementation or a list of them, each an object or a name as for ``attnbench.conform``;
    without them, every registered implementation of multi-head attention is measured.

    ``lengths``, ``batch``, ``heads``, ``head_dim`` or ``width``, ``kv_heads``, ``mask``, ``padding`` and ``dtype`` take
    one value or a list of values, which are multiplied with one another. A length is a number of tokens, or a pair
    (queries, keys). ``like`` takes the sizes of a well-known model. ``cases`` are patterns of case ids, or whole ids.
    What is left out has the default of the command's option. docs/measurement.md describes the options.

    ``suite`` sets the measuring effort. ``processes`` is the number of timing processes. ``case_budget_s`` limits the
    time for one case, ``timeout_s`` one check on one case, and ``work_limit_s`` the predicted time of a call that is
    started, all in seconds. ``memory_bytes`` limits the memory of a worker process.

    The run is stored below the folder ``results``, or not at all if ``results`` is None. ``progress`` is shown on
    stderr in a terminal and in a notebook.

    Raises: ValueError for an invalid argument; PluginError if an implementation cannot be loaded; ResultsError if the
    run cannot be stored.
    """
    refuse_in_worker("profile")
    given = _take_sizes(
        lengths=lengths, batch=batch, heads=heads, head_dim=head_dim, width=width, kv_heads=kv_heads, mask=mask,
        padding=padding, like=like, dtype=dtype, device=device, passes=passes, cases=cases,
    )  # fmt: skip
    given |= _take_effort(
        suite=suite, processes=processes, threads=threads, case_budget_s=case_budget_s, timeout_s=timeout_s,
        work_limit_s=work_limit_s, memory_bytes=memory_bytes,
    )  # fmt: skip
    names = [find_name(one) for one in _list_implementations(implementations)]
    with TemporaryDirectory(prefix="attnbench-") as unstored:
        given["results"] = Path(unstored if results is None else results)
        try:
            recorded = record_profile(
                names,
                given,
                start_recording=partial(
                    record,
                    command=format_command(_list_words(names, given)),
                    job=make_job("profile", {**given, "implementations": names}),
                ),
                show=partial(show_interactive_progress, wanted=progress),
                announces=progress and is_watched(),
                kind=LocalSession,
            )
        except UsageError as error:
            raise ValueError(name_arguments(error.message)) from None
        run = read_run(recorded.file.path)
    return ProfileResult(run=run, path=None if results is None else run.path)


def _list_implementations(given: object) -> list[object]:
    if isinstance(given, Iterable) and not isinstance(given, str | type):
        return list(given)
    return [given]


def _take_sizes(**values: Any) -> dict[str, Any]:
    """Return the values of the options that choose what is timed.

    Raises: ValueError for an invalid argument.
    """
    given = {name: list_counts(name, values[name]) for name in ("batch", "heads", "head_dim", "width", "kv_heads")}
    if values["like"] is not None:
        list_words("like", values["like"], sorted(MODELS))
    (device,) = list_words("device", values["device"], list_device_names())
    return given | {
        "lengths": list_lengths("lengths", values["lengths"]),
        "masks": list_words("mask", values["mask"]),
        "padding": list_shares("padding", values["padding"]),
        "like": values["like"],
        "dtypes": list_words("dtype", values["dtype"], DTYPES),
        "device": device,
        "passes": list_words("passes", values["passes"], get_args(Pass)),
        "patterns": list_words("cases", values["cases"]),
        "operators": ("multihead",),
        "resume": None,
    }


def _take_effort(**values: Any) -> dict[str, Any]:
    """Return the values of the options that limit and set the measuring.

    Raises: ValueError for an invalid argument.
    """
    (suite,) = list_words("suite", values["suite"], LEVELS)
    require_count("processes", values["processes"])
    require_count("threads", values["threads"], count_cores())
    require_count("memory_bytes", values["memory_bytes"])
    for name in ("case_budget_s", "timeout_s", "work_limit_s"):
        require_positive(name, values[name])
    return {
        "suite": suite,
        "processes": values["processes"],
        "threads": values["threads"],
        "case_budget": values["case_budget_s"],
        "timeout": values["timeout_s"],
        "work_limit": values["work_limit_s"],
        "memory_limit": values["memory_bytes"],
    }


# Options of the command by the name of their value; those with a list take it separated by commas, or are repeated.
_JOINED = {
    "lengths": "--lengths", "batch": "--batch", "heads": "--heads", "head_dim": "--head-dim", "width": "--width",
    "kv_heads": "--kv-heads", "masks": "--mask", "padding": "--padding",
}  # fmt: skip
_REPEATED = {"dtypes": "--dtype", "passes": "--passes", "patterns": "--case"}
_SINGLE = {
    "like": "--like", "device": "--device", "suite": "--suite", "processes": "--processes", "threads": "--threads",
    "case_budget": "--case-budget", "timeout": "--timeout", "work_limit": "--work-limit",
    "memory_limit": "--memory-limit",
}  # fmt: skip


def _list_words(names: Sequence[str], given: Mapping[str, Any]) -> list[str]:
    """Return the command line that makes the same profile, which the run stores."""
    words = ["profile", *names]
    for name, option in _JOINED.items():
        values = [":".join(map(str, one)) if isinstance(one, tuple) else f"{one}" for one in given[name]]
        words += [option, ",".join(values)] if values else []
    words += [word for name, option in _REPEATED.items() for one in given[name] for word in (option, one)]
    single = {option: given[name] for name, option in _SINGLE.items() if given[name] is not None}
    words += [word for option, value in single.items() for word in (option, str(value))]
    return words
