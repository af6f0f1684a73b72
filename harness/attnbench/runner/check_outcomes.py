"""Run the checks of a case in a worker: in one request, or one by one if the case is large or the worker crashed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from attnbench.checks.catalogue import sort_checks
from attnbench.interface import Policies
from attnbench.processes.candidate_requests import Observe, Observed, Outcome
from attnbench.processes.oracle_requests import Evaluate
from attnbench.records.outcome_facts import Death, NotReproduced
from attnbench.records.types import DEADLY, Finding
from attnbench.runner.candidate_pool import Supervisor
from attnbench.runner.deaths import TOGETHER
from attnbench.runner.session import Plan, Session

__all__ = ["CheckOutcomes", "evaluate_observations", "make_finding", "observe"]

# If a case has more floating-point operations than this number, its checks run one by one. In a single request, the
# memory of the tensors of all checks would add up. The cost of one request per check is negligible for such a large
# case.
TOGETHER_FLOP = 2_000_000_000


@dataclass(slots=True, kw_only=True)
class CheckOutcomes:
    """Outcome of each check of a case, and the files with the observations.

    The outcome of a check is None if the check has observations. Otherwise it says why the check has none.
    """

    outcomes: dict[str, Outcome | None] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    @property
    def observed(self) -> list[str]:
        """Checks whose observations the oracle worker has to evaluate."""
        return [check for check, outcome in self.outcomes.items() if outcome is None]


def make_finding(check: str, outcome: Outcome) -> Finding:
    """Make the finding of a check from the outcome that stands in place of its observations."""
    return Finding(check=check, status=outcome.status, facts=outcome.facts)


def evaluate_observations(
    session: Session, implementation: str, case: str, seen: CheckOutcomes, policies: Policies
) -> dict[str, Finding]:
    """Let the oracle worker evaluate the observations in ``seen``, and return the finding of each check."""
    found: dict[str, Finding] = {}
    if seen.observed:
        found = session.ask_oracle(
            Evaluate(
                implementation=implementation,
                case=case,
                checks=seen.observed,
                observations=seen.files,
                policies=policies,
            )
        )
    return {
        check: found[check] if outcome is None else make_finding(check, outcome)
        for check, outcome in seen.outcomes.items()
    }


def observe(
    worker: Supervisor, implementation: str, plan: Plan, checks: Sequence[str], inputs: str, path_prefix: str
) -> CheckOutcomes:
    """Run checks of a case in the worker, which writes their observations to files that begin with ``path_prefix``."""
    seen = CheckOutcomes(outcomes=_leave_out(worker, plan.case, checks))
    asked = [check for check in sort_checks(checks) if check not in seen.outcomes]

    def ask(some: list[str], *, counts: bool = True) -> Observed | Outcome:
        path = f"{path_prefix}-{len(seen.files)}"
        request = Observe(implementation=implementation, case=plan.case, checks=some, inputs=inputs, observation=path)
        answer = worker.ask(request, counts=counts)
        if isinstance(answer, Observed):
            seen.files.append(path)
            seen.outcomes |= answer.outcomes
        return answer

    died: Outcome | None = None
    together = len(asked) > 1 and plan.flop <= TOGETHER_FLOP
    if together and not worker.deaths.forbid_together(plan.case):
        answer = ask(asked, counts=False)
        if isinstance(answer, Observed):
            return seen
        if answer.status not in DEADLY:
            seen.outcomes |= dict.fromkeys(asked, answer)
            return seen
        died = answer
    for check in asked:
        alone = ask([check])
        if isinstance(alone, Outcome):
            seen.outcomes[check] = alone
    if died and died.status == "crashed" and not any(o and o.status in DEADLY for o in seen.outcomes.values()):
        # The request with all checks crashed, but no check crashed in a request of its own. The crash becomes the
        # outcome of the last check. After several such cases, checks are asked one by one from the beginning.
        worker.deaths.add(plan.case, [TOGETHER], *(fact for fact in died.facts if isinstance(fact, Death)))
        seen.outcomes[asked[-1]] = Outcome(status="crashed", facts=(*died.facts, NotReproduced()))
    return seen


def _leave_out(worker: Supervisor, case: str, checks: Sequence[str]) -> dict[str, Outcome | None]:
    """Return the outcomes of the checks that are not run, because they ended the worker's process before."""
    reasons = {check: worker.deaths.find_reason(case, [check]) for check in checks}
    return {check: Outcome(status="not_run", facts=(reason,)) for check, reason in reasons.items() if reason}
