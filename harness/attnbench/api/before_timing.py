"""What is told and refused before anything is timed: lacking memory, the number of cases, the time, the padding."""

from collections.abc import Iterable, Sequence

from attnbench.api.progress import format_time
from attnbench.cases import CaseId, Shape
from attnbench.jobs.errors import JobError
from attnbench.jobs.job import TimedJob
from attnbench.operators.sentence_lengths import compute_padded_share, draw_sentence_lengths
from attnbench.records.environment import count_cores, observe_busy_cores
from attnbench.runner import Effort, Plan, Session, Speed, forecast, list_timeable, measure_rates
from attnbench.words.findings import describe_fact

__all__ = ["demand_memory", "describe_timing"]

GIB = 2**30
# For so long, in seconds, other work is observed before a run; more than this number of busy cores is told.
OBSERVED_S, BUSY_CORES = 0.5, 0.3


def demand_memory(session: Session, plans: Sequence[Plan]) -> None:
    """Refuse cases that need more memory than there is.

    Raises: JobError where the expected values, or the inputs and outputs of a worker, are predicted not to fit.
    """
    limit = session.limits.compute_memory_limit_bytes()
    for plan in plans:
        case = CaseId.parse(plan.case)
        sizes = f"{case.operator} {case.problem.partition('/')[0]}"
        if plan.missing and not plan.lacks_data:
            raise JobError(None, "{sizes}: {fact}", sizes=sizes, fact=describe_fact(plan.missing))
        if plan.bytes is not None and limit is not None and plan.bytes > limit:
            raise JobError(
                None, "{sizes}: inputs, parameters and outputs take at least {need:.3g} GiB, over the limit of "
                "{limit:.3g} GiB ({memory_bytes}): use smaller sizes", sizes=sizes, need=plan.bytes / GIB,
                limit=limit / GIB,
            )  # fmt: skip


def describe_timing(
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    effort: Effort,
    job: TimedJob,
    *,
    besides: str = "",
) -> str:
    """Return one line on what will be timed and about how long it takes.

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
    padding = _describe_padding(job.make_shapes()) if job.padding else ""
    more = f", besides {besides}" if besides else ""
    return "; ".join(filter(None, (f"to time: {told}: {time}{more}", load, padding)))


def _describe_padding(shapes: Iterable[Shape]) -> str:
    """Return the share of padding that each batch gets, in words; empty if no shape has a share."""
    told = dict.fromkeys(_describe_batch(shape) for shape in shapes if shape.padding)
    return f"padding comes out as {', '.join(told)}" if told else ""


def _describe_batch(shape: Shape) -> str:
    # The cases of shapes have the seed 0.
    lengths = draw_sentence_lengths(shape.padding, shape.batch, shape.keys, 0)
    share = compute_padded_share(lengths, shape.keys)
    return f"{share:.4g} for {shape.padding:g} of {shape.batch} × {shape.keys}"


def _describe_load() -> str:
    """Return how many cores other work keeps busy; empty if there is hardly any."""
    busy = observe_busy_cores(OBSERVED_S)
    if busy <= BUSY_CORES:
        return ""
    return f"other work keeps {busy:.1f} of {count_cores()} cores busy: expect more time and fewer verdicts"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}{'es' if word.endswith('s') else 's'}"
