"""``attnbench profile --frontier``: the longest sequence that each implementation computes within the limits."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from attnbench.analysis.max_length import FITS, find_max_lengths
from attnbench.api.execution import make_session, plan_profile
from attnbench.api.progress import show_progress
from attnbench.api.selection import choose_implementations, choose_timed_implementations, find_operators
from attnbench.cli.output_files import OutputFiles
from attnbench.cli.recording import FAILED, INCONCLUSIVE, print_stored_path, recording, write_json
from attnbench.jobs.job import ProfileJob
from attnbench.plugins.registry import display_name
from attnbench.records.run_file import StoredRun
from attnbench.records.types import FAILURES, FRONTIER, Result
from attnbench.report.console import Console
from attnbench.report.text_table import TextTable, print_tables
from attnbench.runner.max_length import SHORTEST, try_lengths
from attnbench.words.max_length import HEAD, format_row

__all__ = ["print_max_lengths", "search_max_lengths"]

# Names of table columns that contain numbers; these columns are aligned at the right.
NUMBERS = frozenset({"longest", "s per call", "peak MiB"})


def search_max_lengths(job: ProfileJob, resumed: StoredRun | None, files: OutputFiles) -> int:
    """Find, store and print the longest sequence of each implementation; return the exit code."""
    chosen = choose_implementations(job.implementations)
    session = make_session(job)
    # Use one memory limit for all implementations. Otherwise each worker would compute its default
    # limit from the memory that is free when the worker starts.
    session.limits = replace(session.limits, memory_bytes=session.limits.compute_memory_limit_bytes())
    with session:
        chosen = choose_timed_implementations(session, chosen, asked=bool(job.implementations), operators=job.operators)
        operators = find_operators(session, chosen)
        shortest = plan_profile(session, replace(job, frontier=False, lengths=(SHORTEST,)), operators)
        with recording(
            session, job=job, resumed=resumed, suite=FRONTIER, cases=[plan.case for plan in shortest],
            implementations=chosen,
        ) as recorded, show_progress() as progress:  # fmt: skip
            for result in try_lengths(
                session, chosen, shortest, run=recorded.run.id, progress=progress, done=recorded.results
            ):
                recorded.add(result)
            names = [display_name(name) for name in job.implementations]
            recorded.exit_code = _choose_exit_code(recorded.list_results(), names)
    if files.json_file:
        write_json(recorded, files.json_file)
    print_max_lengths(recorded.list_results(), err=files.to_stderr)
    print_stored_path(recorded)
    return recorded.exit_code


def print_max_lengths(results: Iterable[Result], *, err: bool = False) -> None:
    """Print a table with a row for each implementation, pass and dtype.

    A row has the longest length that fits, the time and memory of a call at this length, and the length that fails.
    """
    rows = tuple(tuple(format_row(frontier)) for frontier in find_max_lengths(results))
    print_tables([TextTable(head=HEAD, rows=rows, right=frozenset(NUMBERS))], Console.of(err=err))


def _choose_exit_code(results: Iterable[Result], asked: Sequence[str]) -> int:
    """Return the exit code of a search.

    It is 1 if a check fails at the shortest length, 3 if no length fits for an implementation in
    ``asked``, and else 0.
    """
    fits: set[str] = set()
    for result in results:
        for finding in result.findings:
            if finding.check == FITS and finding.status == "passed":
                fits.add(result.implementation)
            elif finding.check != FITS and finding.status in FAILURES:
                return FAILED
    return 0 if fits.issuperset(asked) else INCONCLUSIVE
