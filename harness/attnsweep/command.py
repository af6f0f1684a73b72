"""``attnbench sweep``: the cases of one configuration on several kinds of node, by Slurm or here."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from attnbench.cli.options import AXES, options
from attnbench.jobs.errors import JobError
from attnbench.records.exit_codes import FAILED, INCONCLUSIVE, INTERRUPTED
from attnsweep.configuration import ConfigurationError, Kind, Machine, read_configuration
from attnsweep.configured_command import Configured, ConfiguredCommand
from attnsweep.plan import SweepPlan, Task, allow_tries, read_plan, require_no_plan, write_plan
from attnsweep.planning import hash_configuration, make_plan
from attnsweep.progress import (
    ChangedLines,
    describe_plan,
    format_command,
    format_counts,
    format_merging,
    format_resuming,
    list_gaps,
)
from attnsweep.slurm import SlurmError, check_machines, require_slurm
from attnsweep.states import StateReader, TaskState
from attnsweep.submission import hold_folder, load_submitit, probe, submit_locally, submit_to_slurm
from attnsweep.sweep_job import SweepJob, build_sweep_job
from attnsweep.task import LEAST_MINUTES

# Seconds between two questions to Slurm about the jobs. One question takes squeue about 0.1 s of its controller.
POLL_S = 10.0
# Time limit of a task, number of failed tries after which it is given up, and seconds to wait for a probe.
MINUTES, TRIES, PROBE_S = 60, 3, 600.0
FOLDER = click.Path(file_okay=False, path_type=Path)
# Machines of a sweep that names none.
ANY = (Machine(name="any"),)


def _split_words(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG001
    """Return the implementations; a configuration file before them gives the defaults of all options."""
    if not words or not words[0].endswith(".toml"):
        return words
    try:
        configuration = read_configuration(Path(words[0]))
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    ctx.default_map = configuration.list_defaults()
    ctx.obj = Configured(Path(words[0]), configuration)
    return words[1:] or tuple(configuration.implementations)


@click.command("sweep", cls=ConfiguredCommand)
@click.argument("words", nargs=-1, metavar="[CONFIG.toml] [IMPLEMENTATION]...", is_eager=True, callback=_split_words)
@click.option("--dry-run", is_flag=True, help="Print what would run, and about how long it takes; submit nothing.")
@click.option("--local", is_flag=True, help="Run the tasks on this machine, one after another, without Slurm.")
@click.option("--status", is_flag=True, help="Print the states of the tasks of the sweep in --results.")
@click.option("--resume", is_flag=True, help="Submit the tasks that are missing, of the sweep in --results.")
@click.option("--results", type=FOLDER, default=Path("sweep"), show_default=True, help="Folder of the sweep.")
@click.option(
    "--earlier", type=FOLDER, default=Path("results"), show_default=True, help="Folder of earlier runs, for estimates."
)
@click.option(
    "--kind", type=click.Choice(("conform", "profile")), default="profile", show_default=True, help="What a task does."
)
@click.option("--minutes", type=click.IntRange(min=1), default=MINUTES, show_default=True, help="Time limit of a task.")
@click.option(
    "--tries", type=click.IntRange(min=1), default=TRIES, show_default=True, help="Failed tries that give up a task."
)
@click.option("--cases", "most_cases", type=click.IntRange(min=1), help="Most cases of a task.")
@click.option(
    "--probe",
    "probe_s",
    type=click.FloatRange(min=0, min_open=True),
    default=PROBE_S,
    show_default=True,
    help="Time limit for the first job on each kind of node.",
)
@click.option("--threads", metavar="NUMBER", help="Threads of each worker; default: the cores of a task.")
@click.option(
    "--allow-different-versions", is_flag=True, help="Run tasks on nodes with another attnbench or torch than here."
)
@options("suite", "operator", "lengths", "passes", "device", "dtype", "case", "processes", "timeout", "memory_limit")
@options(*AXES)
@options("work_limit", "case_budget", "no_cache")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    *,
    dry_run: bool,
    local: bool,
    status: bool,
    resume: bool,
    kind: Kind,
    minutes: int,
    tries: int | None,
    most_cases: int | None,
    probe_s: float,
    earlier: Path,
    allow_different_versions: bool,
    **raw: Any,
) -> int:
    """Run one configuration on many machines: conform or profile, divided into tasks.

    A TOML file names implementations, axes, limits and machines; an option replaces its value. Each task is a job of
    Slurm, and writes a run file of its own below the folder of the sweep. The command follows the jobs; it can be
    left, and --status shows the sweep again. Exit code 0: every result is there; 1: a check or a task failed; 2: usage
    error, or a test of the nodes failed; 3: something is missing; 130: interrupted.
    """
    machines = tuple(ctx.obj.configuration.machines) if isinstance(ctx.obj, Configured) else ()
    if chosen := [name for name, is_given in (("status", status), ("resume", resume)) if is_given][not dry_run :]:
        raise click.UsageError(f"--{chosen[0]}: --dry-run, --status and --resume exclude one another")
    # A resumed sweep keeps its number of tries, unless another one is raw.
    if resume and ctx.get_parameter_source("tries") is not ParameterSource.COMMANDLINE:
        tries = None
    try:
        if status:
            return _print_status(raw["results"])
        settings = {
            "minutes": minutes, "tries": tries, "most_cases": most_cases, "probe_s": probe_s, "earlier": earlier,
            "allow_different_versions": allow_different_versions, "is_local": local,
        }  # fmt: skip
        sweep = build_sweep_job(kind, raw | {"implementations": words}, settings)
        if resume:
            return _resume(sweep, machines or ANY)
        return _run(sweep, machines or ANY, dry_run=dry_run)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


def _print_status(folder: Path) -> int:
    plan = read_plan(folder)
    reader = StateReader(folder, plan, needs_slurm=False)
    states = reader.read()
    _warn_of_silence(reader)
    return _conclude(folder, plan, states)


def _run(sweep: SweepJob, machines: tuple[Machine, ...], *, dry_run: bool) -> int:
    folder = sweep.job.results
    if not sweep.is_local:
        _refuse_short_limit(sweep.minutes)
    if not dry_run:
        # Before the plan, which takes seconds: what would keep it from being submitted.
        load_submitit()
        require_no_plan(folder)
    plan = make_plan(sweep, machines, sys.argv[1:])
    unchecked = "" if sweep.is_local else _check_nodes(plan, is_dry=dry_run)
    for line in (*describe_plan(plan), *([unchecked] if unchecked else [])):
        click.echo(line, err=not dry_run)
    if dry_run:
        return 0
    try:
        if not sweep.is_local:
            probe(folder, plan, wait_s=sweep.probe_s, tell=_tell)
    except KeyboardInterrupt:
        _tell("attnbench: interrupted: the tests of the nodes were cancelled, and no task was submitted")
        return INTERRUPTED
    write_plan(folder, plan)
    return _submit_missing(folder, plan, local=sweep.is_local)


def _resume(sweep: SweepJob, machines: tuple[Machine, ...]) -> int:
    folder = sweep.job.results
    plan = read_plan(folder)
    _check_same(sweep, machines, plan)
    load_submitit()
    if not sweep.is_local:
        _refuse_short_limit(plan.minutes)
    if sweep.tries is not None:
        plan = allow_tries(folder, plan, sweep.tries)
    return _submit_missing(folder, plan, local=sweep.is_local, wait_s=sweep.probe_s)


def _tell(line: str) -> None:
    click.echo(line, err=True)


def _refuse_short_limit(minutes: int) -> None:
    """Refuse a time limit at whose start Slurm tells a task to stop.

    Raises: JobError.
    """
    if minutes < LEAST_MINUTES:
        raise JobError(
            "minutes", "a task in Slurm needs at least {least}, got {got}: it is told to stop up to 90 s before its "
            "time limit; raise the limit, or run the sweep here with --local", least=LEAST_MINUTES, got=minutes,
        )  # fmt: skip


def _check_nodes(plan: SweepPlan, *, is_dry: bool) -> str:
    """Refuse what no node of the cluster has; return a line if nothing was checked, which only a dry run may.

    Raises: ConfigurationError.
    """
    try:
        require_slurm()
        check_machines(plan.machines, minutes=plan.minutes)
    except SlurmError as error:
        if not is_dry:
            raise
        return f"constraints and other settings of the nodes were not checked: {error}"
    return ""


def _warn_of_silence(reader: StateReader) -> None:
    """Say if Slurm did not answer, and what follows for the states."""
    if reader.silence is not None:
        _tell(f"warning: {reader.silence}. A task counts as missing here although its job may wait or run")


def _check_same(sweep: SweepJob, machines: tuple[Machine, ...], plan: SweepPlan) -> None:
    """Refuse to resume a sweep with another configuration; without any, the stored one counts.

    Raises: UsageError.
    """
    if sweep.job.implementations and hash_configuration(sweep, machines) != plan.asked:
        raise click.UsageError(
            f"--resume: the sweep in {sweep.job.results} was started with another configuration; leave the "
            "configuration out and name --results, or name another folder"
        )


def _submit_missing(folder: Path, plan: SweepPlan, *, local: bool, wait_s: float | None = None) -> int:
    """Submit the tasks that are missing, and follow all; with ``wait_s``, probe each kind of node first."""
    reader, lines = StateReader(folder, plan, needs_slurm=not local), ChangedLines(_tell)
    ids: list[str] = []

    def watch(coming: Sequence[Task] = ()) -> list[TaskState]:
        states = reader.read(coming)
        if any(one.state in ("queued", "running") for one in states):
            lines.show(plan, states)
        return states

    try:
        with hold_folder(folder):
            missing = [one.task for one in reader.read() if one.state == "missing"]
            _warn_of_silence(reader)
            _tell(f"to submit: {len(missing)} of {len(plan.tasks)} tasks")
            if local:
                submit_locally(folder, plan, missing, watch)
            elif missing:
                if wait_s is not None:
                    _check_nodes(plan, is_dry=False)
                    probe(folder, plan, wait_s=wait_s, tell=_tell)
                ids = submit_to_slurm(folder, plan, missing)
                _tell(f"submitted as {', '.join(ids)}; Ctrl-C leaves the jobs running")
        states = watch()
        while {one.state for one in states} & {"queued", "running"}:
            time.sleep(POLL_S)
            states = watch()
    except KeyboardInterrupt:
        _explain_interrupt(folder, ids, local=local)
        return INTERRUPTED
    return _conclude(folder, plan, states)


def _explain_interrupt(folder: Path, ids: list[str], *, local: bool) -> None:
    if local:
        told = f"the task that ran was stopped; continue with: {format_resuming(folder)}"
    else:
        cancel = f"cancel them with: scancel {' '.join(ids)}" if ids else "squeue --me lists them"
        told = f"the jobs go on; see them with: {format_command(folder, '--status')}; {cancel}"
    _tell(f"attnbench: interrupted: {told}")


def _conclude(folder: Path, plan: SweepPlan, states: list[TaskState]) -> int:
    """Print the counts, what is missing, and the next command; return the exit code."""
    click.echo(format_counts(plan, states))
    for line in list_gaps(states):
        click.echo(line)
    found = {one.state for one in states}
    if "missing" in found:
        click.echo(f"submit what is missing with: {format_resuming(folder)}")
    if "failed" in found:
        click.echo(f"try failed tasks once more with: {format_resuming(folder, '--tries', str(plan.tries + 1))}")
    if any(one.results.complete for one in states):
        click.echo(f"merge the results with: {format_merging(folder)}")
    if found & {"missing", "queued", "running"}:
        return INCONCLUSIVE
    return FAILED if "failed" in found or any(one.results.failures for one in states) else 0
