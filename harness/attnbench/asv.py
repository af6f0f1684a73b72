"""Benchmark classes for asv, for use in any repository.

    from attnbench.asv import benchmarks

    class Attention(benchmarks(["my_package.attention:MyAttention"], lengths=[128, 512])):
        pass

asv first calls ``setup_cache`` of the class, which measures all implementations together, with interleaved calls. asv
keeps the results in a cache. Each benchmark then reads one number from the cache. If an implementation failed or
refused a case, if the case was not started, or if other work disturbed its times, there is no number, and asv shows
n/a; ``asv run --show-stderr`` prints the reason.
"""

import math
import sys
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any, ClassVar

from attnbench.analysis.run_diff import count_kernel_calls
from attnbench.analysis.speed_verdict import Cause, NoVerdict, decide_speed, explain_disturbed_time
from attnbench.analysis.stats import Interval, median_of_processes, ratio
from attnbench.api.worker_pool import LocalSession
from attnbench.devices import HOST
from attnbench.plugins.registry import display_name
from attnbench.records.asv_file import PARAMETERS
from attnbench.records.types import Pass, Result
from attnbench.runner import Effort, Limits, measure_calls
from attnbench.words.findings import describe_reason
from attnbench.words.say import say
from attnbench.words.speed import explain_no_verdict

__all__ = ["benchmarks"]

Cache = dict[tuple[str, int, Pass, str, str], Result]
# Time limit in seconds of ``setup_cache``, which makes all measurements.
TIMEOUT_S = 1800.0
# Why a comparison gives no verdict where something else than the code made its times what they are.
SPOILED: frozenset[Cause] = frozenset({"disturbed", "delayed_launches", "throttled", "own_losses", "control"})
RATIO = "× the reference's time"
NO_INTERVAL = Interval(value=math.nan, low=math.nan, high=math.nan)
_NO_CASE = "{place}: its operator has no such case"
_MISSING = "{place}: {reason}"


def benchmarks(
    implementations: Sequence[str],
    lengths: Sequence[int],
    *,
    dtypes: Sequence[str] = (),
    masks: Sequence[str] = (),
    baseline: str = "torch_mha",
    processes: int = 3,
    budget_s: float = 0.2,
    intervals: bool = False,
) -> type:
    """Return a base class of asv benchmarks whose parameters are implementation, length and pass.

    With ``dtypes`` or ``masks`` (as of ``attnbench profile``), dtype and mask are parameters, too. They are measured on
    the CPU. A subclass with ``device = "cuda"`` measures on that device; where there is none, its numbers are n/a.
    Times are also given as ratios to the time of ``baseline``. Each case is timed in ``processes`` processes, with
    timed calls of ``budget_s`` seconds in each process. With ``intervals``, two more benchmarks have the ends of the
    confidence interval of the ratio, by which ``attnbench history`` finds a step at one commit.
    """
    names = list(dict.fromkeys([baseline, *implementations]))
    params: list[list[Any]] = [names, list(lengths), ["forward", "forward+backward"]]
    if dtypes or masks:
        dtypes, masks = dtypes or ("float32",), masks or ("none",)
        params += [list(dtypes), list(masks)]
    given = {
        "names": names, "lengths": list(lengths), "dtypes": list(dtypes), "masks": list(masks), "baseline": baseline,
        "effort": Effort(processes=processes, budget_s=budget_s), "params": params,
        "param_names": list(PARAMETERS[: len(params)]),
    }  # fmt: skip
    return type("Benchmarks", (_CallsWithIntervals if intervals else _Calls,), given)


