"""How long the cases of a sweep take: a forecast, corrected by earlier runs on the same kind of machine."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from attnbench.cases import CaseId
from attnbench.records.run_file import ResultsError, read_first_line, read_lines
from attnbench.records.types import PERF
from attnbench.runner import Effort, Plan, Speed, forecast, forecast_case
from attnsweep.configuration import ConfigurationError, Kind, Machine
from attnsweep.plan import read_plan
from attnsweep.tries import TASKS

__all__ = ["EarlierRun", "Estimates", "make_estimates", "read_earlier_runs"]

# Seconds to check one implementation on one case of the suite quick, and the start of a run, on two cores of an AMD
# EPYC: attnbench conform sdpa batched_matmul --suite quick --no-cache took 7 s for 60 results, of which the start is
# about 4 s.
CHECK_S, CHECK_START_S = 0.1, 4.0
# Most run files of one folder that are read, newest first: the mean over more changes little.
FILES = 20
# Folders of run files below a folder of results, and below the folder of a sweep.
PATTERNS = ("*/*.jsonl", f"{TASKS}/*/*.jsonl")


class EarlierRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that finished, and how long it took."""

    # Name of the hardware, and the kind of machine if the run is of a sweep.
    hardware: str
    machine: Machine | None
    device: str
    threads: int
    seconds: float
    # Number of implementations and number of floating-point operations of each case.
    cases: dict[str, tuple[int, int]]


