"""``attnbench.profile``: time and memory of implementations, and the result as a table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Unpack

from attnbench.analysis.summarize import summarize
from attnbench.analysis.summary import Summary
from attnbench.api.choosing import Asked, Choice, choose
from attnbench.api.execution import record_profile
from attnbench.api.progress import is_watched, show_interactive_progress, write_line
from attnbench.api.recording import record
from attnbench.api.results import Table, tabulate_runs
from attnbench.api.stored import RESULTS
from attnbench.api.worker_pool import LocalSession, refuse_in_worker
from attnbench.devices import HOST
from attnbench.jobs.job import ProfileJob, build
from attnbench.jobs.values import Length
from attnbench.plugins.importable import find_name
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
    job = build(
        ProfileJob,
        {
            "implementations": [find_name(one) for one in _list_implementations(implementations)],
            "lengths": lengths, "batch": batch, "heads": heads, "head_dim": head_dim, "width": width,
            "kv_heads": kv_heads, "mask": mask, "padding": padding, "like": like, "dtype": dtype, "device": device,
            "threads": threads, "passes": passes, "cases": cases, "suite": suite, "processes": processes,
            "case_budget_s": case_budget_s, "timeout_s": timeout_s, "work_limit_s": work_limit_s,
            "memory_bytes": memory_bytes, "results": results,
        },
    )  # fmt: skip
    with TemporaryDirectory(prefix="attnbench-") as unstored:
        recorded = record_profile(
            replace(job, results=Path(unstored)) if results is None else job,
            start_recording=record,
            show=partial(show_interactive_progress, wanted=progress),
            announce=write_line if progress and is_watched() else None,
            kind=LocalSession,
        )
        run = read_run(recorded.file.path)
    return ProfileResult(run=run, path=None if results is None else run.path)


def _list_implementations(value: object) -> list[object]:
    if isinstance(value, Iterable) and not isinstance(value, str | type):
        return list(value)
    return [value]
