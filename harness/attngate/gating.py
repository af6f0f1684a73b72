"""The order of work of a gate: conformance of both sides, exact counters and times, and the outcome."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import msgspec

from attnbench.analysis.run_diff import Change, compare_findings
from attnbench.analysis.speed_verdict import share_level
from attnbench.api.execution import Checks, choose_effort, count_planned, plan_checks, plan_conformance, plan_profile
from attnbench.api.interleaving import load_sides, time_sides
from attnbench.api.recording import Recording, record
from attnbench.api.selection import plan_cases
from attnbench.jobs.job import ConformJob, TimedJob
from attnbench.plugins.registry import PluginError, display_name, resolve_in_trees
from attnbench.records.types import Result
from attnbench.refusals import TypedRefusal
from attnbench.runner import Effort, Plan, Session, list_gating_checks
from attngate.cases import list_uses
from attngate.conformance import Pair, conform_sides, read_kept
from attngate.outcome import ALARMS, Outcome, Rule, conclude, find_lost, refine
from attngate.revisions import GateError, Version, describe_version

__all__ = ["GateJob", "Gated", "gate", "make_conform_job", "make_pairs", "plan_effort"]

# Seconds of timed calls of a case in a process; and processes beyond those that a verdict needs, since others may be
# disturbed. More are added, five at a time, while they may decide a verdict.
BUDGET_S, SPARE, ADDED = 0.25, 2, 15
WORKING_TREE = "the working tree"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJob(TimedJob):
    """Say whether implementations became wrong, slower or bigger."""

    command: ClassVar[str] = "gate"
    implementations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """The outcome of a gate, the changes that it follows from, and the run that has the measurements."""

    outcome: Outcome
    changes: Sequence[Change]
    recorded: Recording


def make_pairs(names: Sequence[str], folder: Path, base: Version) -> list[Pair]:
    """Return each implementation with its two sides.

    Raises: GateError where the base does not have it.
    """
    found = []
    for name in names:
        try:
            of_base, new = resolve_in_trees(name, folder)
        except PluginError as error:
            raise GateError(
                f"{str(error).replace(str(folder), base.label).partition(';')[0]}; leave out {display_name(name)!r}, "
                "or name another base"
            ) from error
        found.append(Pair(name=display_name(name), base=of_base, new=new))
    return found


def make_conform_job(job: GateJob) -> ConformJob:
    """Return the part of a job that checks: the whole suite ``core``, with the limits of the job."""
    return ConformJob(
        suite="core", device=job.device, dtype=job.dtype, timeout_s=job.timeout_s, work_limit_s=job.work_limit_s,
        memory_bytes=job.memory_bytes, threads=job.threads, no_cache=job.no_cache, results=job.results,
    )  # fmt: skip


def gate(session: Session, job: GateJob, pairs: Sequence[Pair], *, base: Version, rule: Rule, command: str) -> Gated:
    """Check, count and time both sides of implementations, and record the run.

    Raises: GateError where a base cannot be loaded; PluginError where a new side cannot be loaded.
    """
    operators = sorted({_load(session, pair, base) for pair in pairs})
    checking = make_conform_job(job)
    listed = plan_conformance(session, checking, operators)
    timed = _plan_timed(session, job, operators)
    news = {pair.new: describe_version(Path(pair.new.partition(" @ ")[2]), WORKING_TREE) for pair in pairs}
    versions = {pair.base: base for pair in pairs} | news
    kept = {pair.name: read_kept(session, checking, pair.base, base, listed) for pair in pairs}
    sides = [side for pair in pairs for side in pair.sides]
    left = [side for pair in pairs for side in pair.sides[bool(kept[pair.name]) :]]
    checks = {side: plan_checks(session, checking, [side], listed) for side in left}
    own = {
        pair.name: [plan for plan in timed if plan.operator == session.declared[pair.new].operator] for pair in pairs
    }
    effort, rule = plan_effort(job, rule, sum(map(len, own.values())))
    with record(
        session, job=job, suite=checking.suite, cases=[plan.case for plan in (*listed, *timed)], implementations=sides,
        planned=count_planned(session, sides, Checks(plans=listed), timed, effort=effort), command=command,
    ) as recorded:  # fmt: skip
        for pair in pairs:
            for one in kept[pair.name]:
                recorded.add(replace(one, run=recorded.run.id, implementation=pair.shown[0]))
        conform_sides(recorded, session, checking, checks, versions)
        changes: list[Change] = []
        untimed = 0
        for pair in pairs:
            timed_here = own[pair.name]
            measured = time_sides(recorded, session, pair.sides, timed_here, effort) if timed_here else []
            common = _pair_results(recorded, pair)
            cases = [plan.case for plan in timed_here]
            unfit = frozenset(case for case in cases if case not in common or _is_unfit(*common[case]))
            untimed += len(unfit) if "slower" in rule.fail_on else 0
            found = [*_compare_checks(common, frozenset(cases)), *refine(measured, rule, unfit)]
            changes += [replace(one, implementation=pair.name) for one in found]
        outcome = conclude(
            changes, rule, versions=(base, next(iter(news.values()))), implementations=[pair.name for pair in pairs],
            kept=[name for name, results in kept.items() if results], untimed=untimed,
            unchecked=[pair.name for pair in pairs if not _has_passed(recorded, pair)],
        )  # fmt: skip
        recorded.exit_code = outcome.exit_code
    return Gated(outcome=outcome, changes=changes, recorded=recorded)


def _load(session: Session, pair: Pair, base: Version) -> str:
    """Load both sides, each alone and then both in one process, and return their operator."""
    session.workers.get([pair.new]).close()
    try:
        session.workers.get([pair.base]).close()
        return load_sides(session, pair.sides)
    except PluginError as error:
        folder = pair.base.partition(" @ ")[2]
        told = str(error).replace(f" @ {folder}", "").replace(folder, base.label)
        raise GateError(
            f"--base: {base.label} cannot be used: {told}; where it must be built first, build it in a checkout of its "
            "own and name that folder: --base PATH"
        ) from error


def _plan_timed(session: Session, job: GateJob, operators: Sequence[str]) -> list[Plan]:
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
    # A verdict needs so many processes: the smallest of n ratios is above the median with a probability of 2 ** -n.
    fewest = math.ceil(math.log2(1 / level)) + SPARE
    default = Effort(
        processes=fewest, most=fewest + ADDED, budget_s=BUDGET_S, effect=rule.slower, level=level, seeks_slower=True
    )
    effort = choose_effort(default, job)
    return effort, msgspec.structs.replace(rule, comparisons=comparisons, looks=effort.looks, level=level)


def _pair_results(recorded: Recording, pair: Pair) -> dict[str, tuple[Result, Result]]:
    """Return the results of both sides on each case that both have, the base's first."""
    base, new = pair.shown
    by_case = {case: one for (name, case), one in recorded.results.items() if name == base}
    own = ((case, one) for (name, case), one in recorded.results.items() if name == new)
    return {case: (by_case[case], one) for case, one in own if case in by_case}


def _compare_checks(common: Mapping[str, tuple[Result, Result]], timed: frozenset[str]) -> Iterator[Change]:
    """Yield what became wrong, was mended or was lost; of the timed cases, only what was lost is not told elsewhere."""
    for case, (old, now) in common.items():
        if case not in timed:
            yield from compare_findings(old, now)
        yield from find_lost(old, now)


def _is_unfit(old: Result, now: Result) -> bool:
    """Whether no times are expected: a side fails its checks or refuses the case, or the base must not be timed."""
    fails = any(finding.status != "passed" for finding in (*old.findings, *now.findings))
    return fails or isinstance(old.untimed, TypedRefusal)


def _has_passed(recorded: Recording, pair: Pair) -> bool:
    own = (result for (name, _), result in recorded.results.items() if name == pair.shown[1])
    return any(finding.status in ("passed", "expected_failure") for result in own for finding in result.findings)
