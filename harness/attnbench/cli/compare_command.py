"""``attnbench compare``: changes between two runs, two implementations, or two versions of one implementation."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
from click.core import ParameterSource
from rich.table import Column, Table
from rich.text import Text

from attnbench.analysis.completeness import describe_gaps, judge_completeness
from attnbench.analysis.run_diff import UNDECIDED, WORSE, Change, Verdict, compare_implementations, compare_runs
from attnbench.api.axes import Axes
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
from attnbench.cli.options import AXES, options
from attnbench.cli.recording import INCONCLUSIVE, recording
from attnbench.cli.resuming import ResumableCommand
from attnbench.cli.terminal import make_console
from attnbench.cli.threads import choose_exit_code, measure_each
from attnbench.plugins.registry import check_name, display_name, list_names, resolve_in_trees
from attnbench.records.run_file import find_runs, read_run
from attnbench.records.types import PERF, SCHEMA
from attnbench.runner import Effort

# Default of --threshold. If the time of a call changes by more than this fraction between two runs, the
# verdict is slower or faster. A smaller default would report more changes where the code did not change: two
# measurements of identical code differed by up to 6 %. Each of the two measurements had ten
# processes, and the processes of the two measurements ran alternately.
THRESHOLD = 0.05
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
# Text style of a verdict in the table. Verdicts that are not listed are red for a change to the worse, and green for a
# change to the better.
STYLES = {"same": "dim", "unknown": "yellow", "inconclusive": "yellow", "other": "yellow"}


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
@options("case_budget", "results", "resume", "json", "no_cache")
def command(base: str, new: str | None, *, tree: Path | None, **given: Any) -> int:
    """Show what became slower, faster, bigger or wrong from BASE to NEW, two runs or two implementations.

    Two implementations are timed by this command, with interleaved calls in the same processes. With --base PATH, one
    implementation is compared with its version in the source tree PATH. Two stored runs are compared by the ratio of
    each time to the reference's time in the same run. Bytes, flop and kernel calls are compared exactly. Exit code 0:
    nothing became worse; 1: something became worse, or a result is missing; 3: BASE and NEW have nothing in common, or
    there is no verdict on time.
    """
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
    found = list(compare_runs(before, after, threshold=given["threshold"]))
    for side, stored in (("BASE", before), ("NEW", after)):
        if gaps := " ".join(describe_gaps(judge_completeness(stored), named=True)):
            click.echo(f"warning: {side} is incomplete: {gaps}", err=True)
    if not given["json_file"]:
        if before.run.machine.name != after.run.machine.name:
            click.echo(
                f"the runs are from different machines, {before.run.machine.name} and {after.run.machine.name}: "
                "times and bytes are not compared",
                err=True,
            )
        if before.run.suite_digest != after.run.suite_digest:
            click.echo("the runs have different lists of cases: only common cases are compared", err=True)
    _print_changes(found, given["json_file"], quiet=("same", "unknown"))
    return _choose_exit_code(found, undecided=UNDECIDED - {"unknown"})


def _compare_implementations(base: str, new: str, given: dict[str, Any]) -> int:
    """Measure two implementations with interleaved calls; print the changes from base to new."""
    sides = choose_implementations([base, new])
    choice, axes = Choice.from_options(given), Axes.from_options(given, lengths=LENGTHS)
    with make_session(given) as session:
        # First load both implementations in one process, so a failure to load is reported before
        # anything is measured.
        session.supervise_together(sides).close()
        computed = [session.declared[name].operator for name in sides]
        if len(set(computed)) > 1:
            described = " and ".join(
                f"{display_name(name)} computes {own}" for name, own in zip(sides, computed, strict=True)
            )
            raise click.UsageError(f"BASE and NEW must compute the same operator, got two: {described}")
        plans = plan_profile(session, choice, sorted(set(computed)), axes=axes, passes=given["passes"])
        with recording(
            session, results=given["results"], suite=PERF, cases=[plan.case for plan in plans],
            implementations=sides, resume=given["resume"], planned=count_planned(session, sides, timed=plans),
        ) as recorded:  # fmt: skip
            effort = choose_effort(EFFORT, given)
            profile_into(recorded, session, sides, plans, effort=effort, baseline=base)
            found = list(
                compare_implementations(list(recorded.results.values()), base=display_name(base), new=display_name(new))
            )
            recorded.exit_code = _choose_exit_code(found, undecided=UNDECIDED)
    if not given["json_file"]:
        click.echo(
            f"{display_name(new)} against {display_name(base)}, timed with interleaved calls in the same processes"
        )
    _print_changes(found, given["json_file"], quiet=())
    print_stored_path(recorded)
    return recorded.exit_code


def _print_changes(found: Sequence[Change], json_file: IO[str] | None, *, quiet: Collection[Verdict]) -> None:
    """Write all changes to the JSON file, or print them as a table.

    The table leaves out changes whose verdict is in ``quiet``. It shows the verdict ``same`` only
    for times, not for bytes, flop or kernel calls.
    """
    if json_file:
        _write_json(found, json_file)
        return
    # Fold long case ids instead of cropping them: the end of an id, which names the call mode, must stay visible.
    case = Column("case", overflow="fold")
    table = Table("verdict", "implementation", "aspect", "from → to", case, box=None, pad_edge=False)
    for change in found:
        if change.verdict in quiet or (change.verdict == "same" and change.aspect != "time"):
            continue
        style = "red" if change.verdict in WORSE else STYLES.get(change.verdict, "green")
        verdict = Text(change.verdict, style=style)
        table.add_row(verdict, change.implementation, change.aspect, Text(change.told), Text(change.case))
    if table.row_count:
        make_console().print(table)
    counts = Counter(change.verdict for change in found)
    click.echo(
        ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        or "BASE and NEW have nothing in common to compare"
    )


def _choose_exit_code(found: Sequence[Change], *, undecided: frozenset[Verdict]) -> int:
    verdicts = {change.verdict for change in found}
    if verdicts & WORSE:
        return WORSENED
    return INCONCLUSIVE if not found or verdicts & undecided else 0


def _write_json(found: Sequence[Change], file: IO[str]) -> None:
    json.dump({"schema": SCHEMA, "changes": [asdict(change) for change in found]}, file, indent=1)
    file.write("\n")
