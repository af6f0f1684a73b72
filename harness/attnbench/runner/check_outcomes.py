"""What a worker saw of one case: all checks in one request, or one by one where its process did not survive that."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from attnbench.checks.catalogue import in_turn
from attnbench.records.types import Finding
from attnbench.runner.session import Outcome, Plan, Supervisor

__all__ = ["CheckOutcomes", "finding_of", "observe"]

# Floating-point operations of a case beyond which its checks are observed one by one: their tensors would add up, and
# a request costs nothing beside them.
TOGETHER_FLOP = 2_000_000_000
# Outcomes after which a worker's process is gone.
DEATHS = ("crashed", "timeout")


@dataclass(slots=True, kw_only=True)
class CheckOutcomes:
    """Outcome of each check, and the files that hold the claims of those that were observed."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    @property
    def observed(self) -> list[str]:
        """Checks that are to be judged."""
        return [check for check, outcome in self.outcomes.items() if outcome["status"] == "observed"]


def finding_of(check: str, told: Outcome) -> Finding:
    """Finding of a check from what a judge or a worker told of it."""
    return Finding(**told | {"check": check, "warnings": tuple(told.get("warnings", ()))})


def observe(
    worker: Supervisor, implementation: str, plan: Plan, checks: Sequence[str], inputs: str, place: str
) -> CheckOutcomes:
    """Observe checks of a case; the files of their claims begin with ``place``."""
    asked = in_turn(checks)
    seen = CheckOutcomes()

    def ask(some: list[str], *, counts: bool = True) -> Outcome:
        path = f"{place}-{len(seen.files)}"
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
        # Nobody's own, and not to be passed over in silence.
        worker.count_death(died["reason"])
        reason = f"{died['reason']} after checks of other cases; in a fresh process no check of this case did that"
        seen.outcomes[asked[-1]] = {"status": "crashed", "reason": reason}
    return seen
