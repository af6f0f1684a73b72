"""Conformance: every check of every case, one worker process per implementation.

While the worker is busy with a case, the judge computes what is right for it, and judges the case before.
"""

from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest

from attnbench.plugins.registry import shown
from attnbench.records.types import Finding, Result
from attnbench.runner.check_outcomes import CheckOutcomes, finding_of, observe
from attnbench.runner.expected_failures import Expectation, applied
from attnbench.runner.parallelism import each, lanes
from attnbench.runner.progress import Progress
from attnbench.runner.refusal import declined, refused, too_long, tried_on
from attnbench.runner.session import Outcome, Plan, Session, Supervisor

__all__ = ["conform", "findings", "left_of"]


def conform(
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    *,
    run: str,
    steps: Progress,
    suite: str = "",
    expectations: Sequence[Expectation] = (),
    done: frozenset[tuple[str, str]] = frozenset(),
) -> Iterator[Result]:
    """Result of every implementation on every case that is not done yet, as soon as it is known.

    Raises: PluginError where an implementation cannot be loaded.
    """
    abreast = lanes(plans)
    steps.begin("conform", len(implementations) * len(plans), abreast=abreast)
    left = left_of(implementations, plans, done, steps)

    def job(name: str, worker: Supervisor) -> Iterator[Result]:
        own = [plan for plan in left[name] if plan.operator == worker.operator]
        for _ in range(len(left[name]) - len(own)):
            steps.done()
        for plan, found in _cases(session, worker, name, own, steps):
            counted = tuple(applied(finding, expectations, shown(name), plan.case) for finding in found)
            yield Result(
                run=run, implementation=shown(name), case=plan.case, findings=counted, flop=plan.flop, suite=suite
            )

    for result in each(session, list(left), job, abreast=abreast):
        yield result
        steps.done(result.case)


def left_of(
    implementations: Sequence[str], plans: Sequence[Plan], done: Container[tuple[str, str]], steps: Progress
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


def findings(
    session: Session, worker: Supervisor, implementation: str, plan: Plan, *, tries: bool = True
) -> tuple[Finding, ...]:
    """Findings of every check of a case, in the plan's order; ``tries`` calls what is declared unsupported, too."""
    start = _start(session, worker, implementation, plan, tries=tries)
    seen = _seen(worker, implementation, start, "observation")
    return _judged(session, worker, implementation, start, seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """How a case begins: what is asked of the worker, and why the case itself is not started, where it is not."""

    plan: Plan
    checks: tuple[str, ...]
    refusal: Outcome | None = None
    inputs: str = ""


def _cases(
    session: Session, worker: Supervisor, name: str, plans: Sequence[Plan], steps: Progress
) -> Iterator[tuple[Plan, tuple[Finding, ...]]]:
    """Findings of each plan in turn; the worker is a case ahead of the verdicts."""
    before: tuple[_Start, CheckOutcomes] | None = None
    with ThreadPoolExecutor(max_workers=1) as ahead:
        try:
            for number, (plan, following) in enumerate(zip_longest(plans, plans[1:])):
                steps.now(f"{name} {plan.case}")
                start = _start(session, worker, name, plan)
                # The file of the case before is still to be judged.
                coming = ahead.submit(_seen, worker, name, start, f"observation-{number % 2}")
                if before is not None:
                    yield before[0].plan, _judged(session, worker, name, *before)
                if start.refusal is None:
                    session.judge("expect", case=plan.case, policies=worker.declared[name]["policies"])
                if following is not None and not following.missing:
                    session.judge("inputs", case=following.case)
                before = start, coming.result()
            if before is not None:
                yield before[0].plan, _judged(session, worker, name, *before)
        finally:
            # Left early: the thread gets its answer, and ends.
            worker.close()


def _start(session: Session, worker: Supervisor, implementation: str, plan: Plan, *, tries: bool = True) -> _Start:
    """How a case begins, with the implementation's own word on it."""
    if plan.missing:
        return _Start(plan=plan, checks=(), refusal={"status": "not_run", "reason": plan.missing})
    described = worker.ask("describe", implementation=implementation, case=plan.case)
    limit_s = session.limits.work_s
    refusal = declined(described, limit_s)
    checks = plan.checks if refusal is None else ()
    if tries and described.get("unsupported") and not too_long(described["predicted_s"], limit_s):
        checks = tried_on(plan)
    inputs = session.judge("inputs", case=plan.case) if checks else ""
    return _Start(plan=plan, checks=checks, refusal=refusal, inputs=inputs)


def _seen(worker: Supervisor, implementation: str, start: _Start, place: str) -> CheckOutcomes:
    if not start.checks:
        return CheckOutcomes()
    return observe(worker, implementation, start.plan, start.checks, start.inputs, f"{worker.place}-{place}")


def _judged(
    session: Session, worker: Supervisor, implementation: str, start: _Start, seen: CheckOutcomes
) -> tuple[Finding, ...]:
    """Findings from what was seen."""
    found: dict[str, Outcome] = {}
    if seen.observed:
        found = session.judge(
            "judge",
            case=start.plan.case,
            checks=seen.observed,
            observations=seen.files,
            policies=worker.declared[implementation]["policies"],
        )
    findings = {check: finding_of(check, found.get(check, outcome)) for check, outcome in seen.outcomes.items()}
    if start.refusal is not None:
        findings = refused(start.plan.checks, start.refusal, findings)
    return tuple(findings[check] for check in start.plan.checks)
