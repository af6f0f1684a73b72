"""Conformance: every check of every case, one worker process per implementation."""

from collections.abc import Container, Iterator, Sequence

from attnbench.records import Finding, Result
from attnbench.registry import shown
from attnbench.runner.expectations import Expectation, applied
from attnbench.runner.session import Outcome, Plan, Session, Steps, Supervisor

__all__ = ["conform", "findings", "left_of"]


def conform(
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    *,
    run: str,
    steps: Steps,
    suite: str = "",
    expectations: Sequence[Expectation] = (),
    done: frozenset[tuple[str, str]] = frozenset(),
) -> Iterator[Result]:
    """Result of every implementation on every case that is not done yet, as soon as it is known.

    Raises: PluginError where an implementation cannot be loaded.
    """
    steps.begin("conform", len(implementations) * len(plans))
    left = left_of(implementations, plans, done, steps)
    for name, worker in session.supervised(list(left)):
        for plan in left[name]:
            if plan.operator == worker.operator:
                steps.now(f"{name} {plan.case}")
                found = tuple(
                    applied(finding, expectations, shown(name), plan.case)
                    for finding in findings(session, worker, name, plan)
                )
                yield Result(
                    run=run, implementation=shown(name), case=plan.case, findings=found, flop=plan.flop, suite=suite
                )
            steps.done()


def left_of(
    implementations: Sequence[str], plans: Sequence[Plan], done: Container[tuple[str, str]], steps: Steps
) -> dict[str, list[Plan]]:
    """Plans of each implementation that has any which is not done; steps that are done count at once."""
    left: dict[str, list[Plan]] = {}
    for name in implementations:
        for plan in plans:
            if (shown(name), plan.case) in done:
                steps.done()
            else:
                left.setdefault(name, []).append(plan)
    return left


def findings(session: Session, worker: Supervisor, implementation: str, plan: Plan) -> Iterator[Finding]:
    """Findings of every check of a case."""
    if reason := plan.missing:
        yield from (Finding(check=check, status="not_run", reason=reason) for check in plan.checks)
        return
    refusal = _refusal(session, worker, implementation, plan)
    if refusal:
        yield from (Finding(check=check, **refusal) for check in plan.checks)
        return
    inputs = session.judge("inputs", case=plan.case)
    observation = str(session.folder / "observation.pt")
    for check in plan.checks:
        outcome = worker.ask(
            "observe",
            implementation=implementation,
            case=plan.case,
            check=check,
            inputs=inputs,
            observation=observation,
        )
        if outcome["status"] != "observed":
            yield Finding(check=check, **outcome)
            continue
        policies = worker.declared[implementation]["policies"]
        judged = session.judge("judge", case=plan.case, check=check, observation=observation, policies=policies)
        yield Finding(**judged | {"warnings": tuple(judged["warnings"])})


def _refusal(session: Session, worker: Supervisor, implementation: str, plan: Plan) -> Outcome | None:
    """Why the case is not started at all, as status and reason, or None."""
    described = worker.ask("describe", implementation=implementation, case=plan.case)
    if "status" in described:
        return described
    if described["unsupported"]:
        return {"status": "unsupported", "reason": described["unsupported"]}
    predicted, limit = described["predicted_s"], session.limits.work_s
    if predicted is not None and predicted > limit:
        return {
            "status": "not_run",
            "reason": f"predicted {predicted:.3g} s a call, over the limit of {limit:g} s (--work-limit)",
        }
    return None
