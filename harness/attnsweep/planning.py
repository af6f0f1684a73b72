"""Making the plan of a sweep: its cases, as ``conform`` and ``profile`` list them, divided into tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnbench.api.execution import EFFORTS, choose_effort, make_session, plan_conformance, plan_profile
from attnbench.api.selection import (
    choose_implementations,
    choose_timed_implementations,
    drop_unloadable,
    find_operators,
)
from attnbench.cases import CaseId
from attnbench.jobs.errors import JobError
from attnbench.jobs.job import ConformJob, ProfileJob
from attnbench.jobs.stored import store_job
from attnbench.records.environment import count_cores, describe_machine
from attnbench.runner import Plan, Session
from attnbench.words.findings import describe_fact
from attnsweep.configuration import Machine
from attnsweep.estimates import make_estimates, read_earlier_runs
from attnsweep.plan import SweepPlan, Task, hash_asked, pack
from attnsweep.sweep_job import SweepJob
from attnsweep.task import find_own_versions

__all__ = ["hash_configuration", "make_plan"]

# Values that a task needs, by their names in a run file; the others choose cases, which the plan has.
OF_A_TASK = ("suite", "timeout", "memory_limit", "work_limit", "threads", "no_cache", "processes", "case_budget")


def hash_configuration(sweep: SweepJob, machines: Sequence[Machine]) -> str:
    """Return a hash of what a sweep is asked to do."""
    return hash_asked(sweep.list_asked(), sweep.job.implementations, machines)


def make_plan(sweep: SweepJob, machines: Sequence[Machine], words: Sequence[str] = ()) -> SweepPlan:
    """Plan a sweep.

    ``words`` are those of the command, which the runs of its tasks store.

    Raises: JobError where the job chooses no case; PluginError where an implementation cannot be loaded here.
    """
    kind, job = sweep.kind, sweep.job
    effort = EFFORTS[job.suite]
    if isinstance(job, ProfileJob):
        effort = choose_effort(effort, job)
    with make_session(job) as session:
        chosen, plans = _list_cases(session, job)
        operators = {name: session.declared[name].operator for name in chosen}
        moved = [_move(plans, machine.device or job.device) for machine in machines]
        if sweep.is_local:
            _require_devices(session, [plan.case for own in moved for plan in own])
    earlier = read_earlier_runs([sweep.earlier, job.results], kind)
    tasks: list[Task] = []
    origins: dict[str, str] = {}
    for machine, own in zip(machines, moved, strict=True):
        estimates = make_estimates(
            own, list(operators.values()), machine=machine, kind=kind, effort=effort,
            threads=job.threads or machine.cpus or count_cores(), earlier=earlier,
            here=describe_machine().name if sweep.is_local else None,
        )  # fmt: skip
        origins[machine.name] = estimates.origin
        tasks += pack(
            estimates.cases, machine=machine.name, minutes=sweep.minutes, most=sweep.most_cases,
            start_s=estimates.start_s,
        )  # fmt: skip
    return SweepPlan(
        kind=kind,
        operators=operators,
        options={name: value for name, value in store_job(job).options.items() if name in OF_A_TASK},
        versions=find_own_versions(),
        allow_different_versions=sweep.allow_different_versions,
        machines=tuple(machines),
        minutes=sweep.minutes,
        tries=sweep.tries or 1,
        tasks=tuple(tasks),
        origin=_join_origins(origins),
        asked=hash_configuration(sweep, machines),
        words=tuple(words),
    )


def _join_origins(origins: Mapping[str, str]) -> str:
    """Return where the estimates are from: of all machines together, or of each one if they differ."""
    if len(set(origins.values())) == 1:
        return next(iter(origins.values()))
    return "; ".join(f"on {name}: {origin}" for name, origin in origins.items())


def _require_devices(session: Session, cases: Sequence[str]) -> None:
    """Refuse to run a case here if its device is missing.

    Raises: JobError.
    """
    for case in {CaseId.parse(case).device: case for case in cases}.values():
        (plan,) = session.plan([case])
        if plan.missing and CaseId.parse(case).device != "cpu":
            raise JobError("local", "{fact}", fact=describe_fact(plan.missing))


def _list_cases(session: Session, job: ConformJob | ProfileJob) -> tuple[list[str], list[Plan]]:
    """Return the implementations that take part, and the cases, each on its own device.

    A submitting machine may lack the devices of the nodes.
    """
    job = replace(job, device="cpu")
    chosen = choose_implementations(job.implementations)
    asked = bool(job.implementations)
    if isinstance(job, ConformJob):
        chosen = drop_unloadable(session, chosen, asked=asked)
        return chosen, plan_conformance(session, job, find_operators(session, chosen), here=False)
    chosen = choose_timed_implementations(session, chosen, asked=asked, operators=job.operators)
    return chosen, plan_profile(session, job, find_operators(session, chosen))


def _move(plans: Sequence[Plan], device: str) -> list[Plan]:
    """Return the plans with their cases on a device; as with --device, "cpu" leaves each case on its own."""
    if device == "cpu":
        return list(plans)
    moved = {str(replace(CaseId.parse(plan.case), device=device)): plan for plan in plans}
    return [replace(plan, case=case) for case, plan in moved.items()]
