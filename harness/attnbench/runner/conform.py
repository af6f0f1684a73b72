"""Conformance: every check of every case, one worker process per implementation.

While the candidate worker runs a case, the oracle worker evaluates the observations of the preceding case, and computes
the expected values of the current case.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from types import MappingProxyType

from attnbench.plugins.registry import display_name
from attnbench.processes.candidate_requests import Declaration, Describe, Outcome
from attnbench.processes.oracle_requests import ComputeExpected, DrawInputs
from attnbench.records.outcome_facts import DeclarationChanged
from attnbench.records.types import Finding, Result
from attnbench.refusals import TypedRefusal
from attnbench.runner.candidate_pool import Supervisor
from attnbench.runner.check_outcomes import CheckOutcomes, evaluate_observations, observe
from attnbench.runner.expected_failures import Expectation, apply_expectations
from attnbench.runner.parallelism import count_parallel_lanes, divide, run_each
from attnbench.runner.progress import Progress
from attnbench.runner.refusal import (
    apply_refusal,
    check_work_limit,
    find_refusal,
    keep_declaration,
    select_refusal_checks,
)
from attnbench.runner.session import Plan, Session
from attnbench.runner.supplement import Supplement

__all__ = ["check_case", "conform", "select_unfinished"]


def conform(
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    *,
    run: str,
    progress: Progress,
    suite: str = "",
    expectations: Sequence[Expectation] = (),
    done: frozenset[tuple[str, str]] = frozenset(),
    supplements: Mapping[str, Supplement] | None = None,
) -> Iterator[Result]:
    """Yield the result of every implementation on every case, except for the (implementation, case) pairs in ``done``.

    ``supplements`` has the supplementary cases of implementations, by name.

    Raises: PluginError where an implementation cannot be loaded.
    """
    supplements = supplements or {}
    further = {name: one.plans for name, one in supplements.items()}
    parallel = count_parallel_lanes([*plans, *chain.from_iterable(further.values())])
    total = len(implementations) * len(plans) + sum(map(len, further.values()))
    progress.begin("conform", total, parallel=parallel)
    left = select_unfinished(implementations, plans, done, progress, further)

    def job(name: str, share: Sequence[Plan], worker: Supervisor) -> Iterator[Result]:
        own = [plan for plan in share if plan.operator == worker.operator]
        for _ in range(len(share) - len(own)):
            progress.done()
        added = {plan.case for plan in further.get(name, ())}
        declared = supplements[name].declared if name in supplements else {}
        for prepared, found in _check_cases(session, worker, name, own, progress, declared):
            shown, plan = display_name(name), prepared.plan
            counted = tuple(apply_expectations(finding, expectations, shown, plan.case) for finding in found)
            yield Result(
                run=run, implementation=shown, case=plan.case, findings=counted, flop=plan.flop, suite=suite,
                untimed=prepared.untimed, completes=plan.case in added,
            )  # fmt: skip

    for result in run_each(session, divide(left.items(), parallel), job, parallel=parallel):
        yield result
        progress.done(result.case)


def select_unfinished(
    implementations: Sequence[str],
    plans: Sequence[Plan],
    done: Container[tuple[str, str]],
    progress: Progress,
    further: Mapping[str, Sequence[Plan]] | None = None,
) -> dict[str, list[Plan]]:
    """Return the plans of each implementation that are not in ``done``; report the other plans to ``progress`` as done.

    ``further`` has the plans that only one implementation has. An implementation without unfinished plans is left out.
    """
    left: dict[str, list[Plan]] = {}
    for name in implementations:
        for plan in (*plans, *(further or {}).get(name, ())):
            if (display_name(name), plan.case) in done:
                progress.done()
            else:
                left.setdefault(name, []).append(plan)
    return left


def check_case(
    session: Session, worker: Supervisor, implementation: str, plan: Plan, *, tries: bool = True
) -> tuple[Finding, ...]:
    """Return the findings of all checks of a plan, in the order of ``plan.checks``.

    With ``tries``, the implementation is called even if it declares the case unsupported, to see whether the call
    raises an exception. It is not called on such a case if the case is compiled or exceeds the work limit.
    """
    prepared = _prepare(session, worker, implementation, plan, tries=tries)
    seen = _observe_case(worker, implementation, prepared, "observation")
    return _evaluate(session, worker, implementation, prepared, seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A case that is ready for its checks to run."""

    plan: Plan
    # Checks that the worker runs: the checks of the plan. For a case that the implementation declares unsupported: the
    # checks that show whether a call raises an exception.
    checks: tuple[str, ...]
    # If the case is unsupported or not run: the outcome of all checks of the plan. Otherwise None.
    refusal: Outcome | None = None
    inputs: str = ""
    # How the declaration changed after the run was planned; None if it did not.
    changed: DeclarationChanged | None = None
    # Why the implementation declares that its calls must not be timed; None: they may be timed.
    untimed: TypedRefusal | None = None


