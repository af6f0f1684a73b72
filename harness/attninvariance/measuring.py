"""The order of work: every property of every implementation, in its own worker."""

from collections.abc import Iterator, Sequence
from functools import partial

from attnbench.plugins.registry import display_name
from attnbench.processes.candidate_requests import Outcome
from attnbench.records.outcome_facts import InvarianceGrade
from attnbench.records.types import INVARIANCE, Finding, Result
from attnbench.runner import Plan, Session
from attnbench.runner.candidate_pool import Supervisor
from attnbench.runner.check_outcomes import make_finding
from attnbench.runner.parallelism import run_each
from attnbench.runner.progress import Progress
from attninvariance.requests import MeasureInvariance
from attninvariance.sweep import PROPERTIES, Sweep

__all__ = ["WORKER", "measure_all"]

WORKER = "attninvariance.worker"


def measure_all(
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    sweep: Sweep,
    *,
    run: str,
    progress: Progress,
) -> Iterator[Result]:
    """Yield a result for each implementation, each plan of its operator and each property.

    Each plan has the operator, dtype, device and call mode of calls. Their gradients are compared; without gradients,
    their outputs. The worker module of ``session`` must be ``WORKER``.

    Raises: PluginError where an implementation cannot be loaded.
    """
    progress.begin("invariance", len(implementations) * len(plans) * len(PROPERTIES))
    job = partial(_measure_one, sweep=sweep, run=run, progress=progress)
    yield from run_each(session, [(name, plans) for name in implementations], job)


def _measure_one(
    name: str, plans: Sequence[Plan], worker: Supervisor, *, sweep: Sweep, run: str, progress: Progress
) -> Iterator[Result]:
    for plan in plans:
        for prop in PROPERTIES:
            if plan.operator == worker.operator:
                progress.now(f"{name} {prop}")
                request = MeasureInvariance(implementation=name, name=prop, case=plan.case, sweep=sweep)
                # A property in which the worker crashes or hangs leaves the others to be measured.
                finding = _make_finding(prop, worker.send(request, counts=False))
                yield Result(
                    run=run, implementation=display_name(name), case=plan.case, findings=(finding,), suite=INVARIANCE
                )
            progress.done()


def _make_finding(prop: str, answer: InvarianceGrade | Outcome) -> Finding:
    """Return the finding on a property: a grade fails only if the policies declare that all bits are equal."""
    if isinstance(answer, Outcome):
        return make_finding(prop, answer)
    violated = answer.declared and answer.differing
    return Finding(check=prop, status="failed" if violated else "passed", facts=(answer,))
