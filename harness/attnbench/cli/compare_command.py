"""``attnbench compare``: changes between two runs, two implementations, or two versions of one implementation."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from attnbench.analysis.run_diff import UNDECIDED, WORSE, Change, Verdict, compare_implementations
from attnbench.api.axes import Axes
from attnbench.api.before_timing import announce
from attnbench.api.comparing import THRESHOLD, compare_stored
from attnbench.api.jobs import (
    Choice,
    choose_effort,
    count_planned,
    make_session,
    plan_profile,
    print_stored_path,
    profile_into,
)
from attnbench.api.subjects import choose_implementations
from attnbench.cli.comparison_output import print_comparison, refuse_same_file, write_comparison
from attnbench.cli.options import AXES, options
from attnbench.cli.recording import INCONCLUSIVE, Recording, recording
from attnbench.cli.resuming import ResumableCommand
from attnbench.cli.threads import choose_exit_code, measure_each
from attnbench.plugins.registry import check_name, display_name, list_names, resolve_in_trees
from attnbench.records.run_file import StoredRun, find_runs, read_run
from attnbench.records.types import PERF
from attnbench.runner import Effort
from attnbench.runner.candidate_pool import TIMING

if TYPE_CHECKING:
    # Not imported when the command starts, because it imports pandas, which takes a second.
    from attnbench.report.comparison.content import ComparisonContent

# Default sequence lengths, in tokens, at which two implementations are compared. At 128 a call
# spends most of its time on overhead, at 512 on computation.
LENGTHS = (128, 512)
# Timing effort for each case when two implementations are compared. Ten processes measure for 1 s each; with their
# starts a case takes 15 s. If ten are not enough for a verdict, further processes follow, up to 30 in all.
EFFORT = Effort(processes=10, most=30, budget_s=1.0)
# Parameter names of the options that set how implementations are measured. These options are
# refused if two stored runs are compared, because nothing is measured then.
MEASURING = (
    "lengths", "passes", "device", "dtypes", "processes", "threads", "timeout", "memory_limit", "work_limit", "resume",
    "case_budget", "no_cache", "batch", "heads", "head_dim", "width", "kv_heads", "masks", "padding", "like",
)  # fmt: skip
WORSENED = 1


@click.command("compare", cls=ResumableCommand)
@click.argument("base", metavar="BASE")
@click.argument("new", metavar="[NEW]", required=False)
@click.option(
    "--base",
    "tree",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Source tree (for example another checkout) with the base version of the implementation BASE.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(min=0, min_open=True),
    default=THRESHOLD,
    show_default=True,
    help="Smallest relative change of time that counts as slower or faster, if BASE and NEW are stored runs.",
)
@options("lengths", "passes", "device", "dtype", "processes", "thread_counts", "timeout", "memory_limit", "work_limit")
@options(*AXES)
@options("case_budget", "results", "resume", "json", "comparison_html", "comparison_markdown", "no_cache")
def command(base: str, new: str | None, *, tree: Path | None, **given: Any) -> int:
    """Show what became slower, faster, bigger or wrong from BASE to NEW, two runs or two implementations.

    Two implementations are timed by this command, with interleaved calls in the same processes. With --base PATH, one
    implementation is compared with its version in the source tree PATH. Two stored runs are compared by the ratio of
    each time to the reference's time in the same run. Bytes, flop and kernel calls are compared exactly. --html and
    --markdown write the comparison as a page and for a pull request. Exit code 0: nothing became worse; 1: something
    became worse, or a result is missing; 3: BASE and NEW have nothing in common, or there is no verdict on time.
    """
    refuse_same_file(given)
    sides = _parse_sides(base, new, tree, given["results"])
    if sides is None:
        assert new is not None
        _refuse_options(MEASURING, "applies to implementations only, and BASE and NEW are stored runs: leave it out")
        return _compare_runs(base, new, given)
    _refuse_options(("threshold",), "applies to stored runs only, and BASE and NEW are implementations: leave it out")
    return choose_exit_code(measure_each(given, partial(_compare_implementations, *sides)))


def _parse_sides(base: str, new: str | None, tree: Path | None, results: Path) -> tuple[str, str] | None:
    """Return the two implementations to compare, or None where BASE and NEW are two runs.

    Raises: UsageError where BASE, NEW and --base do not fit together; PluginError for an unknown
    implementation.
    """
    if tree is not None:
        if new is not None:
            raise click.UsageError(
                f"--base compares one implementation with its version in another source tree: leave out {new!r}, "
                "or --base"
            )
        return resolve_in_trees(base, tree)
    if new is None:
        raise click.UsageError(
            "NEW is missing: name a second run or implementation, or another source tree with --base PATH"
        )
    registered = list_names()
    ours = {name for name in (base, new) if ":" in name or name.partition(" @ ")[0] in registered}
    if not ours:
        return None
    for other in {base, new} - ours:
        if Path(other).is_file() or any(results.glob(f"*/{other}.jsonl")):
            raise click.UsageError(
                f"{ours.pop()!r} is an implementation and {other!r} is a run: name two runs or two implementations"
            )
        check_name(other)
    if base == new:
        raise click.UsageError(
            f"{base!r} is named twice: name two implementations, or another source tree with --base PATH"
        )
    first, second = choose_implementations([base, new])
    return first, second


def _refuse_options(parameters: Sequence[str], reason: str) -> None:
    """Refuse the command line if it has one of the options with these parameter names.

    Raises: UsageError with the option's name and ``reason``, which says why the option has no effect.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        typed = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if parameter.name in parameters and typed:
            raise click.UsageError(f"{parameter.opts[0]} {reason}")


