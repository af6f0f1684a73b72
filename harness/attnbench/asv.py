"""Benchmark classes for asv, for use in any repository.

    from attnbench.asv import benchmarks

    class Attention(benchmarks(["my_package.attention:MyAttention"], lengths=[128, 512])):
        pass

asv first calls ``setup_cache`` of the class, which measures all implementations together, with interleaved calls. asv
keeps the results in a cache. Each benchmark then reads one number from the cache. If an implementation failed or
refused a case, or the case was not started, there is no number, and asv shows n/a; ``asv run --show-stderr`` prints the
reason.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

from attnbench.analysis.stats import median_of_processes, ratio
from attnbench.devices import HOST
from attnbench.records.types import Pass, Result
from attnbench.runner import Effort, measure
from attnbench.words.findings import describe_reason

__all__ = ["PARAMETERS", "benchmarks"]

# Names of the parameters; the last two are parameters only where dtypes or masks are chosen.
PARAMETERS = ("implementation", "length", "pass", "dtype", "mask")

Cache = dict[tuple[str, int, Pass], Result]
# Time limit in seconds of ``setup_cache``, which makes all measurements.
TIMEOUT_S = 1800.0


def benchmarks(
    implementations: Sequence[str],
    lengths: Sequence[int],
    *,
    baseline: str = "torch_mha",
    processes: int = 3,
    budget_s: float = 0.2,
) -> type:
    """Return a base class of asv benchmarks whose parameters are implementation, length and pass.

    They are measured on the CPU. A subclass with ``device = "cuda"`` measures on that device; where there is none, its
    numbers are n/a. Times are also given as ratios to the time of ``baseline``. Each case is timed in ``processes``
    processes, with timed calls of ``budget_s`` seconds in each process.
    """
    names = list(dict.fromkeys([baseline, *implementations]))

    class Benchmarks:
        params: ClassVar[list[list[Any]]] = [names, list(lengths), ["forward", "forward+backward"]]
        param_names: ClassVar[list[str]] = ["implementation", "length", "pass"]
        timeout = TIMEOUT_S
        device = HOST

        def setup_cache(self) -> Cache:
            return measure(names, lengths, Effort(processes=processes, budget_s=budget_s), device=self.device)

        def track_time_ns(self, cache: Cache, implementation: str, length: int, name: Pass) -> float:
            result = cache[implementation, length, name]
            if result.timing is None:
                _print_reason(result)
                return math.nan
            return median_of_processes(result.timing.samples_ns).value

        def track_time_ratio(self, cache: Cache, implementation: str, length: int, name: Pass) -> float:
            own, base = (cache[one, length, name] for one in (implementation, baseline))
            # An implementation of another operator is timed on other cases than the baseline, so it has no ratio to the
            # baseline.
            if own.case != base.case or own.timing is None or base.timing is None:
                return math.nan
            return ratio(own.timing.samples_ns, base.timing.samples_ns).value

        def track_peak_bytes(self, cache: Cache, implementation: str, length: int, name: Pass) -> float:
            memory = cache[implementation, length, name].memory
            return memory.peak_bytes if memory else math.nan

        def track_saved_bytes(self, cache: Cache, implementation: str, length: int, name: Pass) -> float:
            memory = cache[implementation, length, name].memory
            return memory.saved_bytes if memory and memory.saved_bytes is not None else math.nan

        # asv compares results of the same version only, and would make a version of the code. Since version 3 of the
        # times, parameters are not frozen in calls without gradients. Since version 2, every timed call has input
        # values of its own. The ratio is to a time that changed alike.
        track_time_ns.version = "3"  # type: ignore[attr-defined]
        track_time_ratio.version = "1"  # type: ignore[attr-defined]
        track_peak_bytes.version = track_saved_bytes.version = "1"  # type: ignore[attr-defined]
        track_time_ns.unit = "ns"  # type: ignore[attr-defined]
        track_time_ratio.unit = "× the reference's time"  # type: ignore[attr-defined]
        track_peak_bytes.unit = track_saved_bytes.unit = "bytes"  # type: ignore[attr-defined]

    return Benchmarks


def _print_reason(result: Result) -> None:
    """Print why an implementation was not timed on a case."""
    if result.untimed is not None:
        print(f"{result.implementation} {result.case}: {describe_reason(result.untimed)}", file=sys.stderr)  # noqa: T201
