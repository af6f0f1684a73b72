"""What is said, and refused, before anything is timed: memory that is lacking, the number of cases, and the time."""

from collections.abc import Sequence

import click

from attnbench.api.axes import Axes
from attnbench.api.padding import describe_padding
from attnbench.api.progress import format_time
from attnbench.api.usage import UsageError
from attnbench.cases import CaseId
from attnbench.records.environment import count_cores, observe_busy_cores
from attnbench.runner import Effort, Plan, Session, Speed, forecast, list_timeable, measure_rates
from attnbench.words.findings import describe_fact

__all__ = ["announce", "demand_memory"]

GIB = 2**30
# For so long, in seconds, other work is observed before a run; more than this number of busy cores is told.
OBSERVED_S, BUSY_CORES = 0.5, 0.3


def demand_memory(session: Session, plans: Sequence[Plan]) -> None:
    """Refuse cases that need more memory than there is.

    Raises: UsageError where the expected values, or the inputs and outputs of a worker, are predicted not to fit.
    """
    limit = session.limits.compute_memory_limit_bytes()
    for plan in plans:
        case = CaseId.parse(plan.case)
        sizes = f"{case.operator} {case.problem.partition('/')[0]}"
        if plan.missing and not plan.lacks_data:
            raise UsageError(f"{sizes}: {describe_fact(plan.missing)}")
        if plan.bytes is not None and limit is not None and plan.bytes > limit:
            raise UsageError(
                f"{sizes}: inputs, parameters and outputs take at least {plan.bytes / GIB:.3g} GiB, "
                f"over the limit of {limit / GIB:.3g} GiB (--memory-limit): use smaller sizes"
            )


def announce(
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    effort: Effort,
    axes: Axes,
    *,
    besides: str = "",
) -> None:
    """Print to standard error, in one line, what will be timed and about how long it takes.

    ``besides`` names what takes further time. The forecast needs the machine's highest rates, which are measured first,
    and what the implementations declare. Implementations that refuse every case are not counted.
    """
    load = _describe_load()
    threads = session.limits.threads or count_cores()
    rates = {place: one.flop_per_s for place, one in measure_rates(session, plans).items()}
    timeable = list_timeable(session, implementations, plans)
    compiling = [name for name in implementations if session.declared[name].compiles]
    speed = Speed(threads=threads, flop_per_s=rates)
    expected = forecast(plans, timeable, effort, speed=speed, compiling=compiling)
    time = f"about {format_time(expected.planned_s)} on a quiet machine"
    if effort.most and effort.most > effort.processes:
        time += f", and up to {format_time(expected.most_s)} if speed verdicts stay open"
    counts = (
        (len(plans), "case"), (sum(map(bool, timeable.values())), "implementation"), (effort.processes, "process"),
        (threads, "thread"),
    )  # fmt: skip
    told = ", ".join(_count(number, word) for number, word in counts)
    padding = describe_padding(axes.make_shapes()) if axes.padding else ""
    more = f", besides {besides}" if besides else ""
    click.echo("; ".join(filter(None, (f"to time: {told}: {time}{more}", load, padding))), err=True)


def _describe_load() -> str:
    """Return how many cores other work keeps busy; empty if there is hardly any."""
    busy = observe_busy_cores(OBSERVED_S)
    if busy <= BUSY_CORES:
        return ""
    return f"other work keeps {busy:.1f} of {count_cores()} cores busy: expect more time and fewer verdicts"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}{'es' if word.endswith('s') else 's'}"
