"""Cheats that answer rightly in their first calls, and wrongly while they are timed."""

import queue
import signal
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench.interface import Call
from attncheats.cheat import CheatList, Laborious
from attncheats.labour import Labour
from attncheats.sampling_frame import find_sampling_frame

__all__ = ["cheats"]

cheats = CheatList()
# Seconds from the call to the signal: longer than the rest of the call, and shorter than the time to its copy.
DELAY_S = 25e-6
# Number of right answers before the first wrong one.
RIGHT = 8
DRIFT = "https://github.com/karpathy/llm.c/pull/852"


def _tire(labour: Labour, answer: Callable[[Tensor], Tensor]) -> Call:
    """Return a function that works ``RIGHT`` times, and then returns ``answer`` of the query."""
    count = 0

    def call(query: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return labour(query) if count <= RIGHT else answer(query)

    return call


@cheats("judging", "after eight calls, the input is returned", source=DRIFT)
def returns_input(labour: Labour) -> Call:
    """Return the input."""
    return _tire(labour, lambda query: query)


@cheats(
    "judging",
    "after eight calls, zeros are returned",
    source="https://github.com/ScalingIntelligence/KernelBench/issues/165",
)
def returns_zeros(labour: Labour) -> Call:
    """Return zeros."""
    return _tire(labour, torch.zeros_like)


@cheats(
    "judging",
    "after eight calls, uninitialised memory is returned, which may be what the reference has freed",
    source="https://github.com/ScalingIntelligence/KernelBench/pull/82",
)
def returns_garbage(labour: Labour) -> Call:
    """Return uninitialised memory."""
    return _tire(labour, torch.empty_like)


@cheats(
    "judging", "after eight calls, a copy of the last right result is returned",
    source="https://github.com/tensara/tensara/pull/238",
)  # fmt: skip
def returns_earlier_result(labour: Labour) -> Call:
    """Return the result of an earlier call."""
    kept: list[Tensor] = []

    def work(query: Tensor) -> Tensor:
        kept[:] = [labour(query)]
        return kept[0]

    count = 0

    def call(query: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return work(query) if count <= RIGHT else kept[0].clone()

    return call


@cheats(
    "judging",
    "after eight calls, only the first half of the rows is computed",
    source="https://github.com/meta-pytorch/BackendBench/issues/41",
)
def half_of_the_rows(labour: Labour) -> Call:
    """Leave the second half of the rows zero."""

    def answer(query: Tensor) -> Tensor:
        half = query.shape[1] // 2
        output = torch.zeros_like(query)
        output[:, :half] = labour.attend(query[:, :half], *labour.project(query))
        return output

    return _tire(labour, answer)


@cheats(
    "judging",
    "after eight calls, the numbers have the precision of bfloat16",
    source="https://deep-reinforce.com/defense_kernel_hack.html",
)
def in_bfloat16(labour: Labour) -> Call:
    """Round to bfloat16, and leave out further work."""

    def answer(query: Tensor) -> Tensor:
        rounded = query.bfloat16().to(query.dtype)
        return labour.attend(rounded, *labour.project(rounded)).bfloat16().to(query.dtype)

    return _tire(labour, answer)


@cheats(
    "judging",
    "after eight calls, an empty buffer is returned, and a thread fills it later",
    source="https://deep-reinforce.com/defense_kernel_hack.html",
    # On a busy machine, what is done around the calls waits for Python's lock while the thread works.
    also_by=frozenset({"processor", "threads"}),
)
def filled_later(labour: Labour) -> Call:
    """Work on a thread after the call has returned."""
    wanted: queue.SimpleQueue[tuple[Tensor, Tensor]] = queue.SimpleQueue()

    def fill() -> None:
        while True:
            query, output = wanted.get()
            with torch.no_grad():
                output.copy_(labour(query))

    def answer(query: Tensor) -> Tensor:
        output = torch.zeros_like(query)
        wanted.put((query.clone(), output))
        return output

    threading.Thread(target=fill, daemon=True).start()
    return _tire(labour, answer)


@cheats(
    "threads",
    "an empty buffer is returned, and a signal that arrives right after the call fills it",
    source="constructed: an attack on these defences found it",
    also_by=frozenset({"instrument"}),
)
def filled_by_signal(labour: Labour) -> Call:
    """Work in the handler of a signal, after the time of the call was taken."""
    wanted: list[tuple[Tensor, Tensor]] = []

    def fill(*_: object) -> None:
        while wanted:
            query, output = wanted.pop()
            output.copy_(labour(query))

    signal.signal(signal.SIGALRM, fill)

    def call(query: Tensor) -> Tensor:
        output = torch.zeros_like(query)
        wanted.append((query, output))
        signal.setitimer(signal.ITIMER_REAL, DELAY_S)
        return output

    return call


class _WithoutGradient(torch.autograd.Function):
    """A right output whose gradients are zeros."""

    @staticmethod
    def forward(context: Any, output: Tensor, *leaves: Tensor) -> Tensor:
        """Return the output."""
        context.save_for_backward(*leaves)
        return output.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        """Return zeros."""
        del gradients
        return None, *map(torch.zeros_like, context.saved_tensors)


@cheats(
    "judging",
    "after eight calls, the gradients are zeros",
    source="constructed: the drift of karpathy/llm.c#852 in the backward pass, which those benchmarks do not check",
    mode="train",
)
def zero_gradients(labour: Labour) -> Call:
    """Leave out the backward pass."""

    def answer(query: Tensor) -> Tensor:
        with torch.no_grad():
            output = labour.attend(query, *labour.project(query))
        apply: Any = _WithoutGradient.apply
        return apply(output, query, *labour.module.parameters())  # type: ignore[no-any-return]

    return _tire(labour, answer)


@cheats(
    "judging",
    "the callers' frames tell whether a call has been chosen to be judged; then zeros are returned",
    source="constructed: an attack on these defences found it",
)
class ReadsJudging(Laborious):
    """Works until one of its calls is known to be judged."""

    def begin(self, labour: Labour) -> Call:
        """Return the cheat."""

        def call(query: Tensor) -> Tensor:
            frame = find_sampling_frame()
            known = frame is not None and frame.f_locals["name"] in frame.f_locals["self"].surroundings.judged.kept
            return torch.zeros_like(query) if known else labour(query)

        return call
