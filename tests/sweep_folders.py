"""Folders of sweeps with results that no process made, for tests of plans, states and progress."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from attnbench.records.run_file import format_line
from attnbench.records.types import End, Finding, Machine, Planned, Result, Run, StoredJob
from attnsweep import configuration
from attnsweep.plan import SweepPlan, Task, write_plan
from attnsweep.task import find_own_versions
from attnsweep.tries import Outcome, Try, find_record

__all__ = ["case_of", "make_plan", "make_try", "write_run", "write_sweep"]

OPTIONS = {
    "suite": "quick", "timeout": 120.0, "memory_limit": None, "work_limit": None, "threads": None, "no_cache": True,
    "processes": None, "case_budget": None,
}  # fmt: skip


def case_of(length: int) -> str:
    """Return the id of a small case."""
    return f"multihead/B1.L{length}.S{length}.E16.H2/bias/mask=none/regime=plain/seed=0/float32/cpu/eval"


def make_plan(*tasks: Sequence[int], **fields: object) -> SweepPlan:
    """Return the plan of a conform sweep of sdpa and torch_mha; each task has the cases of these lengths."""
    made = [
        Task(machine="any", number=number, cases=tuple(map(case_of, lengths)), estimate_s=1.0)
        for number, lengths in enumerate(tasks, start=1)
    ]
    plan = SweepPlan(
        kind="conform", operators={"torch_mha": "multihead", "sdpa": "multihead"}, options=OPTIONS,
        versions=find_own_versions(), allow_different_versions=False,
        machines=(configuration.Machine(name="any"),), minutes=5, tries=3, tasks=tuple(made), origin="a test",
    )  # fmt: skip
    return msgspec.structs.replace(plan, **fields)


def write_sweep(folder: Path, *tasks: Sequence[int], **fields: object) -> SweepPlan:
    """Write the plan of ``make_plan`` into a folder, and return it."""
    plan = make_plan(*tasks, **fields)
    write_plan(folder, plan)
    return plan


def make_try(
    folder: Path, plan: SweepPlan, task: Task, outcome: Outcome | None, *, job: str = "1", count: int = 1
) -> Path:
    """Write the record of a try; return the path of its run file."""
    made = Try(
        plan=plan.hash, machine=task.machine, number=task.number, count=count, job=job, node="", versions={},
        started="2026-01-01T00:00:00+00:00", outcome=outcome, reason="it broke" if outcome == "failed" else "",
    )  # fmt: skip
    path = find_record(folder, task, count)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(made))
    return path.with_suffix(".jsonl")


def write_run(
    path: Path,
    lengths: Sequence[int],
    *,
    names: Sequence[str] = ("torch_mha", "sdpa"),
    took_s: int = 10,
    untimed: str | None = None,
    left: Sequence[tuple[str, int]] = (),
    hardware: str = "some-cpu",
) -> None:
    """Write a run file with a result of each implementation on the cases of these lengths, except for those ``left``.

    ``left`` has implementations and lengths.
    """
    pairs = [(name, length) for length in lengths for name in names if (name, length) not in left]
    run = Run(
        id=path.stem, time="2026-01-01T00:00:00+00:00", command="attnbench sweep", suite="quick", threads=2,
        machine=Machine(name=hardware, cpu="Some CPU", cores=4, memory_bytes=2**33), versions={},
        job=StoredJob(planned={name: Planned(cases=sum(one == name for one, _ in pairs)) for name in names}),
        list_digest="whole", implementations=("torch_mha", "sdpa"),
    )  # fmt: skip
    finding = Finding(check="forward_parity", status="passed")
    results = [
        Result(
            run=run.id,
            implementation=name,
            case=case_of(length),
            findings=(finding,),
            suite="quick",
            flop=1000,
            untimed=untimed,
        )
        for name, length in pairs
    ]
    end = End(run=run.id, time=f"2026-01-01T00:00:{took_s}+00:00", outcome="finished", exit_code=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(format_line, [run, *results, end])))