class Estimates(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each case, of the start of a task, and where the numbers are from."""

    cases: dict[str, float]
    start_s: float
    origin: str


class _Line(msgspec.Struct):
    """The fields of a record that the time of a run depends on."""

    record: str = ""
    suite: str = ""
    case: str = ""
    implementation: str = ""
    flop: int | None = None
    time: str = ""
    outcome: str = ""


_LINE = msgspec.json.Decoder(_Line)


def read_earlier_runs(folders: Sequence[Path], kind: Kind) -> list[EarlierRun]:
    """Return runs of this kind in folders of results and of sweeps; runs that did not finish are left out."""
    by_folder: defaultdict[Path, set[Path]] = defaultdict(set)
    for path in (path for folder in folders for pattern in PATTERNS for path in folder.glob(pattern)):
        by_folder[path.parent].add(path)
    found: list[EarlierRun | None] = []
    for folder, paths in sorted(by_folder.items()):
        machine = _find_machine(folder)
        newest = sorted(paths, key=lambda path: path.stem, reverse=True)[:FILES]
        found += [_read_run(path, kind, machine) for path in newest]
    return [run for run in found if run is not None]


def _find_machine(folder: Path) -> Machine | None:
    """Return the kind of machine whose tasks are in a folder; None if the folder is not of a sweep."""
    if folder.parent.name != TASKS:
        return None
    try:
        plan = read_plan(folder.parent.parent)
    except ConfigurationError:
        return None
    return next((machine for machine in plan.machines if machine.name == folder.name), None)


def _read_run(path: Path, kind: Kind, machine: Machine | None) -> EarlierRun | None:
    """Return the run of a file; None if it is of another kind, has several devices, or did not finish."""
    names: defaultdict[str, set[str]] = defaultdict(set)
    flops: dict[str, int] = {}
    end = _Line()
    try:
        run = read_first_line(path)
        if run.parts:  # merged: its parts may have run at the same time
            return None
        for _, line in read_lines(path):
            end = _LINE.decode(line)
            if end.record == "result":
                if (end.suite == PERF) != (kind == "profile"):
                    return None
                names[end.case].add(end.implementation)
                flops[end.case] = end.flop or 0
        devices = {CaseId.parse(case).device for case in names}
    except (ResultsError, msgspec.MsgspecError, ValueError):
        return None
    seconds = _measure_s(run.time, end)
    if seconds is None or len(devices) != 1:
        return None
    return EarlierRun(
        hardware=run.machine.name, machine=machine, device=devices.pop(), threads=run.threads, seconds=seconds,
        cases={case: (len(names[case]), flops[case]) for case in names},
    )  # fmt: skip


def _measure_s(begin: str, end: _Line) -> float | None:
    """Return the seconds that a run took; None if its last record is not the end of a run that finished."""
    if (end.record, end.outcome) != ("end", "finished"):
        return None
    try:
        taken = datetime.fromisoformat(end.time) - datetime.fromisoformat(begin)
    except ValueError:
        return None
    return max(taken.total_seconds(), 1.0)


def make_estimates(
    plans: Sequence[Plan],
    operators: Sequence[str],
    *,
    machine: Machine,
    kind: Kind,
    effort: Effort,
    threads: int,
    earlier: Sequence[EarlierRun],
    here: str | None = None,
) -> Estimates:
    """Estimate the seconds of each case; ``operators`` has the operator of each implementation.

    The forecast is multiplied by a factor: the time that earlier runs took, divided by their forecast. The runs are
    those on the same kind of machine if there are any, else all on the same device. ``here`` is the name of this
    machine's hardware if the tasks will run on it.
    """
    seconds = {plan.case: _forecast_s(plan, operators.count(plan.operator), kind, effort, threads) for plan in plans}
    start_s = CHECK_START_S
    if kind == "profile" and plans:
        first = plans[0]
        timed = {str(place): [first.case] * (own == first.operator) for place, own in enumerate(operators)}
        alone_s = forecast([first], timed, effort, speed=Speed(threads=threads)).planned_s
        start_s = max(alone_s - seconds[plans[0].case], CHECK_START_S)
    device = CaseId.parse(plans[0].case).device if plans else ""
    runs, where = _choose_runs(earlier, machine, device, here)
    factor = _find_factor(runs, start_s, lambda plan, count, own: _forecast_s(plan, count, kind, effort, own))
    if factor is None:
        why = "earlier runs took no longer than their start" if runs else "no earlier run of this kind was found"
        factor, origin = 1.0, f"a forecast for two cores of a server CPU, since {why}"
    else:
        origin = f"a forecast times {factor:.2g}, from {len(runs)} earlier run{'s' * (len(runs) != 1)} {where}"
    return Estimates(cases={case: one * factor for case, one in seconds.items()}, start_s=start_s, origin=origin)


def _forecast_s(plan: Plan, implementations: int, kind: Kind, effort: Effort, threads: int) -> float:
    if kind == "conform":
        return implementations * CHECK_S
    return forecast_case(plan, implementations, effort, speed=Speed(threads=threads))


def _choose_runs(
    earlier: Sequence[EarlierRun], machine: Machine, device: str, here: str | None
) -> tuple[list[EarlierRun], str]:
    """Return the runs whose times count for a kind of machine, and where they ran, in words."""
    alike = [run for run in earlier if run.device == device]
    hardware = {here} if here else {run.hardware for run in alike if _is_same_kind(run.machine, machine)}
    own = [run for run in alike if run.hardware in hardware]
    if own:
        return own, "on this machine" if here else "on this kind of machine"
    return alike, "on other machines"


def _is_same_kind(one: Machine | None, other: Machine) -> bool:
    """Return whether Slurm chooses the same nodes for two kinds of machine."""
    return one is not None and all(
        getattr(one, name) == getattr(other, name) for name in ("constraint", "gres", "partition")
    )


def _find_factor(
    runs: Sequence[EarlierRun], start_s: float, forecast_one: Callable[[Plan, int, int], float]
) -> float | None:
    """Return the time of earlier runs divided by their forecast; None without a run."""
    taken_s = sum(max(run.seconds - start_s, 0.0) for run in runs)
    forecast_s = sum(forecast_one(plan, count, run.threads) for run in runs for plan, count in _list_plans(run))
    return taken_s / forecast_s if forecast_s and taken_s else None


def _list_plans(run: EarlierRun) -> Iterator[tuple[Plan, int]]:
    """Yield each case of a run and the number of its implementations."""
    for case, (count, flop) in run.cases.items():
        yield Plan(case=case, checks=(), missing=None, flop=flop), count