def _compare_runs(base: str, new: str, given: dict[str, Any]) -> int:
    before, after = (read_run(path) for path in find_runs(given["results"], [base, new]))
    found, content = compare_stored(before, after, threshold=given["threshold"])
    write_comparison(found, content, given)
    print_comparison(found, content, given, quiet=("same", "unknown"))
    return _choose_exit_code(found, undecided=UNDECIDED - {"unknown"})


def _compare_implementations(base: str, new: str, given: dict[str, Any]) -> int:
    """Measure two implementations with interleaved calls; print the changes from base to new."""
    sides = choose_implementations([base, new])
    choice, axes = Choice.from_options(given), Axes.from_options(given, lengths=LENGTHS)
    with make_session(given) as session:
        # First load both implementations in one process, so a failure to load is reported before
        # anything is measured.
        session.workers.keep(session.workers.get(sides, TIMING))
        computed = [session.declared[name].operator for name in sides]
        if len(set(computed)) > 1:
            described = " and ".join(
                f"{display_name(name)} computes {own}" for name, own in zip(sides, computed, strict=True)
            )
            raise click.UsageError(f"BASE and NEW must compute the same operator, got two: {described}")
        plans = plan_profile(session, choice, sorted(set(computed)), axes=axes, passes=given["passes"])
        effort = choose_effort(EFFORT, given)
        announce(session, sides, plans, effort, axes)
        with recording(
            session, results=given["results"], suite=PERF, cases=[plan.case for plan in plans],
            implementations=sides, resume=given["resume"],
            planned=count_planned(session, sides, timed=plans, effort=effort),
        ) as recorded:  # fmt: skip
            profile_into(recorded, session, sides, plans, effort=effort, baseline=base)
            found = list(
                compare_implementations(list(recorded.results.values()), base=display_name(base), new=display_name(new))
            )
            recorded.exit_code = _choose_exit_code(found, undecided=UNDECIDED)
    content = _collect_interleaved(found, recorded, display_name(base), display_name(new))
    write_comparison(found, content, given)
    print_comparison(found, content, given, quiet=())
    print_stored_path(recorded)
    return recorded.exit_code


def _collect_interleaved(found: Sequence[Change], recorded: Recording, base: str, new: str) -> "ComparisonContent":
    """Return the content of a comparison of two implementations of one run, by their names in results."""
    from attnbench.report.comparison.content import collect_comparison

    of_base, of_new = (
        StoredRun(
            run=recorded.run,
            results=tuple(result for result in recorded.results.values() if result.implementation == name),
            path=recorded.file.path,
        )
        for name in (base, new)
    )
    return collect_comparison(found, of_base, of_new, names=(base, new))


def _choose_exit_code(found: Sequence[Change], *, undecided: frozenset[Verdict]) -> int:
    verdicts = {change.verdict for change in found}
    if verdicts & WORSE:
        return WORSENED
    return INCONCLUSIVE if not found or verdicts & undecided else 0
