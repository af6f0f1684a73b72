"""What a gate plans: the cases that are timed, the processes that time them, and the level of its verdicts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from attnbench.analysis.speed_verdict import share_level
from attnbench.api.execution import choose_effort, plan_profile
from attnbench.api.selection import plan_cases
from attnbench.jobs.job import ConformJob, TimedJob
from attnbench.runner import Effort, Plan, Session, list_gating_checks
from attngate.cases import list_uses
from attngate.outcome import ALARMS, Rule

__all__ = ["GateJob", "make_conform_job", "plan_effort", "plan_side_effort", "plan_timed"]

# Seconds of timed calls of a case in a process; and processes beyond those that a verdict needs, since others may be
# disturbed. More are added, five at a time, while they may decide a verdict. With 0.25 s, where a process takes five
# times as long for all else, the medians of 7 to 20 calls varied by 2 to 3 % from process to process.
BUDGET_S, SPARE, ADDED = 0.75, 2, 15
# A case is slower if the estimate is at least the threshold, and the whole interval above this part of it. So a
# slowdown of 3 % needs an interval no narrower than no slowdown does, and false alarms are bounded up to 1 %, by which
# the same code at other addresses can differ.
CERTAIN = 0.5
# Further processes of a side that is timed alone, where none are added: two wide intervals decide little.
FURTHER = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJob(TimedJob):
    """Say whether implementations became wrong, slower or bigger."""

    command: ClassVar[str] = "gate"
    implementations: tuple[str, ...] = ()


def make_conform_job(job: GateJob) -> ConformJob:
    """Return the part of a job that checks: the whole suite ``core``, with the limits of the job."""
    return ConformJob(
        suite="core", device=job.device, dtype=job.dtype, timeout_s=job.timeout_s, work_limit_s=job.work_limit_s,
        memory_bytes=job.memory_bytes, threads=job.threads, no_cache=job.no_cache, results=job.results,
    )  # fmt: skip


def plan_timed(session: Session, job: GateJob, operators: Sequence[str]) -> list[Plan]:
    """Return the plans of the cases to time: those that the job chooses, else those that stand for real use."""
    if job.chosen_axes:
        return plan_profile(session, job, operators)
    listed = [case for operator in operators for case in list_uses(session, operator, job.passes)]
    return plan_cases(session, listed, job, checks=sorted(list_gating_checks())) if listed else []


def plan_effort(job: GateJob, rule: Rule, comparisons: int) -> tuple[Effort, Rule]:
    """Return the timing effort, and the rule with the level at which it can give verdicts.

    If times do not matter, or no case is timed, there are no timing processes; numbers of bytes are still counted.
    """
    if "slower" not in rule.fail_on or not comparisons:
        return Effort(processes=0, budget_s=BUDGET_S), rule
    looks = Effort(processes=1, most=1 + ADDED, budget_s=BUDGET_S).looks
    level = share_level(ALARMS, comparisons, 1 if job.processes else looks)
    fewest = _count_fewest(level) + SPARE
    default = Effort(
        processes=fewest,
        most=fewest + ADDED,
        budget_s=BUDGET_S,
        effect=CERTAIN * rule.slower,
        level=level,
        slower=rule.slower,
    )
    effort = choose_effort(default, job)
    return effort, msgspec.structs.replace(rule, comparisons=comparisons, looks=effort.looks, level=level)


def plan_side_effort(job: GateJob, rule: Rule, comparisons: int) -> tuple[Effort, Rule]:
    """Return the timing effort of a side that is timed beside the reference alone, and the rule with its level.

    A verdict follows from the intervals of two ratios, so the probability of a false alarm is shared by both.
    """
    if "slower" not in rule.fail_on or not comparisons:
        return Effort(processes=0, budget_s=BUDGET_S), rule
    level = share_level(ALARMS, 2 * comparisons, 1)
    processes = _count_fewest(level) + SPARE + FURTHER
    effort = choose_effort(Effort(processes=processes, budget_s=BUDGET_S, level=level), job)
    return effort, msgspec.structs.replace(rule, comparisons=comparisons, looks=1, level=level)


def _count_fewest(level: float) -> int:
    """Return how many processes an interval needs: the smallest of n is above the median with probability 2 ** -n."""
    return math.ceil(math.log2(1 / level))
