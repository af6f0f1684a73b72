"""Speed and memory: first each implementation alone, checked on the very cases that are timed; then all in turns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from attnbench.checks.catalogue import checks
from attnbench.records import Memory, Pass, Result, Timing
from attnbench.registry import OPERATORS, names, shown
from attnbench.runner.conform import findings, left_of
from attnbench.runner.session import Limits, Plan, Session, Silent, Steps, Supervisor

__all__ = ["GATES", "MODES", "gating_checks", "measure", "profile", "profile_cases"]

# Chapters that a case must pass before it is timed.
GATES = ("forward", "gradients")
# A check besides: who changes torch's settings would change what it costs the others that are timed beside it.
ALSO = "global_state_untouched"
# How a case is called in each pass.
MODES: dict[Pass, str] = {"forward": "inference", "forward+backward": "train"}


@dataclass(slots=True)
class _Taken:
    """Samples of one implementation on one case so far, a list per process."""

    times_ns: list[tuple[int, ...]] = field(default_factory=list)
    waited_ns: list[tuple[int, ...]] = field(default_factory=list)
    threads: int = 0


def profile(
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    *,
    run: str,
    steps: Steps,
    processes: int,
    budget_s: float,
    done: dict[tuple[str, str], Result] | None = None,
) -> Iterator[Result]:
    """Results with memory as each probe ends, then the same results with timing once all processes have run.

    ``budget_s`` is the time given to one case in one process; ``plans`` come in ascending order of length.

    Raises: PluginError where an implementation cannot be loaded.
    """
    # By the name that was asked for; results carry the name that is shown.
    before = done or {}
    probed = {
        (n, p.case): before[shown(n), p.case] for n in implementations for p in plans if (shown(n), p.case) in before
    }
    steps.begin("probe", len(implementations) * len(plans))
    left = left_of(implementations, plans, before, steps)
    for name, worker in session.supervised(list(left)):
        for plan in left[name]:
            if plan.operator == worker.operator:
                steps.now(f"{name} {plan.case}")
                result = _probe(session, worker, name, plan, run=run)
                probed[name, plan.case] = result
                yield result
            steps.done()
    steps.begin("time", processes * len(plans))
    ready = {
        plan.case: [n for n in implementations if (n, plan.case) in probed and _to_time(probed[n, plan.case])]
        for plan in plans
    }
    taken, faults = _timed(session, plans, ready, steps=steps, processes=processes, budget_s=budget_s)
    for plan in plans:
        for name in ready[plan.case]:
            result = probed[name, plan.case]
            samples = taken.get((name, plan.case))
            if samples is None:
                yield replace(result, untimed=faults.get(plan.case, "no timing process answered"))
                continue
            others = tuple(shown(other) for other in ready[plan.case] if other != name)
            timing = Timing(
                samples_ns=tuple(samples.times_ns),
                waited_ns=tuple(samples.waited_ns),
                threads=samples.threads,
                interleaved_with=others,
            )
            yield replace(result, timing=timing)


def profile_cases(session: Session, lengths: Sequence[int], passes: Sequence[Pass] = ()) -> list[str]:
    """Case ids of every operator at these lengths, in the passes that were asked for, or in both."""
    modes = {MODES[name] for name in passes or MODES}
    return [
        case
        for operator in names(OPERATORS)
        for case in session.judge("profile", operator=operator, lengths=list(lengths))
        if case.rpartition("/")[2] in modes
    ]


def gating_checks() -> frozenset[str]:
    """Checks that guard a timing."""
    return frozenset(name for name, check in checks().items() if check.chapter in GATES or name == ALSO)


def measure(
    implementations: Sequence[str], lengths: Sequence[int], *, processes: int, budget_s: float
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
        results = profile(
            session, implementations, plans, run="", steps=Silent(), processes=processes, budget_s=budget_s
        )
        return {(result.implementation, *place[result.case]): result for result in results}


def _to_time(result: Result) -> bool:
    """Whether a probed result is fit to be timed, and not timed yet."""
    return result.timing is None and result.untimed is None


def _probe(session: Session, worker: Supervisor, name: str, plan: Plan, *, run: str) -> Result:
    found = findings(session, worker, name, plan, tries=False)
    result = Result(run=run, implementation=shown(name), case=plan.case, findings=found, flop=plan.flop, suite="perf")
    unfit = next((f for f in found if f.status != "passed"), None)
    if unfit is not None:
        return replace(result, untimed=f"{unfit.status}: {unfit.reason}")
    inputs = session.judge("inputs", case=plan.case)
    counted = worker.ask("memory", implementation=name, case=plan.case, inputs=inputs)
    if "status" in counted:
        return replace(result, untimed=f"{counted['status']}: {counted['reason']}")
    described = worker.ask("describe", implementation=name, case=plan.case)
    return replace(result, memory=Memory(**counted), untimed=described.get("untimed") or described.get("reason"))


def _timed(
    session: Session,
    plans: Sequence[Plan],
    ready: dict[str, list[str]],
    *,
    steps: Steps,
    processes: int,
    budget_s: float,
) -> tuple[dict[tuple[str, str], _Taken], dict[str, str]]:
    """Samples by implementation and case, and faults by case, of several fresh processes."""
    taken: dict[tuple[str, str], _Taken] = {}
    faults: dict[str, str] = {}
    everyone = sorted({name for names in ready.values() for name in names})
    for process in range(processes if everyone else 0):
        with session.supervise_together(everyone) as worker:
            for plan in plans:
                names = ready[plan.case]
                if names and plan.case not in faults:
                    steps.now(f"process {process + 1} of {processes} {plan.case}")
                    answer = worker.ask(
                        "time",
                        implementations=names,
                        case=plan.case,
                        inputs=session.judge("inputs", case=plan.case),
                        budget_s=budget_s,
                        seed=process,
                    )
                    if "status" in answer:
                        faults[plan.case] = f"{answer['status']}: the shared timing process: {answer['reason']}"
                    else:
                        _keep(taken, plan.case, answer)
                steps.done()
    return taken, faults


def _keep(taken: dict[tuple[str, str], _Taken], case: str, answer: dict[str, object]) -> None:
    samples, threads = answer["samples"], answer["threads"]
    assert isinstance(samples, dict)
    assert isinstance(threads, int)
    for name, of in samples.items():
        kept = taken.setdefault((name, case), _Taken())
        kept.times_ns.append(tuple(of["times_ns"]))
        kept.waited_ns.append(tuple(of["waited_ns"]))
        kept.threads = threads
