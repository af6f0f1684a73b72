"""Making the plan of a sweep: its cases, as ``conform`` and ``profile`` list them, divided into tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnbench.api.axes import Axes
from attnbench.api.defaults import EFFORTS, LENGTHS, QUICK_LENGTHS
from attnbench.api.jobs import Choice, choose_effort, make_session, plan_conformance, plan_profile
from attnbench.api.subjects import (
    choose_implementations,
    choose_timed_implementations,
    drop_unloadable,
    find_operators,
)
from attnbench.api.usage import UsageError
from attnbench.cases import CaseId
from attnbench.records.environment import count_cores, describe_machine
from attnbench.runner import Plan, Session
from attnbench.words.findings import describe_fact
from attnsweep.configuration import Machine
from attnsweep.estimates import make_estimates, read_earlier_runs
from attnsweep.plan import SweepPlan, Task, hash_asked, pack
from attnsweep.task import find_own_versions

__all__ = ["hash_configuration", "make_plan"]

# Options that a task needs; the others choose cases, which the plan has.
OF_A_TASK = ("suite", "timeout", "memory_limit", "work_limit", "threads", "no_cache", "processes", "case_budget")
# Options that may differ between the calls for one sweep.
OF_A_CALL = ("results", "earlier", "probe", "tries", "dry_run", "local", "status", "resume")


def hash_configuration(given: Mapping[str, Any], implementations: Sequence[str], machines: Sequence[Machine]) -> str:
    """Return a hash of what a sweep is asked to do; ``given`` has the values of the command's options."""
    asked = {name: value for name, value in given.items() if name not in OF_A_CALL}
    return hash_asked(asked, implementations, machines)


def make_plan(
    given: Mapping[str, Any], implementations: Sequence[str], machines: Sequence[Machine], words: Sequence[str] = ()
) -> SweepPlan:
    """Plan a sweep; ``given`` has the values of the command's options, by parameter name.

    ``words`` are those of the command, which the runs of its tasks store.

    Raises: UsageError where the options choose no case, or exclude one another; PluginError where an implementation
    cannot be loaded here.
    """
    kind = given["kind"]
    effort = choose_effort(EFFORTS[given["suite"]], given)
    with make_session(given) as session:
        chosen, plans = _list_cases(session, given, implementations)
        operators = {name: session.declared[name].operator for name in chosen}
        moved = [_move(plans, machine.device or given["device"]) for machine in machines]
        if given["local"]:
            _require_devices(session, [plan.case for own in moved for plan in own])
    earlier = read_earlier_runs([given["earlier"], given["results"]], kind)
    tasks: list[Task] = []
    origins: dict[str, str] = {}
    for machine, own in zip(machines, moved, strict=True):
        estimates = make_estimates(
            own, list(operators.values()), machine=machine, kind=kind, effort=effort,
            threads=given["threads"] or machine.cpus or count_cores(), earlier=earlier,
            here=describe_machine().name if given["local"] else None,
        )  # fmt: skip
        origins[machine.name] = estimates.origin
        tasks += pack(
            estimates.cases, machine=machine.name, minutes=given["minutes"], most=given["cases"],
            start_s=estimates.start_s,
        )  # fmt: skip
    return SweepPlan(
        kind=kind,
        operators=operators,
        options={name: given[name] for name in OF_A_TASK},
        versions=find_own_versions(),
        allow_different_versions=given["allow_different_versions"],
        machines=tuple(machines),
        minutes=given["minutes"],
        tries=given["tries"],
        tasks=tuple(tasks),
        origin=_join_origins(origins),
        asked=hash_configuration(given, implementations, machines),
        words=tuple(words),
    )


def _join_origins(origins: Mapping[str, str]) -> str:
    """Return where the estimates are from: of all machines together, or of each one if they differ."""
    if len(set(origins.values())) == 1:
        return next(iter(origins.values()))
    return "; ".join(f"on {name}: {origin}" for name, origin in origins.items())


def _require_devices(session: Session, cases: Sequence[str]) -> None:
    """Refuse to run a case here if its device is missing.

    Raises: UsageError.
    """
    for case in {CaseId.parse(case).device: case for case in cases}.values():
        (plan,) = session.plan([case])
        if plan.missing and CaseId.parse(case).device != "cpu":
            raise UsageError(f"--local: {describe_fact(plan.missing)}")


def _list_cases(
    session: Session, given: Mapping[str, Any], implementations: Sequence[str]
) -> tuple[list[str], list[Plan]]:
    """Return the implementations that take part, and the cases, each on its own device.

    A submitting machine may lack the devices of the nodes.
    """
    choice = replace(Choice.from_options(given), device="cpu")
    chosen = choose_implementations(implementations)
    if given["kind"] == "conform":
        chosen = drop_unloadable(session, chosen, asked=bool(implementations))
        return chosen, plan_conformance(session, choice, find_operators(session, chosen), here=False)
    chosen = choose_timed_implementations(
        session, chosen, asked=bool(implementations), operators=given["operators"]
    )  # fmt: skip
    axes = Axes.from_options(given, lengths=QUICK_LENGTHS if given["suite"] == "quick" else LENGTHS)
    operators = find_operators(session, chosen)
    return chosen, plan_profile(session, choice, operators, axes=axes, passes=given["passes"])


def _move(plans: Sequence[Plan], device: str) -> list[Plan]:
    """Return the plans with their cases on a device; as with --device, "cpu" leaves each case on its own."""
    if device == "cpu":
        return list(plans)
    moved = {str(replace(CaseId.parse(plan.case), device=device)): plan for plan in plans}
    return [replace(plan, case=case) for case, plan in moved.items()]
