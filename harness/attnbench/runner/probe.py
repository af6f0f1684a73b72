"""One implementation alone on one case: whether it is right there, what it takes, why nobody takes turns with it.

It runs in a process of its own, with an address space, a time and a process group that are its own too, so that
whatever it does there, the processes in which it would take turns with others never see it.
"""

from dataclasses import replace

from attnbench.plugins.registry import shown
from attnbench.records.types import PERF, Finding, Memory, Result
from attnbench.runner.check_outcomes import TOGETHER_FLOP, finding_of
from attnbench.runner.refusal import declined
from attnbench.runner.session import Outcome, Plan, Session, Supervisor

__all__ = ["probe"]

# Time in which an implementation that was just called may not be at work, and the time for a second look, in seconds;
# and cores from which on it counts as work: a thread that ends, or waits for a core in order to, is gone by then.
QUIET_S, CONFIRM_S = 0.02, 0.2
BUSY_CORES = 0.5


def probe(session: Session, worker: Supervisor, name: str, plan: Plan, *, run: str) -> Result:
    """Findings of the plan's checks and memory of one pass; ``untimed`` says why nobody should take turns with it."""
    result = Result(
        run=run,
        implementation=shown(name),
        case=plan.case,
        findings=gate(session, worker, name, plan),
        flop=plan.flop,
        bytes=plan.bytes,
        suite=PERF,
    )
    unfit = next((finding for finding in result.findings if finding.status != "passed"), None)
    if unfit is not None:
        return replace(result, untimed=f"{unfit.status}: {unfit.reason}")
    inputs = session.judge("inputs", case=plan.case)
    counted = worker.ask("memory", implementation=name, case=plan.case, inputs=inputs)
    if "status" in counted:
        return replace(result, untimed=_said(counted))
    result = replace(result, memory=Memory(**counted))
    ran = worker.ask("kernels", implementation=name, case=plan.case, inputs=inputs)
    if "status" in ran:
        return replace(result, untimed=_said(ran))
    result = replace(result, kernels=tuple(ran["kernels"]))
    described = worker.ask("describe", implementation=name, case=plan.case)
    reason = described.get("untimed") or (_said(described) if "status" in described else None)
    return replace(result, untimed=reason or _left_running(worker))


def gate(session: Session, worker: Supervisor, name: str, plan: Plan) -> tuple[Finding, ...]:
    """Findings of the plan's checks, in its order.

    A death, or silence, is that of all of them: which one it came from does not matter to what is not timed then, and
    looking for it would cost a time-out each.
    """
    refusal = _refusal(session, worker, name, plan)
    if refusal is not None:
        return tuple(Finding(check=check, **refusal) for check in plan.checks)
    outcomes, files = _observed(session, worker, name, plan)
    seen = [check for check, outcome in outcomes.items() if outcome["status"] == "observed"]
    judged: dict[str, Outcome] = {}
    if seen:
        policies = worker.declared[name]["policies"]
        judged = session.judge("judge", case=plan.case, checks=seen, observations=files, policies=policies)
    told = {check: judged.get(check, outcome) for check, outcome in outcomes.items()}
    return tuple(finding_of(check, told[check]) for check in plan.checks)


def _refusal(session: Session, worker: Supervisor, name: str, plan: Plan) -> Outcome | None:
    """Why a case is not started, or None."""
    if plan.missing:
        return {"status": "not_run", "reason": plan.missing}
    memory = worker.memory_limit_bytes()
    if plan.bytes is not None and memory is not None and plan.bytes > memory:
        need, have = plan.bytes / 2**30, memory / 2**30
        reason = f"its tensors alone take {need:.3g} GiB, over the limit of {have:.3g} GiB (--memory-limit)"
        return {"status": "not_run", "reason": reason}
    return declined(worker.ask("describe", implementation=name, case=plan.case), session.limits.work_s)


def _observed(session: Session, worker: Supervisor, name: str, plan: Plan) -> tuple[dict[str, Outcome], list[str]]:
    """Outcome of each check, and the files that hold what was seen."""
    inputs = session.judge("inputs", case=plan.case)
    together = [plan.checks] if plan.flop <= TOGETHER_FLOP else [(check,) for check in plan.checks]
    outcomes: dict[str, Outcome] = {}
    files = []
    for number, checks in enumerate(together):
        file = f"{worker.place}-probe-{number}"
        answer = worker.ask(
            "observe", implementation=name, case=plan.case, checks=list(checks), inputs=inputs, observation=file
        )
        if "status" in answer:
            return dict.fromkeys(plan.checks, answer), []
        outcomes |= answer
        files.append(file)
    return outcomes, files


def _left_running(worker: Supervisor) -> str | None:
    """What an implementation still does when nothing is asked of it, or None."""
    for window_s in (QUIET_S, CONFIRM_S):
        cores = worker.cores_wanted(window_s)
        if cores is None or cores < BUSY_CORES:
            return None
    return f"it goes on after its call: it wants {cores:.1f} cores while nothing is asked of it"


def _said(outcome: Outcome) -> str:
    return f"{outcome['status']}: {outcome['reason']}"
