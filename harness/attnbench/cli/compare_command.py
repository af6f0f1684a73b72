"""``attnbench compare``: changes between two runs, two implementations, or two versions of one implementation."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import click

from attnbench.analysis.run_diff import UNDECIDED, WORSE, Change, Verdict
from attnbench.api.before_timing import describe_timing
from attnbench.api.comparing import THRESHOLD, compare_stored, parse_threshold
from attnbench.api.execution import choose_effort, count_planned, make_session, plan_profile
from attnbench.api.interleaving import collect_sides, load_sides, time_sides
from attnbench.api.revisions import RevisionError, is_folder, open_base
from attnbench.api.selection import choose_implementations
from attnbench.cli.comparison_output import print_comparison, write_comparison
from attnbench.cli.job_options import build_jobs
from attnbench.cli.options import AXES, complete_names, options
from attnbench.cli.output_files import OutputFiles
from attnbench.cli.recording import INCONCLUSIVE, print_stored_path, recording
from attnbench.cli.threads import choose_exit_code, measure_each
from attnbench.jobs.fields import name_option
from attnbench.jobs.job import CompareJob
from attnbench.plugins.file_objects import complete_name, read_name
from attnbench.plugins.registry import PluginError, display_name, list_names, resolve_in_trees
from attnbench.records.run_file import StoredRun, find_runs, read_run
from attnbench.records.types import PERF
from attnbench.runner import Effort

# Timing effort for each case when two implementations are compared. Ten processes measure for 1 s each; with their
# starts a case takes 15 s. If ten are not enough for a verdict, further processes follow, up to 30 in all.
EFFORT = Effort(processes=10, most=30, budget_s=1.0)
WORSENED = 1


@click.command("compare")
@click.argument("base", metavar="BASE", required=False, shell_complete=complete_names)
@click.argument("new", metavar="[NEW]", required=False, shell_complete=complete_names)
@click.option(
    "--base",
    "tree",
    metavar="REV_OR_PATH",
    help="Revision of git, or folder of another checkout, with the base version of the implementation BASE.",
)
@click.option(
    "--threshold",
    help="Smallest relative change of time that counts as slower or faster, if BASE and NEW are stored runs.  "
    f"[default: {THRESHOLD}]",
)
@options("lengths", "passes", "device", "dtype", "processes", "thread_counts", "timeout", "memory_limit", "work_limit")
@options(*AXES)
@options("case_budget", "results", "resume", "json", "comparison_html", "comparison_markdown", "no_cache")
def command(
    *,
    threshold: str | None,
    resume: str | None,
    json_file: IO[str] | None,
    html_file: IO[str] | None,
    markdown_file: IO[str] | None,
    **raw: Any,
) -> int:
    """Show what became slower, faster, bigger or wrong from BASE to NEW, two runs or two implementations.

    Two implementations are timed by this command, with interleaved calls in the same processes. With --base, one
    implementation is compared with its version in another source tree: that of a revision, of which a worktree is made
    and removed, or that of a folder. Two stored runs are compared by the ratio of
    each time to the reference's time in the same run. Bytes, flop and kernel calls are compared exactly. --html and
    --markdown write the comparison as a page and for a pull request. Exit code 0: nothing became worse; 1: something
    became worse, or a result is missing; 3: BASE and NEW have nothing in common, or there is no verdict on time.
    """
    files = OutputFiles(json_file=json_file, html_file=html_file, markdown_file=markdown_file)
    files.refuse_same()
    if resume is None:
        if raw["base"] is None:
            raise click.UsageError("BASE is missing: name a run or an implementation")
        raw |= {side: complete_name(raw[side]) for side in ("base", "new") if raw[side]}
        results = Path(raw["results"] or "results")
        if not _names_implementations(raw["base"], raw["new"], raw["tree"], results):
            used = [name for name, value in raw.items() if value and name not in ("base", "new", "results")]
            if used:
                raise click.UsageError(
                    f"{name_option(used[0])} applies to implementations only, and BASE and NEW are stored runs: "
                    "leave it out"
                )
            return _compare_runs(results, raw["base"], raw["new"], parse_threshold(threshold), files)
    if threshold:
        raise click.UsageError(
            "--threshold applies to stored runs only, and BASE and NEW are implementations: leave it out"
        )
    with _open_tree(raw["tree"]) as folder:
        jobs = build_jobs(CompareJob, raw | {"tree": folder}, resume)
        return choose_exit_code(measure_each(jobs, partial(_compare_implementations, files=files)))


@contextmanager
def _open_tree(base: str | None) -> Iterator[Path | None]:
    """Yield the folder of the base version: a folder that exists, or a worktree of a revision.

    Raises: UsageError where there is neither; errors and interrupts name the base as the user did.
    """
    if base is None or is_folder(base):
        yield Path(base) if base else None
        return
    try:
        with open_base(base, Path.cwd()) as (folder, _):
            try:
                yield folder
            except (PluginError, click.Abort) as error:
                told = (str(word).replace(str(folder), shlex.quote(base)) for word in error.args)
                raise type(error)(*told) from error.__cause__
    except RevisionError as error:
        raise click.UsageError(str(error)) from error


def _names_implementations(base: str, new: str | None, tree: str | None, results: Path) -> bool:
    """Return whether BASE and NEW are two implementations, and not two runs.

    Raises: UsageError where BASE, NEW and --base do not fit together; PluginError for an unknown
    implementation.
    """
    if tree is not None:
        if new is not None:
            raise click.UsageError(
                f"--base compares one implementation with its version in another source tree: leave out {new!r}, "
                "or --base"
            )
        return True
    if new is None:
        raise click.UsageError(
            "NEW is missing: name a second run or implementation, or another source tree with --base REV_OR_PATH"
        )
    registered = list_names()
    ours = {name for name in (base, new) if ":" in name or name.partition(" @ ")[0] in registered}
    if not ours:
        return False
    for other in {base, new} - ours:
        if Path(other).is_file() or any(results.glob(f"*/{other}.jsonl")):
            raise click.UsageError(
                f"{ours.pop()!r} is an implementation and {other!r} is a run: name two runs or two implementations"
            )
        read_name(other)
    if base == new:
        raise click.UsageError(
            f"{base!r} is named twice: name two implementations, or another source tree with --base REV_OR_PATH"
        )
    return True


def _compare_runs(results: Path, base: str, new: str | None, threshold: float, files: OutputFiles) -> int:
    before, after = (read_run(path) for path in find_runs(results, [base, str(new)]))
    found, content = compare_stored(before, after, threshold=threshold)
    write_comparison(found, content, files)
    print_comparison(found, content, files, quiet=("same", "unknown"))
    return _choose_exit_code(found, undecided=UNDECIDED - {"unknown"})


def _compare_implementations(job: CompareJob, resumed: StoredRun | None, *, files: OutputFiles) -> int:
    """Measure two implementations with interleaved calls; print the changes from base to new."""
    named = resolve_in_trees(job.base, job.tree) if job.tree else [job.base, job.new or ""]
    sides = choose_implementations(named)
    base, new = map(display_name, sides)
    with make_session(job) as session:
        operator = load_sides(session, sides)
        plans = plan_profile(session, job, [operator])
        effort = choose_effort(EFFORT, job)
        click.echo(describe_timing(session, sides, plans, effort, job), err=True)
        with recording(
            session, job=job, resumed=resumed, suite=PERF, cases=[plan.case for plan in plans], implementations=sides,
            planned=count_planned(session, sides, timed=plans, effort=effort),
        ) as recorded:  # fmt: skip
            found = time_sides(recorded, session, sides, plans, effort)
            recorded.exit_code = _choose_exit_code(found, undecided=UNDECIDED)
    content = collect_sides(found, recorded, {new: (base, new)}, names=(base, new))
    write_comparison(found, content, files)
    print_comparison(found, content, files, quiet=())
    print_stored_path(recorded)
    return recorded.exit_code


def _choose_exit_code(found: Sequence[Change], *, undecided: frozenset[Verdict]) -> int:
    verdicts = {change.verdict for change in found}
    if verdicts & WORSE:
        return WORSENED
    return INCONCLUSIVE if not found or verdicts & undecided else 0
