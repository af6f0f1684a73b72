"""Cheats that replace functions of the clock, of torch or of the harness."""

import sys
import time
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.interface import Call
from attnbench.processes.candidate_requests import Defence
from attncheats.cheat import CheatList
from attncheats.labour import Labour, burn

__all__ = ["SlowClock", "cheats"]

cheats = CheatList()
# The runner finds a slow reference as well.
SLOWING: frozenset[Defence] = frozenset({"alone"})
CLOCK = "https://github.com/gpu-mode/reference-kernels/issues/162"
HARNESS = "https://github.com/meta-pytorch/BackendBench/issues/41"
SLOWED = "https://github.com/gpu-mode/pygpubench/pull/7"
# Part of the time of its own calls that a cheat with a slow clock hides.
HIDDEN = 0.97


class SlowClock:
    """Replaces functions of the clock by functions that leave out a part of the cheat's own calls."""

    def __init__(self, *names: str, owner: Any = time) -> None:
        self._hidden_ns = 0
        self.now = time.perf_counter_ns
        for name in names:
            setattr(owner, name, self._slow_down(getattr(time, name)))

    def _slow_down(self, clock: Callable[..., int]) -> Callable[..., int]:
        return lambda *given: clock(*given) - self._hidden_ns

    def hide(self, work: Callable[[Tensor], Tensor]) -> Call:
        """Return a function that works, and hides most of the time that this takes."""

        def call(query: Tensor) -> Tensor:
            begin = self.now()
            output = work(query)
            self._hidden_ns += int(HIDDEN * (self.now() - begin))
            return output

        return call


@cheats(
    "instrument",
    "the clock leaves out most of the time of the cheat's own calls",
    source=CLOCK,
    # Time that the clock leaves out seems to pass before the call.
    also_by=frozenset({"threads"}),
)
def patched_clock(labour: Labour) -> Call:
    """Replace the clocks of wall time and of processor time."""
    return SlowClock("perf_counter_ns", "process_time_ns").hide(labour)


@cheats(
    "instrument",
    "the harness's sampling gets a clock of its own that the cheat slows down",
    source=HARNESS,
    also_by=frozenset({"threads"}),
)
def patched_sampling(labour: Labour) -> Call:
    """Replace the clock of one module of the harness."""
    clock = SimpleNamespace(perf_counter=time.perf_counter, perf_counter_ns=time.perf_counter_ns)
    sys.modules["attnbench.measurement.sampling"].time = clock  # type: ignore[attr-defined]
    return SlowClock("perf_counter_ns", owner=clock).hide(labour)


@cheats(
    "instrument", "the harness draws the same values for all calls, and results are kept by content", source=HARNESS
)
def frozen_values(labour: Labour) -> Call:
    """Replace the method that draws new values."""
    values = sys.modules["attnbench.workers.fresh_values"].FreshValues
    draw = values.draw
    drawn: dict[str, Any] = {}

    def draw_once(self: Any) -> Any:
        return drawn.setdefault("once", draw(self)) if "once" not in drawn else drawn["once"]

    values.draw = draw_once
    kept: dict[bytes, Tensor] = {}

    def call(query: Tensor) -> Tensor:
        key = query.view(-1)[:64].numpy().tobytes()
        if key not in kept:
            kept[key] = labour(query)
        return kept[key]

    return call


@cheats(
    "instrument",
    "a function in the harness's module hides a function of Python, and works when the harness copies a result",
    source=HARNESS,
    also_by=frozenset({"judging", "threads"}),
)
def hidden_builtin(labour: Labour) -> Call:
    """Give a module of the harness a name that it did not have."""
    returned: list[tuple[Tensor, Tensor]] = []

    def copy_all(copy: Callable[[Any], Any], result: Any) -> list[Any]:
        if returned and result[0] is returned[0][0]:
            return [labour(returned[0][1]), None]
        return [copy(part) for part in result]

    sys.modules["attnbench.workers.timed_calls"].map = copy_all  # type: ignore[attr-defined]

    def call(query: Tensor) -> Tensor:
        returned[:] = [(torch.empty_like(query), query)]
        return returned[0][0]

    return call


@cheats(
    "instrument",
    "torch's fused attention of the reference's fast path is replaced by a slow function",
    source=SLOWED,
    also_by=SLOWING,
)
def slow_fast_path(labour: Labour) -> Call:
    """Replace a function of torch."""
    fast = torch._native_multi_head_attention  # noqa: SLF001  # the reference calls it

    def slow(*given: Any, **named: Any) -> Any:
        burn(given[0])
        return fast(*given, **named)

    torch._native_multi_head_attention = slow  # noqa: SLF001
    return labour


@cheats(
    "instrument",
    "the forward method of the reference's class is replaced by a slow one",
    source=SLOWED,
    also_by=SLOWING,
)
def slow_forward(labour: Labour) -> Call:
    """Replace a method of a class of torch."""
    fast = nn.MultiheadAttention.forward

    def slow(self: Any, query: Tensor, *given: Any, **named: Any) -> Any:
        burn(query)
        return fast(self, query, *given, **named)

    nn.MultiheadAttention.forward = slow  # type: ignore[method-assign]
    return labour


@cheats(
    "instrument",
    "the code of torch's function that the reference calls is replaced within the function",
    source=SLOWED,
    mode="train",
    also_by=SLOWING,
)
def slow_code(labour: Labour) -> Call:
    """Replace the bytecode of a function of torch, which remains the same object."""
    function: Any = nn.functional.multi_head_attention_forward
    fast = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    fast.__kwdefaults__ = function.__kwdefaults__

    def burn_first(query: Tensor, *given: Any, **named: Any) -> Any:
        burn(query.detach().transpose(0, 1))
        return fast(query, *given, **named)

    function.__globals__["_slow_attention"] = burn_first

    def slow(*given: Any, **named: Any) -> Any:
        return _slow_attention(*given, **named)  # type: ignore[name-defined]  # noqa: F821

    function.__code__ = slow.__code__
    return labour


@cheats("instrument", "a hook of all modules makes the calls of other modules slow", source=SLOWED, also_by=SLOWING)
def hook_of_all_modules(labour: Labour) -> Call:
    """Register a hook that runs before the call of any module."""
    nn.modules.module.register_module_forward_pre_hook(lambda *_: burn(labour.module.in_proj_weight))
    return labour


@cheats(
    "instrument", "an operator of torch that only the reference uses gets a slow kernel", source=SLOWED, also_by=SLOWING
)
def slow_operator(labour: Labour) -> Call:
    """Register a kernel for an operator of torch."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]

    def slow(*given: Any, **named: Any) -> Any:
        burn(given[0])
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001  # torch names no other way
            return torch.ops.aten._native_multi_head_attention.default(*given, **named)  # noqa: SLF001

    library.impl("_native_multi_head_attention", slow, "AutogradCPU")
    # The library's kernels live as long as the library.
    labour.library = library  # type: ignore[attr-defined]
    return labour


@cheats(
    "instrument",
    "Python's profiling function burns time when the reference is called",
    source="constructed: a slow-down of others, as in pygpubench#7, by a feature of the interpreter",
    also_by=SLOWING,
)
def profiling_function(labour: Labour) -> Call:
    """Set Python's profiling function."""
    guilty = nn.MultiheadAttention.forward.__code__

    def profile(frame: Any, event: str, given: Any) -> None:
        del given
        if event == "call" and frame.f_code is guilty:
            burn(labour.module.in_proj_weight)

    def call(query: Tensor) -> Tensor:
        output = labour(query)
        sys.setprofile(profile)
        return output

    return call
