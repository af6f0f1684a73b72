"""Benchmarks as asv wants them, from the one measuring core; importable from anyone's repository.

    from attnbench.asv import benchmarks

    class Attention(benchmarks(["my_package.attention:MyAttention"], lengths=[128, 512])):
        pass

All implementations are measured together, in turns, when asv fills the class's cache; each benchmark then reads one
number. A case that did not conform, or is refused, has no number.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from attnbench.records import Pass, Result
from attnbench.runner import measure
from attnbench.stats import median_of_processes, ratio

__all__ = ["benchmarks"]

T = TypeVar("T")
Cache = dict[tuple[str, int, Pass], Result]
# Time that filling the cache may take, in seconds.
TIMEOUT_S = 1800.0


def benchmarks(
    implementations: Sequence[str],
    lengths: Sequence[int],
    *,
    baseline: str = "torch_mha",
    processes: int = 3,
    budget_s: float = 0.2,
) -> type:
    """Base class of asv benchmarks over implementation, length and pass."""
    names = list(dict.fromkeys([baseline, *implementations]))

    class Benchmarks:
        params: ClassVar[list[list[Any]]] = [names, list(lengths), ["forward", "forward+backward"]]
        param_names: ClassVar[list[str]] = ["implementation", "length", "pass"]
        timeout = TIMEOUT_S

        def setup_cache(self) -> Cache:
            return measure(names, lengths, processes=processes, budget_s=budget_s)

        def track_time_ns(self, cache: Cache, implementation: str, length: int, name: Pass) -> float:
            return median_of_processes(_there(cache[implementation, length, name].timing).samples_ns).value

        def track_time_ratio(self, cache: Cache, implementation: str, length: int, name: Pass) -> float:
            own, base = (_there(cache[one, length, name].timing) for one in (implementation, baseline))
            return ratio(own.samples_ns, base.samples_ns).value

        def track_peak_bytes(self, cache: Cache, implementation: str, length: int, name: Pass) -> int:
            return _there(cache[implementation, length, name].memory).peak_bytes

        def track_saved_bytes(self, cache: Cache, implementation: str, length: int, name: Pass) -> int:
            return _there(_there(cache[implementation, length, name].memory).saved_bytes)

        track_time_ns.unit = "ns"  # type: ignore[attr-defined]
        track_time_ratio.unit = "× the reference's time"  # type: ignore[attr-defined]
        track_peak_bytes.unit = track_saved_bytes.unit = "bytes"  # type: ignore[attr-defined]

    return Benchmarks


def _there(value: T | None) -> T:
    """The value, or what asv takes for n/a where there is none."""
    if value is None:
        raise NotImplementedError
    return value
