"""``attnbench invariance``: measure, store and print which changes of a call leave the bits of its results."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any, ClassVar

import click

from attnbench.analysis.invariance import GradedProperty, list_grades
from attnbench.api.execution import EFFORTS, make_session, profile_into
from attnbench.api.progress import show_progress
from attnbench.api.selection import choose_implementations, drop_unloadable, find_operators, plan_cases
from attnbench.cases import Shape
from attnbench.cli.job_options import build_job
from attnbench.cli.options import complete_names, options
from attnbench.cli.recording import Recording, print_stored_path, recording, write_json
from attnbench.jobs.job import RecordedJob
from attnbench.plugins.registry import PluginError
from attnbench.records.types import INVARIANCE
from attnbench.report.console import Console, Part
from attnbench.report.text_table import TextTable, print_tables
from attnbench.runner import Plan, Session, list_gating_checks, list_shape_cases
from attninvariance.measuring import WORKER, measure_all
from attninvariance.price import compare_prices
from attninvariance.sweep import BASE, HEADS, PROPERTIES, SWEEPS
from attninvariance.texts import (
    HEAD,
    LEGEND,
    OVERVIEW_HEAD,
    OVERVIEW_LEGEND,
    PRICE_HEAD,
    format_overview,
    format_price,
    format_row,
)

__all__ = ["command"]

# Shapes of the calls that are timed with --price: overhead has a part in the first, and little in the second.
PRICED = tuple(Shape(queries=length, keys=length, heads=4, head_dim=64) for length in (64, 256))
# Most implementations, dtypes and devices that have a table each.
MOST_TABLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InvarianceJob(RecordedJob):
    """Measure the invariance of implementations."""

    command: ClassVar[str] = "invariance"
    implementations: tuple[str, ...] = ()


@click.command("invariance")
@click.argument("implementations", nargs=-1, required=True, shell_complete=complete_names)
@click.option(
    "--sweep", type=click.Choice(list(SWEEPS)), default="full", show_default=True,
    help="Sizes to sweep: small takes seconds, full up to four minutes for an implementation.",
)  # fmt: skip
@click.option("--price", is_flag=True, help="Time the implementations too, interleaved, beside the fastest of them.")
@options("device", "dtype", "timeout", "memory_limit", "threads", "results", "json")
def command(*, sweep: str, price: bool, json_file: IO[str] | None, **raw: Any) -> int:
    """Measure which changes of a call leave the bits of its results as they are.

    Each IMPLEMENTATION is a registered name, package.module:attribute or path/to/file.py:attribute. Pairs of calls are
    compared in which a sequence is computed alone and in a batch, with and without padding, at once and query by query,
    and so on. A property is bitwise, or has its largest difference in ulp and the first sizes that differ. Exit code 0:
    measured; 1: a property does not hold that the policy invariant declares, or a call failed; 3: nothing was measured.
    """
    job, _ = build_job(InvarianceJob, raw)
    chosen = choose_implementations(job.implementations)
    session = make_session(job)
    session.worker_module = WORKER
    with session:
        chosen = drop_unloadable(session, chosen, asked=True)
        plans = _plan(session, job, [Shape(queries=BASE.length, keys=BASE.length, batch=BASE.batch, heads=HEADS,
                                           head_dim=BASE.head_dim)], chosen)  # fmt: skip
        priced = _plan(session, job, PRICED, chosen) if price else []
        with recording(
            session, job=job, suite=INVARIANCE, cases=[plan.case for plan in plans], implementations=chosen
        ) as recorded:
            with show_progress() as progress:
                for result in measure_all(
                    session, chosen, plans, SWEEPS[sweep], run=recorded.run.id, progress=progress
                ):
                    recorded.add(result)
            if priced:
                profile_into(recorded, session, chosen, priced, effort=EFFORTS["quick"])
            recorded.exit_code = recorded.choose_exit_code(job.implementations)
    if json_file:
        write_json(recorded, json_file)
    _print(recorded, err=json_file is not None and json_file.name == "-")
    print_stored_path(recorded)
    return recorded.exit_code


def _plan(session: Session, job: InvarianceJob, shapes: Sequence[Shape], implementations: Sequence[str]) -> list[Plan]:
    """Return the plans of calls of these shapes, with and without gradients, for the operators of implementations.

    Raises: PluginError where an operator does not have these shapes.
    """
    try:
        cases = list_shape_cases(session, shapes, of=find_operators(session, implementations))
    except ValueError as error:
        raise PluginError(f"cannot measure the invariance of {error}") from error
    return plan_cases(session, cases, job, checks=sorted(list_gating_checks()))


def _print(recorded: Recording, *, err: bool) -> None:
    """Print the grades of each implementation, dtype and device: a table, or a row each of many; and the prices."""
    console = Console.of(err=err)
    by_subject: dict[tuple[str, str, str], list[GradedProperty]] = {}
    for one in list_grades(recorded.list_results()):
        by_subject.setdefault((one.implementation, one.dtype, one.device), []).append(one)
    of_subject = {
        ", ".join(subject): {name: {one.quantity: one for one in grades if one.name == name} for name in PROPERTIES}
        for subject, grades in by_subject.items()
    }
    if len(of_subject) > MOST_TABLES:
        rows = (format_overview(subject, of_name) for subject, of_name in of_subject.items())
        _print_table(console, OVERVIEW_HEAD, rows)
        console.print_wrapped(OVERVIEW_LEGEND, "dim")
    else:
        for subject, of_name in of_subject.items():
            console.print(Part(subject, "bold"))
            _print_table(console, HEAD, (format_row(name, own) for name, own in of_name.items() if own))
        console.print_wrapped(LEGEND, "dim")
    if prices := compare_prices(recorded.list_results()):
        _print_table(console, PRICE_HEAD, map(format_price, prices))


def _print_table(console: Console, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print_tables([TextTable(head=tuple(head), rows=tuple(map(tuple, rows)))], console)
