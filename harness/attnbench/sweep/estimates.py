"""How long the cases of a sweep take: a forecast, corrected by the times of earlier runs."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from attnbench.records.run_file import ResultsError, StoredRun, read_run
from attnbench.records.types import PERF
from attnbench.runner import Effort, Plan, Speed, forecast, forecast_case
from attnbench.sweep.configuration import Kind

__all__ = ["Estimates", "make_estimates"]

# Seconds to check one implementation on one case of the suite quick, and the start of a run, on two cores of an AMD
# EPYC: attnbench conform sdpa batched_matmul --suite quick --no-cache took 7 s for 60 results, of which the start is
# about 4 s.
CHECK_S, CHECK_START_S = 0.1, 4.0
# Most run files that are read for the correction, newest first: reading one takes about 0.1 s.
FILES = 50


class Estimates(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each case, of the start of a task, and where the numbers are from."""

    cases: dict[str, float]
    start_s: float
    origin: str


def make_estimates(
    plans: Sequence[Plan],
    operators: Sequence[str],
    *,
    kind: Kind,
    effort: Effort,
    threads: int,
    earlier: Sequence[Path],
) -> Estimates:
    """Estimate the seconds of each case; ``operators`` has the operator of each implementation.

    The forecast is multiplied by a factor: the time that earlier runs of this kind took, divided by their forecast.
    ``earlier`` has the folders of these runs.
    """
    speed = Speed(threads=threads)

    def forecast_one(plan: Plan, implementations: int) -> float:
        if kind == "conform":
            return implementations * CHECK_S
        return forecast_case(plan, implementations, effort, speed=speed)

    seconds = {plan.case: forecast_one(plan, operators.count(plan.operator)) for plan in plans}
    start_s = CHECK_START_S
    if kind == "profile" and plans:
        first = plans[0]
        timed = {str(place): [first.case] * (own == first.operator) for place, own in enumerate(operators)}
        alone_s = forecast([first], timed, effort, speed=speed).planned_s
        start_s = max(alone_s - seconds[plans[0].case], CHECK_START_S)
    factor, count = _find_factor(earlier, kind, start_s, forecast_one)
    if factor is None:
        origin = "a forecast for two cores of a server CPU, since no earlier run of this kind was found"
    else:
        origin = f"a forecast times {factor:.2g}, from {count} earlier run{'s' * (count != 1)}"
    return Estimates(
        cases={case: one * (factor or 1.0) for case, one in seconds.items()}, start_s=start_s, origin=origin
    )


def _find_factor(
    folders: Sequence[Path], kind: Kind, start_s: float, forecast_one: Callable[[Plan, int], float]
) -> tuple[float | None, int]:
    """Return the time of earlier runs divided by their forecast, and the number of runs; None without a run."""
    patterns = ("*/*.jsonl", "tasks/*/*.jsonl")
    paths = {path for folder in folders for pattern in patterns for path in folder.glob(pattern)}
    taken_s = forecast_s = 0.0
    count = 0
    for path in sorted(paths, key=lambda path: path.stem, reverse=True)[:FILES]:
        try:
            stored = read_run(path)
        except ResultsError:
            continue
        own = [result for result in stored.results if (result.suite == PERF) == (kind == "profile")]
        seconds = _measure_s(stored)
        if not own or len(own) < len(stored.results) or seconds is None:
            continue
        names: dict[str, set[str]] = {}
        flops = {}
        for result in own:
            names.setdefault(result.case, set()).add(result.implementation)
            flops[result.case] = result.flop or 0
        forecast_s += sum(
            forecast_one(Plan(case=case, checks=(), missing=None, flop=flops[case]), len(names[case])) for case in names
        )
        taken_s += max(seconds - start_s, 0.0)
        count += 1
    return (taken_s / forecast_s if forecast_s and taken_s else None), count


def _measure_s(stored: StoredRun) -> float | None:
    """Return the seconds that a run took; None if it did not finish."""
    if stored.end is None or stored.end.outcome != "finished":
        return None
    try:
        taken = datetime.fromisoformat(stored.end.time) - datetime.fromisoformat(stored.run.time)
    except ValueError:
        return None
    return max(taken.total_seconds(), 1.0)
