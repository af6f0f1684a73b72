"""A forecast of the time that a profile takes: from the work of its cases and the measured rates of the machine.

docs/evidence.md compares forecasts with the times that profiles took.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attnbench.cases import CaseId
from attnbench.records.types import find_pass
from attnbench.runner.parallelism import count_parallel_lanes
from attnbench.runner.session import Plan
from attnbench.runner.timing import EVALUATED, GROUP_S, SMALL_FLOP
from attnbench.runner.timing_processes import STARTS, Effort

__all__ = ["Forecast", "Speed", "forecast", "forecast_case"]

# Time of a call of each pass: seconds, and a multiple of the time that the highest rate of a matrix product allows.
# Both are means over implementations. In the runs of results/full and results/example, the multiple is 1.1 to 2.4 in
# float32 and 2.4 to 5 in bfloat16, and a short call takes 0.4 to 0.6 ms, with backward 1.1 to 2.3 ms.
CALL_S = {"forward": 5e-4, "forward+backward": 1.5e-3}
CALL_RATIO = 2.0
# The rate of a dtype and device that was not measured: operations per second and thread. Two threads of an AMD EPYC
# reach 1.1e11 to 2.0e11 in float32.
FLOP_PER_S = 8e10
# Seconds of processor time to start a worker that probes one implementation, with what the first case costs besides
# calls. While one worker starts, another one works.
WORKER_S = 3.5
# Seconds to start ``STARTS`` timing processes together.
STARTS_S = 3.0
# Time to probe one implementation on one case: seconds, and calls of the forward and of both passes. The calls were
# counted.
PROBE_S = 0.1
PROBE_CALLS = {"forward": 7, "forward+backward": 11}
# Time of one implementation in one process on one case, apart from the samples: seconds, and a number of calls.
SETUP_S, SETUP_CALLS = 0.03, 4.0
# Smallest number of samples of an implementation in one process. The reference's copy has as many.
FEWEST_CALLS = 5.0
# Expected values of a case: seconds, evaluations of the formula besides the runs of the rounding model, and operations
# per second and thread in float64 with rounding noise. Measured by processor time on one core of an Intel Xeon, which
# multiplies matrices in float64 at 7.5e10 operations per second.
ORACLE_S, ORACLE_EVALUATIONS, ORACLE_FLOP_PER_S = 0.03, 3, 1.8e10


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What a forecast knows of the machine."""

    threads: int
    # Measured operations per second of a matrix product, by device and dtype.
    flop_per_s: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def estimate_call_s(self, plan: Plan) -> float:
        """Return the mean time of a call over implementations."""
        case = CaseId.parse(plan.case)
        rate = self.flop_per_s.get((case.device, case.dtype), FLOP_PER_S * self.threads)
        return CALL_S[find_pass(plan.case)] + CALL_RATIO * plan.flop / rate

    def estimate_oracle_s(self, plan: Plan) -> float:
        """Return the time to compute the expected values of a case once."""
        evaluations = ORACLE_EVALUATIONS + plan.model_runs
        return ORACLE_S + evaluations * plan.flop / (ORACLE_FLOP_PER_S * self.threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """About how long a profile takes, in seconds: with the planned processes, and with as many as may be added."""

    planned_s: float
    most_s: float


def forecast(
    plans: Sequence[Plan], timed: Mapping[str, int], effort: Effort, *, implementations: int, speed: Speed
) -> Forecast:
    """Forecast the time to probe and to time these cases.

    ``timed`` has the number of implementations that are timed on each case, by the id of the case; ``implementations``
    is the number of those that are loaded.
    """
    left = [plan for plan in plans if plan.missing is None]
    lanes = count_parallel_lanes(plans)
    before_s = implementations * WORKER_S / max(lanes, 2)
    before_s += sum(_probe_s(plan, timed[plan.case], speed, lanes) for plan in left)
    groups = math.ceil(len(left) * effort.budget_s / GROUP_S)
    planned_s, most_s = (
        before_s
        + STARTS_S * groups * (1 + math.ceil(processes / STARTS))
        + sum(_time_s(plan, timed[plan.case], processes, effort, speed) for plan in left)
        for processes in (effort.processes, max(effort.processes, effort.most or 0))
    )
    return Forecast(planned_s=planned_s, most_s=most_s)


def forecast_case(plan: Plan, implementations: int, effort: Effort, *, speed: Speed) -> float:
    """Forecast the seconds that one case adds to a profile in which this many implementations are timed on it."""
    return _probe_s(plan, implementations, speed, 1) + _time_s(plan, implementations, effort.processes, effort, speed)


def _probe_s(plan: Plan, implementations: int, speed: Speed, lanes: int) -> float:
    """Return the seconds to check a case and to measure its memory; ``lanes`` implementations run at a time."""
    if not implementations:
        return 0.0
    calls_s = PROBE_CALLS[find_pass(plan.case)] * speed.estimate_call_s(plan)
    return speed.estimate_oracle_s(plan) + implementations * (PROBE_S + calls_s) / lanes


def _time_s(plan: Plan, implementations: int, processes: int, effort: Effort, speed: Speed) -> float:
    """Return the seconds to time a case in this number of processes."""
    if not implementations:
        return 0.0
    call_s = speed.estimate_call_s(plan)
    sampled_s = max(effort.budget_s, FEWEST_CALLS * (implementations + 1) * call_s)
    once_s = sampled_s + implementations * (SETUP_S + SETUP_CALLS * call_s)
    evaluated = processes if plan.flop <= SMALL_FLOP else min(EVALUATED, processes)
    # In one process, the judged calls of all implementations have the same values, and so the same expected values.
    total_s = processes * once_s + evaluated * speed.estimate_oracle_s(plan)
    # The first process is not limited.
    return total_s if effort.case_s is None else min(total_s, max(effort.case_s, total_s / processes))
