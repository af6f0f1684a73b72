"""A forecast of the time that a profile takes, from the sizes of its cases and numbers measured on one machine."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.cases import CaseId
from attnbench.runner.parallelism import count_parallel_lanes
from attnbench.runner.session import Plan
from attnbench.runner.timing import EVALUATED, SMALL_FLOP
from attnbench.runner.timing_processes import STARTS, Effort

__all__ = ["Forecast", "forecast", "forecast_case"]

# Rough numbers for two cores of a server CPU. Another machine differs from them by its speed, and busy ones are slower.
# Time of a call: seconds, and operations per second and thread. Both are means over fast and slow implementations.
CALL_S, CALL_FLOP_PER_S = 5e-4, 4e10
# Seconds for the start of a worker that probes one implementation, and of ``STARTS`` timing processes together.
WORKER_S, STARTS_S = 1.5, 3.0
# Seconds to measure the ceilings of one dtype, with the start of the process.
CEILING_S = 3.0
# Time to probe one implementation on one case: seconds, and a number of calls. The oracle's evaluation, in float64, is
# part of the calls.
PROBE_S, PROBE_CALLS = 0.1, 60.0
# Time of one implementation in one process on one case, apart from the samples: seconds, and a number of calls.
SETUP_S, SETUP_CALLS = 0.03, 8.0
# Smallest number of samples of an implementation in one process.
FEWEST_CALLS = 7.0
# Time of the oracle to evaluate the judged calls of one implementation in one process, as a number of calls.
JUDGED_CALLS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a profile will time, and about how long it takes."""

    cases: int
    implementations: int
    # Seconds with the planned processes, and with as many processes as may be added.
    planned_s: float
    most_s: float


def forecast(plans: Sequence[Plan], operators: Sequence[str], effort: Effort, *, threads: int) -> Forecast:
    """Forecast the time to probe and to time these cases; ``operators`` has the operator of each implementation."""
    left = [plan for plan in plans if plan.missing is None]
    most = max(effort.processes, effort.most or 0)
    before_s = CEILING_S * len({(CaseId.parse(plan.case).dtype, CaseId.parse(plan.case).device) for plan in left})
    probed_s = sum(operators.count(plan.operator) * _probe_s(plan, threads) for plan in left)
    before_s += (len(operators) * WORKER_S + probed_s) / count_parallel_lanes(left)
    planned_s, most_s = (
        before_s
        + STARTS_S * math.ceil(processes / STARTS)
        + sum(_time_s(plan, operators.count(plan.operator), processes, effort, threads) for plan in left)
        for processes in (effort.processes, most)
    )
    return Forecast(cases=len(plans), implementations=len(operators), planned_s=planned_s, most_s=most_s)


def forecast_case(plan: Plan, implementations: int, effort: Effort, *, threads: int) -> float:
    """Forecast the seconds that one case adds to a profile of this many implementations of its operator."""
    return implementations * _probe_s(plan, threads) + _time_s(plan, implementations, effort.processes, effort, threads)


def _call_s(plan: Plan, threads: int) -> float:
    return CALL_S + plan.flop / (CALL_FLOP_PER_S * threads)


def _probe_s(plan: Plan, threads: int) -> float:
    return PROBE_S + PROBE_CALLS * _call_s(plan, threads)


def _time_s(plan: Plan, implementations: int, processes: int, effort: Effort, threads: int) -> float:
    """Return the seconds to time a case in this number of processes."""
    if not implementations:
        return 0.0
    call_s = _call_s(plan, threads)
    sampled_s = max(effort.budget_s, FEWEST_CALLS * implementations * call_s)
    once_s = sampled_s + implementations * (SETUP_S + SETUP_CALLS * call_s)
    evaluated = processes if plan.flop <= SMALL_FLOP else min(EVALUATED, processes)
    total_s = processes * once_s + evaluated * implementations * JUDGED_CALLS * call_s
    # The first process is not limited.
    return total_s if effort.case_s is None else min(total_s, max(effort.case_s, total_s / processes))
