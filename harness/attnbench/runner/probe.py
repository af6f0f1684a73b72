"""Probe one implementation alone on one case: gating checks, memory, kernels, and a reason not to time it, if any.

The probe runs in a process with its own address space, time-out and process group, so that a failure there does not
affect the timing processes, which several implementations share.
"""

from dataclasses import replace

from attnbench.plugins.registry import display_name
from attnbench.records.types import PERF, Finding, Memory, Result
from attnbench.runner.check_outcomes import TOGETHER_FLOP, make_finding
from attnbench.runner.refusal import find_refusal
from attnbench.runner.session import Outcome, Plan, Session, Supervisor

__all__ = ["probe"]

# After a call, the worker must be idle, so its load is measured for ``QUIET_S`` seconds. If the load is high, it is
# measured once more, for ``CONFIRM_S`` seconds, which gives threads time to end.
QUIET_S, CONFIRM_S = 0.02, 0.2
# Load, in cores, from which it counts as high.
BUSY_CORES = 0.5


def probe(session: Session, worker: Supervisor, name: str, plan: Plan, *, run: str) -> Result:
    """Return a result with findings, memory and kernels of one pass; ``untimed`` says why it must not be timed."""
    result = Result(
        run=run,
        implementation=display_name(name),
        case=plan.case,
        findings=run_gating_checks(session, worker, name, plan),
        flop=plan.flop,
        bytes=plan.bytes,
        suite=PERF,
    )
    unfit = next((finding for finding in result.findings if finding.status != "passed"), None)
    if unfit is not None:
        return replace(result, untimed=f"{unfit.status}: {unfit.reason}")
    inputs = session.ask_oracle("inputs", case=plan.case)
    memory = worker.ask("memory", implementation=name, case=plan.case, inputs=inputs)
    if "status" in memory:
        return replace(result, untimed=_format_outcome(memory))
    result = replace(result, memory=Memory(**memory))
    traced = worker.ask("kernels", implementation=name, case=plan.case, inputs=inputs)
    if "status" in traced:
        return replace(result, untimed=_format_outcome(traced))
    result = replace(result, kernels=tuple(traced["kernels"]))
    described = worker.ask("describe", implementation=name, case=plan.case)
    reason = described.get("untimed") or (_format_outcome(described) if "status" in described else None)
    return replace(result, untimed=reason or _find_background_work(worker))


def run_gating_checks(session: Session, worker: Supervisor, name: str, plan: Plan) -> tuple[Finding, ...]:
    """Return the findings of the plan's checks, all of which the case must pass before it is timed.

    A crash or a time-out becomes the finding of every check. The check that caused it is not searched for: the case is
    not timed in any event, and the search could take one time-out per check.
    """
    refusal = _find_refusal(session, worker, name, plan)
    if refusal is not None:
        return tuple(Finding(check=check, **refusal) for check in plan.checks)
    outcomes, files = _observe(session, worker, name, plan)
    seen = [check for check, outcome in outcomes.items() if outcome["status"] == "observed"]
    evaluated: dict[str, Outcome] = {}
    if seen:
        policies = worker.declared[name]["policies"]
        evaluated = session.ask_oracle("judge", case=plan.case, checks=seen, observations=files, policies=policies)
    return tuple(make_finding(check, evaluated.get(check, outcomes[check])) for check in plan.checks)


def _find_refusal(session: Session, worker: Supervisor, name: str, plan: Plan) -> Outcome | None:
    """Return an outcome with the reason why the case is not started, or None if it may be started."""
    if plan.missing:
        return {"status": "not_run", "reason": plan.missing}
    memory = worker.compute_memory_limit_bytes()
    if plan.bytes is not None and memory is not None and plan.bytes > memory:
        need, have = plan.bytes / 2**30, memory / 2**30
        reason = f"the inputs and outputs alone take {need:.3g} GiB, over the limit of {have:.3g} GiB (--memory-limit)"
        return {"status": "not_run", "reason": reason}
    return find_refusal(worker.ask("describe", implementation=name, case=plan.case), session.limits.work_s)


def _observe(session: Session, worker: Supervisor, name: str, plan: Plan) -> tuple[dict[str, Outcome], list[str]]:
    """Return the outcome of each check, and the files with the observations."""
    inputs = session.ask_oracle("inputs", case=plan.case)
    together = [plan.checks] if plan.flop <= TOGETHER_FLOP else [(check,) for check in plan.checks]
    outcomes: dict[str, Outcome] = {}
    files = []
    for number, checks in enumerate(together):
        file = f"{worker.path_prefix}-probe-{number}"
        answer = worker.ask(
            "observe", implementation=name, case=plan.case, checks=list(checks), inputs=inputs, observation=file
        )
        if "status" in answer:
            return dict.fromkeys(plan.checks, answer), []
        outcomes |= answer
        files.append(file)
    return outcomes, files


def _find_background_work(worker: Supervisor) -> str | None:
    """Describe the work that an implementation still does after its call has returned; None if its worker is idle."""
    for window_s in (QUIET_S, CONFIRM_S):
        cores = worker.measure_core_demand(window_s)
        if cores is None or cores < BUSY_CORES:
            return None
    return f"the implementation's threads still need {cores:.1f} cores after the call has returned"


def _format_outcome(outcome: Outcome) -> str:
    return f"{outcome['status']}: {outcome['reason']}"
