"""A forecast of the time that a profile takes: from the work of its cases and the measured rates of the machine.

The constants of starting, probing and setting up were read from the logs of profiles on two cores of an Intel Xeon.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from attnbench.cases import CaseId
from attnbench.devices import HOST
from attnbench.records.types import find_pass
from attnbench.runner.parallelism import count_parallel_lanes
from attnbench.runner.session import Plan
from attnbench.runner.timing import EVALUATED, GROUP_S, SMALL_FLOP
from attnbench.runner.timing_processes import STARTS, Effort

__all__ = ["Forecast", "Speed", "forecast", "forecast_case"]

# Mean time of a call over implementations, by pass: seconds; a multiple of the time that the highest rate of a matrix
# product allows; and seconds of one thread for each query-key pair, whose logit is scaled, exponentiated and summed.
# With these numbers, the means of the runs in results/full and of an older example were met within a factor of 1.7, in
# float32 and bfloat16, with one thread and two.
CALL_S = {"forward": 5e-4, "forward+backward": 1.5e-3}
CALL_RATIO = 1.2
CALL_PAIR_S = {"forward": 6e-9, "forward+backward": 1e-8}
# The rate of a dtype and device that was not measured: operations per second and thread. Two threads of an AMD EPYC
# reach 1.1e11 to 2.0e11 in float32.
FLOP_PER_S = 8e10
# Seconds to start a worker that probes one implementation, with what the first case costs besides calls. While one
# worker starts, another one works, so at least two share this time.
WORKER_S = 3.5
# Seconds to start ``STARTS`` timing processes together, and to end them; and to start the process that times the
# reference alone.
STARTS_S, ALONE_S = 5.5, 3.0
# Time to probe one implementation on one case: seconds, and a number of calls. There are 7 calls, or 11 with backward;
# those whose memory is measured take longer.
PROBE_S = 0.1
PROBE_CALLS = {"forward": 14, "forward+backward": 22}
# Time of one implementation in one process on one case, apart from the samples: seconds, and a number of calls.
SETUP_S, SETUP_CALLS = 0.05, 5.0
# Smallest number of samples of an implementation in one process. The reference's copy has as many.
FEWEST_CALLS = 6.0
# Seconds to compile one kind of call, or to read the compiled code in a further process.
COMPILE_S, COMPILED_S = 6.0, 4.3
# Expected values of a case: seconds, evaluations of the formula besides the runs of the rounding model, and operations
# per second and thread in float64 with rounding noise.
ORACLE_S, ORACLE_EVALUATIONS, ORACLE_FLOP_PER_S = 0.1, 3, 1e10
# Seconds to evaluate one judged call, apart from one evaluation of the formula.
JUDGING_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What a forecast knows of the machine."""

    threads: int
    # Measured operations per second of a matrix product, by device and dtype.
    flop_per_s: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def estimate_call_s(self, plan: Plan) -> float:
        """Return the mean time of a call over implementations."""
        case, pass_ = CaseId.parse(plan.case), find_pass(plan.case)
        rate = self.flop_per_s.get((case.device, case.dtype), FLOP_PER_S * self.threads)
        # The time of a pair was measured on CPUs only.
        pairs_s = CALL_PAIR_S[pass_] * plan.pairs / self.threads if case.device == HOST else 0.0
        return CALL_S[pass_] + CALL_RATIO * plan.flop / rate + pairs_s

    def estimate_oracle_s(self, plan: Plan) -> float:
        """Return the time to compute the expected values of a case once."""
        evaluations = ORACLE_EVALUATIONS + plan.model_runs
        return ORACLE_S + evaluations * plan.flop / (ORACLE_FLOP_PER_S * self.threads)

    def estimate_judging_s(self, plan: Plan) -> float:
        """Return the time to evaluate one judged call, whose values no other call has."""
        return JUDGING_S + plan.flop / (ORACLE_FLOP_PER_S * self.threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """About how long a profile takes, in seconds: with the planned processes, and with as many as may be added."""

    planned_s: float
    most_s: float


def forecast(
    plans: Sequence[Plan],
    timed: Mapping[str, Sequence[str]],
    effort: Effort,
    *,
    speed: Speed,
    compiling: Collection[str] = (),
) -> Forecast:
    """Forecast the time to probe and to time these cases.

    ``timed`` has the cases on which each loaded implementation is timed, by its name. ``compiling`` names the
    implementations that compile code.
    """
    counts = Counter(case for cases in timed.values() for case in cases)
    left = [plan for plan in plans if plan.missing is None]
    lanes = count_parallel_lanes(plans)
    before_s = len(timed) * WORKER_S / max(lanes, 2)
    before_s += COMPILE_S * sum(len(_find_kinds(timed[name])) for name in compiling)
    before_s += sum(_probe_s(plan, counts[plan.case], speed, lanes) for plan in left)
    groups = math.ceil(len(left) * effort.budget_s / GROUP_S)
    compiled_s = COMPILED_S * sum(bool(timed[name]) for name in compiling)
    planned_s, most_s = (
        before_s
        + groups * (ALONE_S + STARTS_S * math.ceil(processes / STARTS) + compiled_s * processes)
        + sum(_time_s(plan, counts[plan.case], processes, effort, speed) for plan in left)
        for processes in (effort.processes, max(effort.processes, effort.most or 0))
    )
    return Forecast(planned_s=planned_s, most_s=most_s)


def forecast_case(plan: Plan, implementations: int, effort: Effort, *, speed: Speed) -> float:
    """Forecast the seconds that one case adds to a profile in which this many implementations are timed on it."""
    return _probe_s(plan, implementations, speed, 1) + _time_s(plan, implementations, effort.processes, effort, speed)


def _find_kinds(cases: Sequence[str]) -> set[tuple[str, str, str]]:
    """Return the kinds of calls that are compiled apart: those of each device, dtype and mode."""
    return {(case.device, case.dtype, case.mode) for case in map(CaseId.parse, cases)}


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
    total_s = processes * once_s + evaluated * implementations * speed.estimate_judging_s(plan)
    # The first process is not limited.
    return total_s if effort.case_s is None else min(total_s, max(effort.case_s, total_s / processes))
