"""Speed and memory: first each implementation alone, checked on the very cases that are timed; then all in turns."""

from collections.abc import Iterator, Sequence

from attnbench.checks.catalogue import checks
from attnbench.measurement import resident_memory
from attnbench.plugins.registry import operators, shown
from attnbench.records.types import Pass, Result
from attnbench.runner.conform import left_of
from attnbench.runner.parallelism import each, lanes
from attnbench.runner.probe import probe
from attnbench.runner.progress import NoProgress, Progress
from attnbench.runner.session import PATIENT, Limits, Plan, Session, Supervisor
from attnbench.runner.timing import Effort, timed

__all__ = ["GATES", "MODES", "gating_checks", "measure", "profile", "profile_cases"]

# Chapters that a case must pass before it is timed.
GATES = ("forward", "gradients")
# A check besides: who changes torch's settings would change what it costs the others that are timed beside it.
ALSO = "global_state_untouched"
# What a process that measures memory is started with.
PROBING = PATIENT | resident_memory.ENVIRONMENT
# How a case is called in each pass.
MODES: dict[Pass, str] = {"forward": "inference", "forward+backward": "train"}


def profile(
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    *,
    run: str,
    steps: Progress,
    effort: Effort,
    baseline: str | None = None,
    done: dict[tuple[str, str], Result] | None = None,
) -> Iterator[Result]:
    """Results with memory as each probe ends, then the same results with timing as each group of cases is timed.

    ``baseline`` is whom the others are compared with, by default the operator's reference. ``plans`` come in ascending
    order of length.

    Raises: PluginError where an implementation cannot be loaded.
    """
    known = dict(done or {})
    abreast = lanes(plans)
    steps.begin("probe", len(implementations) * len(plans), abreast=abreast)
    left = left_of(implementations, plans, known, steps)

    def job(name: str, worker: Supervisor) -> Iterator[Result]:
        for plan in left[name]:
            if plan.operator == worker.operator:
                steps.now(f"{name} {plan.case}")
                yield probe(session, worker, name, plan, run=run)
            else:
                steps.done()

    for result in each(session, list(left), job, abreast=abreast, environment=PROBING):
        known[result.implementation, result.case] = result
        yield result
        steps.done(result.case)
    # By the name that was asked for; results carry the name that is shown.
    probed = {
        (n, p.case): known[shown(n), p.case] for n in implementations for p in plans if (shown(n), p.case) in known
    }
    yield from timed(session, plans, _ready(probed), steps=steps, effort=effort, against=baseline)


def profile_cases(
    session: Session, lengths: Sequence[int], passes: Sequence[Pass] = (), *, of: Sequence[str] | None = None
) -> list[str]:
    """Case ids of these operators, or of all, at these lengths, in the passes that were asked for, or in both."""
    modes = {MODES[name] for name in passes or MODES}
    return [
        case
        for operator in (operators() if of is None else of)
        for case in session.judge("profile", operator=operator, lengths=list(lengths))
        if case.rpartition("/")[2] in modes
    ]


def gating_checks() -> frozenset[str]:
    """Checks that guard a timing."""
    return frozenset(name for name, check in checks().items() if check.chapter in GATES or name == ALSO)


def measure(
    implementations: Sequence[str], lengths: Sequence[int], effort: Effort
) -> dict[tuple[str, int, Pass], Result]:
    """Profile without a run file, by implementation, length and pass: what asv and pytest-benchmark read."""
    with Session(limits=Limits()) as session:
        place = {
            case: (length, name)
            for length in lengths
            for name in MODES
            for case in profile_cases(session, [length], [name])
        }
        plans = session.plan(place, gating_checks())
        results = profile(session, implementations, plans, run="", steps=NoProgress(), effort=effort)
        return {(result.implementation, *place[result.case]): result for result in results}


def _ready(probed: dict[tuple[str, str], Result]) -> dict[tuple[str, str], Result]:
    """Results that are fit to be timed, of the cases that are not all timed yet.

    Who was timed on such a case is timed again: samples from different processes were not taken in turns.
    """
    left = {case for (_, case), result in probed.items() if result.timing is None and result.untimed is None}
    return {key: result for key, result in probed.items() if key[1] in left and result.untimed is None}