def _check_cases(
    session: Session,
    worker: Supervisor,
    name: str,
    plans: Sequence[Plan],
    progress: Progress,
    declared: Mapping[str, TypedRefusal | None],
) -> Iterator[tuple[_Prepared, tuple[Finding, ...]]]:
    """Yield each prepared plan and its findings; the candidate worker is one case ahead of the oracle worker."""
    before: tuple[_Prepared, CheckOutcomes] | None = None
    with ThreadPoolExecutor(max_workers=1) as ahead:
        try:
            for number, (plan, following) in enumerate(zip_longest(plans, plans[1:])):
                progress.now(f"{name} {plan.case}")
                prepared = _prepare(session, worker, name, plan, declared=declared)
                # Two file names alternate, because the file of the preceding case is still to be evaluated.
                coming = ahead.submit(_observe_case, worker, name, prepared, f"observation-{number % 2}")
                if before is not None:
                    yield before[0], _evaluate(session, worker, name, *before)
                if prepared.refusal is None:
                    session.ask_oracle(ComputeExpected(case=plan.case, policies=worker.declared[name].policies))
                if following is not None and not following.missing:
                    session.ask_oracle(DrawInputs(case=following.case))
                before = prepared, coming.result()
            if before is not None:
                yield before[0], _evaluate(session, worker, name, *before)
        finally:
            # If the caller stops iterating early, the thread may still wait for the worker's reply. Closing the worker
            # ends that wait.
            worker.close()


def _prepare(
    session: Session,
    worker: Supervisor,
    implementation: str,
    plan: Plan,
    *,
    tries: bool = True,
    declared: Mapping[str, TypedRefusal | None] = MappingProxyType({}),
) -> _Prepared:
    """Ask the implementation whether it computes the case, select the checks, and draw the inputs.

    ``declared`` has what the implementation declared when the run was planned. These declarations count, even if the
    implementation now declares something else.
    """
    if plan.missing:
        return _Prepared(plan=plan, checks=(), refusal=Outcome(status="not_run", facts=(plan.missing,)))
    described = worker.ask(Describe(implementation=implementation, case=plan.case))
    changed = None
    if plan.case in declared:
        described, changed = keep_declaration(described, declared[plan.case])
    limit_s = session.limits.work_s
    refusal = find_refusal(described, limit_s)
    checks = plan.checks if refusal is None else ()
    if tries and isinstance(described, Declaration) and described.unsupported:
        checks = () if check_work_limit(described.predicted_s, limit_s) else select_refusal_checks(plan)
    inputs = session.ask_oracle(DrawInputs(case=plan.case)) if checks else ""
    untimed = described.untimed if isinstance(described, Declaration) else None
    return _Prepared(plan=plan, checks=checks, refusal=refusal, inputs=inputs, changed=changed, untimed=untimed)


def _observe_case(worker: Supervisor, implementation: str, prepared: _Prepared, suffix: str) -> CheckOutcomes:
    if not prepared.checks:
        return CheckOutcomes()
    path_prefix = f"{worker.path_prefix}-{suffix}"
    return observe(worker, implementation, prepared.plan, prepared.checks, prepared.inputs, path_prefix)


def _evaluate(
    session: Session, worker: Supervisor, implementation: str, prepared: _Prepared, seen: CheckOutcomes
) -> tuple[Finding, ...]:
    """Let the oracle worker evaluate the observations, and return the findings of the plan's checks."""
    policies = worker.declared[implementation].policies
    findings = evaluate_observations(session, implementation, prepared.plan.case, seen, policies)
    if prepared.refusal is not None:
        findings = apply_refusal(prepared.plan.checks, prepared.refusal, findings)
    found = tuple(findings[check] for check in prepared.plan.checks)
    if prepared.changed:
        found = (replace(found[0], warnings=(*found[0].warnings, prepared.changed)), *found[1:])
    return found
