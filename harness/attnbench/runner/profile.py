"""Speed and memory: check each implementation alone on the cases to be timed, then time all of them interleaved."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product

from attnbench.cases import CaseId, Shape
from attnbench.checks.catalogue import read_checks
from attnbench.devices import HOST
from attnbench.measurement import resident_memory
from attnbench.plugins.registry import display_name, find_baseline, list_operators
from attnbench.processes.oracle_requests import ListProfile, ListShapes
from attnbench.processes.request import Fault
from attnbench.records.types import Pass, Result, Timing
from attnbench.runner.candidate_pool import PATIENT, Supervisor, WorkerKind
from attnbench.runner.conform import select_unfinished
from attnbench.runner.parallelism import count_parallel_lanes, run_each
from attnbench.runner.probe import probe
from attnbench.runner.progress import NoProgress, Progress
from attnbench.runner.session import Plan, Session
from attnbench.runner.timing import time_cases
from attnbench.runner.timing_processes import Effort

__all__ = [
    "GATES", "MODES", "list_gating_checks", "list_profile_cases", "list_shape_cases", "measure_calls",
    "profile",
]  # fmt: skip

# Chapters of the catalogue of checks. A case must pass their checks before it is timed.
GATES = ("forward", "gradients")
# Another check that must pass before a case is timed. An implementation that changes global settings of torch would
# change the times of the other implementations in the same process.
ALSO = "global_state_untouched"
# Workers that probe an implementation. The variables of ``resident_memory`` are needed to measure memory.
PROBING = WorkerKind(environment=PATIENT | resident_memory.ENVIRONMENT)
# Call mode of each pass.
MODES: dict[Pass, str] = {"forward": "inference", "forward+backward": "train"}


def profile(
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    *,
    run: str,
    progress: Progress,
    effort: Effort,
    baseline: str | None = None,
    done: dict[tuple[str, str], Result] | None = None,
) -> Iterator[Result]:
    """Yield each result with memory when its probe ends, and again with timing when its group of cases has been timed.

    ``baseline`` is the implementation that the others are compared with, by default the operator's reference. ``plans``
    must be in ascending order of length. Results in ``done`` are not probed again.

    Raises: PluginError where an implementation cannot be loaded.
    """
    known = dict(done or {})
    parallel = count_parallel_lanes(plans)
    progress.begin("probe", len(implementations) * len(plans), parallel=parallel)
    left = select_unfinished(implementations, plans, known, progress)

    def job(name: str, share: Sequence[Plan], worker: Supervisor) -> Iterator[Result]:
        for plan in share:
            if plan.operator == worker.operator:
                progress.now(f"{name} {plan.case}")
                yield probe(session, worker, name, plan, run=run)
            else:
                progress.done()

    for result in run_each(session, list(left.items()), job, parallel=parallel, kind=PROBING):
        known[result.implementation, result.case] = result
        yield result
        progress.done(result.case)
    # The keys of ``probed`` contain the name given by the user. The keys of ``known`` contain the display name.
    probed = {
        (name, plan.case): known[display_name(name), plan.case]
        for name in implementations
        for plan in plans
        if (display_name(name), plan.case) in known
    }
    ready = _select_ready(probed, effort, baseline)
    yield from time_cases(session, plans, ready, progress=progress, effort=effort, against=baseline)


def list_profile_cases(
    session: Session, lengths: Sequence[int], passes: Sequence[Pass] = (), *, of: Sequence[str] | None = None
) -> list[str]:
    """Return the ids of the profile cases of these lengths, operators ``of`` (None: all) and passes (empty: both)."""
    modes = {MODES[name] for name in passes or MODES}
    return [
        case
        for operator in (list_operators() if of is None else of)
        for case in session.ask_oracle(ListProfile(operator=operator, lengths=list(lengths)))
        if CaseId.parse(case).mode in modes
    ]


def list_shape_cases(
    session: Session, shapes: Sequence[Shape], passes: Sequence[Pass] = (), *, of: Sequence[str]
) -> list[str]:
    """Return the ids of the profile cases of these shapes, operators ``of`` and passes (empty: both).

    Raises: ValueError for a shape that an operator does not have, or that needs more memory than this machine has.
    """
    modes = [MODES[name] for name in passes or MODES]
    found = []
    for operator in of:
        cases = session.ask_oracle(ListShapes(operator=operator, shapes=list(shapes), modes=modes))
        if isinstance(cases, Fault):
            raise ValueError(f"{operator}: {cases.reason}")  # noqa: TRY004  # the reply, not an argument, is a Fault
        found += cases
    return found


def list_gating_checks() -> frozenset[str]:
    """Return the checks that a case must pass before it is timed."""
    return frozenset(name for name, check in read_checks().items() if check.chapter in GATES or name == ALSO)


def measure_calls(
    session: Session,
    implementations: Sequence[str],
    lengths: Sequence[int],
    effort: Effort,
    *,
    device: str = HOST,
    dtypes: Sequence[str] = (),
    masks: Sequence[str] = (),
) -> dict[tuple[str, int, Pass, str, str], Result]:
    """Profile on a device, also in other dtypes and with other masks than those of the profile cases.

    The keys of the returned mapping are (implementation, length, pass, dtype, mask); the last two are empty where none
    is chosen. A mask that an operator does not have has no results of this operator.
    """
    place: dict[str, tuple[int, Pass, str, str]] = {}
    for length, name, dtype, mask in product(lengths, MODES, dtypes or ("",), masks or ("",)):
        for case in _list_cases(session, length, name, mask):
            own = CaseId.parse(case)
            place[str(replace(own, device=device, dtype=dtype or own.dtype))] = (length, name, dtype, mask)
    plans = session.plan(place, list_gating_checks())
    results = profile(session, implementations, plans, run="", progress=NoProgress(), effort=effort)
    return {(result.implementation, *place[result.case]): result for result in results}


def _list_cases(session: Session, length: int, name: Pass, mask: str) -> list[str]:
    """Return the profile cases of all operators, or with a mask those of the operators that have it."""
    if not mask:
        return list_profile_cases(session, [length], [name])
    found: list[str] = []
    for operator in list_operators():
        with suppress(ValueError):
            found += list_shape_cases(session, [Shape(queries=length, keys=length, mask=mask)], [name], of=[operator])
    return found


def _select_ready(
    probed: dict[tuple[str, str], Result], effort: Effort, baseline: str | None
) -> dict[tuple[str, str], Result]:
    """Return the results that need a timing: on each case that is not timed completely, all that may be timed."""
    timings: dict[str, dict[str, Timing | None]] = {}
    for (name, case), result in probed.items():
        if result.untimed is None:
            timings.setdefault(case, {})[name] = result.timing
    left = {case for case, own in timings.items() if not _is_timed(case, own, effort, baseline)}
    return {key: result for key, result in probed.items() if key[1] in left and result.untimed is None}


def _is_timed(case: str, timings: Mapping[str, Timing | None], effort: Effort, baseline: str | None) -> bool:
    """Whether a case is timed completely: every implementation has a timing, and no more processes are to time it."""
    stored = [timing for timing in timings.values() if timing is not None]
    if len(stored) < len(timings):
        return False
    (processes, *others) = {len(timing.samples_ns) for timing in stored}
    if others or processes < effort.processes:
        return False
    known = {name: timing for name, timing in timings.items() if timing is not None}
    return not effort.list_open(known, baseline or find_baseline(case), verdicts=baseline is not None)
