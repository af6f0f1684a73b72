"""Which implementations will be timed on which cases, as they declare before anything is run."""

from collections.abc import Sequence

from attnbench.processes.candidate_requests import DescribeAll, Outcome
from attnbench.runner.candidate_pool import Supervisor
from attnbench.runner.refusal import find_refusal
from attnbench.runner.session import Plan, Session

__all__ = ["list_timeable"]

# Seconds for which one implementation is asked about the cases. A declaration takes microseconds.
ASKED_S = 2.0


def list_timeable(session: Session, implementations: Sequence[str], plans: Sequence[Plan]) -> dict[str, list[str]]:
    """Return, for each implementation, the cases that it does not declare unsupported or too long to be timed.

    Only implementations that a kept worker has loaded are asked; these workers then end. A case on which there is no
    answer counts as one that is timed.
    """
    workers = {name: session.workers.find(name) for name in implementations}
    found = {}
    for name, worker in workers.items():
        cases = [plan.case for plan in plans if plan.operator == session.declared[name].operator]
        left_out = _find_left_out(worker, name, cases, session.limits.work_s) if worker and cases else set()
        found[name] = [case for case in cases if case not in left_out]
    for worker in filter(None, workers.values()):
        worker.close()
    return found


def _find_left_out(worker: Supervisor, name: str, cases: list[str], work_s: float) -> set[str]:
    answer = worker.ask(DescribeAll(implementation=name, cases=cases, limit_s=ASKED_S))
    if isinstance(answer, Outcome):
        return set()
    return {case for case, one in zip(cases, answer.by_case, strict=False) if find_refusal(one, work_s) is not None}
