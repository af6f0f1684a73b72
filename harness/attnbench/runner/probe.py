"""Probe one implementation alone on one case: gating checks, memory, kernels, and why it must not be timed.

The probe runs in a process with its own address space, time-out and process group, so that a failure there does not
affect the timing processes, which several implementations share.
"""

from dataclasses import replace

from attnbench.plugins.registry import display_name
from attnbench.processes.candidate_requests import Describe, MeasurePass, Observe, Outcome
from attnbench.processes.oracle_requests import DrawInputs
from attnbench.records.outcome_facts import KeepsWorking, OverMemoryLimit
from attnbench.records.types import PERF, Finding, Result, explain_untimed
from attnbench.runner.candidate_pool import Supervisor
from attnbench.runner.check_outcomes import TOGETHER_FLOP, CheckOutcomes, evaluate_observations, make_finding
from attnbench.runner.refusal import find_refusal
from attnbench.runner.session import Plan, Session

__all__ = ["probe"]

# After a call, the worker must be idle, so the CPU load of its threads is measured for ``QUIET_S`` seconds. While the
# load is high, it is measured again, for ``CONFIRM_S`` seconds each time, at most ``CONFIRMATIONS`` times. This gives
# threads time to end: on a busy machine, 20 ms of work can wait for a core for more than 0.1 s.
QUIET_S, CONFIRM_S, CONFIRMATIONS = 0.02, 0.2, 5
# A load is high if the worker's threads use at least this number of cores.
BUSY_CORES = 0.5


def probe(session: Session, worker: Supervisor, name: str, plan: Plan, *, run: str) -> Result:
    """Return a result with findings, memory and kernels of one pass.

    The field ``untimed`` of the result says why the pass must not be timed; None: it may be timed.
    """
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
        return replace(result, untimed=explain_untimed(unfit))
    inputs = session.ask_oracle(DrawInputs(case=plan.case))
    measured = worker.ask(MeasurePass(implementation=name, case=plan.case, inputs=inputs))
    if isinstance(measured, Outcome):
        return replace(result, untimed=measured.facts[0])
    result = replace(result, memory=measured.memory, kernels=measured.kernels)
    described = worker.ask(Describe(implementation=name, case=plan.case))
    declared = described.facts[0] if isinstance(described, Outcome) else described.untimed
    return replace(result, untimed=declared or _find_background_work(worker))


def run_gating_checks(session: Session, worker: Supervisor, name: str, plan: Plan) -> tuple[Finding, ...]:
    """Return the findings of the plan's checks, all of which the case must pass before it is timed.

    A crash or a time-out becomes the finding of every check. The check that caused it is not searched for: the case is
    not timed in any event, and the search could take one time-out per check.
    """
    refusal = _find_refusal(session, worker, name, plan)
    if refusal is not None:
        return tuple(make_finding(check, refusal) for check in plan.checks)
    seen = _observe(session, worker, name, plan)
    findings = evaluate_observations(session, name, plan.case, seen, worker.declared[name].policies)
    return tuple(findings[check] for check in plan.checks)


def _find_refusal(session: Session, worker: Supervisor, name: str, plan: Plan) -> Outcome | None:
    """Return an outcome that says why the case is not started, or None if it may be started."""
    if plan.missing:
        return Outcome(status="not_run", facts=(plan.missing,))
    memory = worker.compute_memory_limit_bytes()
    if plan.bytes is not None and memory is not None and plan.bytes > memory:
        over = OverMemoryLimit(what="tensors", need_bytes=plan.bytes, limit_bytes=memory)
        return Outcome(status="not_run", facts=(over,))
    return find_refusal(worker.ask(Describe(implementation=name, case=plan.case)), session.limits.work_s)


def _observe(session: Session, worker: Supervisor, name: str, plan: Plan) -> CheckOutcomes:
    inputs = session.ask_oracle(DrawInputs(case=plan.case))
    together = [plan.checks] if plan.flop <= TOGETHER_FLOP else [(check,) for check in plan.checks]
    seen = CheckOutcomes()
    for number, checks in enumerate(together):
        file = f"{worker.path_prefix}-probe-{number}"
        answer = worker.ask(
            Observe(implementation=name, case=plan.case, checks=list(checks), inputs=inputs, observation=file)
        )
        if isinstance(answer, Outcome):
            return CheckOutcomes(outcomes=dict.fromkeys(plan.checks, answer))
        seen.outcomes |= answer.outcomes
        seen.files.append(file)
    return seen


def _find_background_work(worker: Supervisor) -> KeepsWorking | None:
    """Return the work that an implementation still does after its call has returned; None if its worker is idle."""
    for window_s in (QUIET_S, *[CONFIRM_S] * CONFIRMATIONS):
        cores = worker.measure_core_demand(window_s)
        if cores is None or cores < BUSY_CORES:
            return None
    return KeepsWorking(cores=cores or 0.0)