class _Calls:
    """Benchmarks of calls; the class attributes say which calls are measured."""

    names: ClassVar[list[str]]
    lengths: ClassVar[list[int]]
    dtypes: ClassVar[list[str]]
    masks: ClassVar[list[str]]
    baseline: ClassVar[str]
    effort: ClassVar[Effort]
    device: ClassVar[str] = HOST
    timeout: ClassVar[float] = TIMEOUT_S

    def __init_subclass__(cls) -> None:
        """Give a class its own cache.

        asv makes one cache for all classes whose ``setup_cache`` is at the same line of the same module.
        """
        place = f"{cls.__module__}.{cls.__qualname__}"
        sys.modules.setdefault(place, ModuleType(place))
        made = cls.setup_cache
        own = FunctionType(made.__code__, made.__globals__, made.__name__, made.__defaults__, made.__closure__)
        own.__module__ = place
        cls.setup_cache = own  # type: ignore[method-assign]

    def setup_cache(self) -> Cache:
        # asv adds ASV_PYTHONPATH to the paths of this process only, and its workers need it, too.
        with LocalSession(limits=Limits()) as session:
            return measure_calls(
                session, self.names, self.lengths, self.effort, device=self.device, dtypes=self.dtypes,
                masks=self.masks,
            )  # fmt: skip

    def track_time_ns(self, cache: Cache, *call: Any) -> float:
        return _find_time_ns(_find(cache, *call))

    def track_time_ratio(self, cache: Cache, *call: Any) -> float:
        return _find_ratio(cache, self.baseline, *call).value

    def track_peak_bytes(self, cache: Cache, *call: Any) -> float:
        return _count_bytes(_find(cache, *call), "peak_bytes")

    def track_saved_bytes(self, cache: Cache, *call: Any) -> float:
        return _count_bytes(_find(cache, *call), "saved_bytes")

    def track_workspace_bytes(self, cache: Cache, *call: Any) -> float:
        return _count_bytes(_find(cache, *call), "workspace_bytes")

    def track_kernel_calls(self, cache: Cache, *call: Any) -> float:
        result = _find(cache, *call)
        return count_kernel_calls(result.kernels).total() if result is not None and result.kernels else math.nan

    def track_flop(self, cache: Cache, *call: Any) -> float:
        result = _find(cache, *call)
        return result.flop if result is not None and result.flop is not None else math.nan

    # asv compares results of the same version only, and would make a version of the code. Since version 3 of the times,
    # parameters are not frozen in calls without gradients. Since version 2, every timed call has input values of its
    # own. The ratio is to a time that changed alike.
    track_time_ns.version = "3"  # type: ignore[attr-defined]
    track_time_ratio.version = "1"  # type: ignore[attr-defined]
    track_peak_bytes.version = track_saved_bytes.version = "1"  # type: ignore[attr-defined]
    track_workspace_bytes.version = track_kernel_calls.version = track_flop.version = "1"  # type: ignore[attr-defined]
    track_time_ns.unit = "ns"  # type: ignore[attr-defined]
    track_time_ratio.unit = RATIO  # type: ignore[attr-defined]
    track_peak_bytes.unit = track_saved_bytes.unit = track_workspace_bytes.unit = "bytes"  # type: ignore[attr-defined]
    track_kernel_calls.unit, track_flop.unit = "calls", "flop"  # type: ignore[attr-defined]


class _CallsWithIntervals(_Calls):
    """The same with the ends of the interval of the ratio."""

    def track_time_ratio_low(self, cache: Cache, *call: Any) -> float:
        return _find_ratio(cache, self.baseline, *call).low

    def track_time_ratio_high(self, cache: Cache, *call: Any) -> float:
        return _find_ratio(cache, self.baseline, *call).high

    track_time_ratio_low.version = track_time_ratio_high.version = "1"  # type: ignore[attr-defined]
    track_time_ratio_low.unit = track_time_ratio_high.unit = RATIO  # type: ignore[attr-defined]


def _find(cache: Cache, implementation: str, length: int, name: Pass, dtype: str = "", mask: str = "") -> Result | None:
    """Return the result of a call; print why it has no time, or that there is no such case."""
    result = cache.get((display_name(implementation), length, name, dtype, mask))
    if result is None:
        _print(say(_NO_CASE, place=" ".join(filter(None, (implementation, str(length), name, dtype, mask)))))
    elif result.timing is None:
        _print_reason(result)
    return result


def _find_time_ns(result: Result | None) -> float:
    """Return the time of a call; NaN if it was not timed, or if other work disturbed it."""
    if result is None or result.timing is None:
        return math.nan
    if reason := explain_disturbed_time(result.timing):
        _tell_spoiled(result, reason)
        return math.nan
    return median_of_processes(result.timing.samples_ns).value


def _find_ratio(cache: Cache, baseline: str, implementation: str, *call: Any) -> Interval:
    """Return the ratio of two times; NaN if one is missing, or if other work disturbed them."""
    own, base = (_find(cache, name, *call) for name in (implementation, baseline))
    # An implementation of another operator is timed on other cases than the baseline, so it has no ratio to the
    # baseline.
    if own is None or base is None or own.case != base.case or own.timing is None or base.timing is None:
        return NO_INTERVAL
    if own is not base:
        reason = decide_speed(own.timing, base.timing).reason
        if reason is not None and reason.cause in SPOILED:
            _tell_spoiled(own, reason)
            return NO_INTERVAL
    return ratio(own.timing.samples_ns, base.timing.samples_ns)


def _count_bytes(result: Result | None, name: str) -> float:
    """Return a number of bytes; NaN where it was not measured."""
    size = getattr(result.memory, name) if result is not None and result.memory is not None else None
    return math.nan if size is None else size


def _tell_spoiled(result: Result, reason: NoVerdict) -> None:
    """Print why a time is no number."""
    _print(say(_MISSING, place=f"{result.implementation} {result.case}", reason=explain_no_verdict(reason)))


def _print_reason(result: Result) -> None:
    """Print why an implementation was not timed on a case."""
    if result.untimed is not None:
        reason = describe_reason(result.untimed)
        _print(say(_MISSING, place=f"{result.implementation} {result.case}", reason=reason))


def _print(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201
