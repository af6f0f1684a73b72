"""Run the checks of a case in a worker: in one request, or one by one if the case is large or the worker crashed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from attnbench.checks.catalogue import sort_checks
from attnbench.records.types import Finding
from attnbench.runner.session import Outcome, Plan, Supervisor

__all__ = ["CheckOutcomes", "make_finding", "observe"]

# If a case has more floating-point operations than this, its checks run one by one. In a single request, the memory of
# the tensors of all checks would add up. The cost of one request per check is negligible for such a large case.
TOGETHER_FLOP = 2_000_000_000
# Statuses after which the worker's process has ended.
DEATHS = ("crashed", "timeout")


@dataclass(slots=True, kw_only=True)
class CheckOutcomes:
    """Outcome of each check, and the files with the observations of the checks whose status is ``observed``."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    @property
    def observed(self) -> list[str]:
        """Checks whose observations the oracle worker has to evaluate."""
        return [check for check, outcome in self.outcomes.items() if outcome["status"] == "observed"]


def make_finding(check: str, outcome: Outcome) -> Finding:
    """Make the finding of a check from an outcome that the oracle worker or a candidate worker returned."""
    return Finding(**outcome | {"check": check, "warnings": tuple(outcome.get("warnings", ()))})


def observe(
    worker: Supervisor, implementation: str, plan: Plan, checks: Sequence[str], inputs: str, path_prefix: str
) -> CheckOutcomes:
    """Run checks of a case in the worker, which writes their observations to files that begin with ``path_prefix``."""
    asked = sort_checks(checks)
    seen = CheckOutcomes()

    def ask(some: list[str], *, counts: bool = True) -> Outcome:
        path = f"{path_prefix}-{len(seen.files)}"
        answer = worker.ask(
            "observe",
            counts=counts,
            implementation=implementation,
            case=plan.case,
            checks=some,
            inputs=inputs,
            observation=path,
        )
        if "status" not in answer:
            seen.files.append(path)
            seen.outcomes |= answer
        return answer

    died: Outcome = {}
    if len(asked) > 1 and plan.flop <= TOGETHER_FLOP:
        answer = ask(asked, counts=False)
        if "status" not in answer:
            return seen
        if answer["status"] not in DEATHS:
            seen.outcomes = dict.fromkeys(asked, answer)
            return seen
        died = answer
    for check in asked:
        alone = ask([check])
        if "status" in alone:
            seen.outcomes[check] = alone
    if died.get("status") == "crashed" and not any(o["status"] in DEATHS for o in seen.outcomes.values()):
        # No check reproduces the crash when it runs by itself. The crash still counts toward the limit, and becomes the
        # outcome of the last check.
        worker.count_death(died["reason"])
        reason = (
            f"{died['reason']} after checks of other cases; no check of this case reproduces this in a fresh process"
        )
        seen.outcomes[asked[-1]] = {"status": "crashed", "reason": reason}
    return seen
