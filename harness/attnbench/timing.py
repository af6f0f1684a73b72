"""Samples of calls in nanoseconds, taken in turns: whatever the machine does meets every implementation alike."""

import gc
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

__all__ = ["Samples", "interleaved"]

# Calls of each implementation before the first sample; the first call costs 7 to 13 % more, later ones settle by the
# third.
WARM_UP_CALLS = 3
# Samples of each implementation in one process: at least these, however slow, and at most those, however fast.
FEWEST, MOST = 3, 200


@dataclass(slots=True)
class Samples:
    """One number per call, in the order of the calls.

    Unit: nanoseconds of wall time, and nanoseconds that the process's threads waited for a core meanwhile.
    """

    times_ns: list[int] = field(default_factory=list)
    waited_ns: list[int] = field(default_factory=list)


def interleaved(calls: Mapping[str, Callable[[], object]], *, budget_s: float, seed: int) -> dict[str, Samples]:
    """Samples of every call, in cycles that call each once in random order.

    The budget is shared evenly; a slow call takes part in fewer cycles than a quick one. Only the call is timed:
    garbage collection is off in the window, and scheduler counters are read outside it.
    """
    rounds = {name: _rounds(call, budget_s / len(calls)) for name, call in calls.items()}
    samples = {name: Samples() for name in calls}
    order = random.Random(seed)  # noqa: S311  # the order of calls, no secret
    gc.collect()
    gc.disable()
    try:
        for cycle in range(max(rounds.values())):
            turn = [name for name in calls if cycle < rounds[name]]
            order.shuffle(turn)
            for name in turn:
                _take(calls[name], samples[name])
    finally:
        gc.enable()
    return samples


def _rounds(call: Callable[[], object], budget_s: float) -> int:
    """Warm up, and number of samples that the budget allows."""
    fastest = float("inf")
    for _ in range(WARM_UP_CALLS):
        begin = time.perf_counter()
        call()
        _wait_for_device()
        fastest = min(fastest, time.perf_counter() - begin)
        if fastest > budget_s:
            break
    return max(FEWEST, min(MOST, int(budget_s / max(fastest, 1e-9))))


def _take(call: Callable[[], object], samples: Samples) -> None:
    _wait_for_device()
    waited = _waited_ns()
    begin = time.perf_counter_ns()
    result = call()
    _wait_for_device()
    end = time.perf_counter_ns()
    samples.waited_ns.append(_waited_ns() - waited)
    samples.times_ns.append(end - begin)
    del result  # freed outside the window


def _wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _waited_ns() -> int:
    """Time that all threads of this process have waited on a run queue, or 0 where the system does not say.

    Source: second field of /proc/<pid>/task/<tid>/schedstat, https://docs.kernel.org/scheduler/sched-stats.html.
    """
    total = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total += int(thread.read_text().split()[1])
        except (OSError, IndexError):  # the thread ended meanwhile
            continue
    return total
