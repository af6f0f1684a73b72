"""Cheats that make the reference's own objects slow, which no comparison of functions finds."""

import gc
import time
from typing import Any

from torch import nn

from attnbench.interface import Call
from attnbench.mutants.cheats.cheat import CheatList, Laborious
from attnbench.mutants.cheats.labour import Labour, burn
from attnbench.processes.candidate_requests import Defence

__all__ = ["cheats"]

cheats = CheatList()
# The modules of the reference are compared as well.
ALSO: frozenset[Defence] = frozenset({"instrument"})
# Seconds by which a slight hook delays the reference: with the delay of the sleep itself, less than ``alone`` allows.
SLIGHT_S = 0.0002
SEARCH = "https://github.com/gpu-mode/pygpubench/pull/7"


def _find_modules() -> list[nn.MultiheadAttention]:
    return [one for one in gc.get_objects() if type(one) is nn.MultiheadAttention]


@cheats(
    "alone",
    "the reference's modules are found in memory, and get a slow method of their own",
    source=SEARCH,
    also_by=ALSO,
)
class SlowMethodOfOthers(Laborious):
    """Gives the reference's modules a slow ``forward``."""

    def begin(self, labour: Labour) -> Call:
        """Return the cheat."""
        work = super().begin(labour)

        def call(**given: Any) -> Any:
            for module in _find_modules() if not seen else ():
                module.forward = _slow_down(module)  # type: ignore[method-assign]
            seen.append(None)
            return work(**given)

        seen: list[None] = []
        return call


def _slow_down(module: nn.MultiheadAttention) -> Any:
    forward = module.forward

    def slow(query: Any, *given: Any, **named: Any) -> Any:
        burn(query)
        return forward(query, *given, **named)

    return slow


@cheats(
    "alone",
    "the reference's modules are found in memory, and get a hook that takes time",
    source=SEARCH,
    also_by=ALSO,
)
class HookOfOthers(Laborious):
    """Registers a hook on the reference's modules."""

    def begin(self, labour: Labour) -> Call:
        """Return the cheat."""
        return _delay_others(super().begin(labour), 0.002)


def _delay_others(work: Call, seconds: float) -> Call:
    """Return a function that works, and whose first call gives the reference's modules a hook."""
    seen: list[None] = []

    def call(**given: Any) -> Any:
        for module in _find_modules() if not seen else ():
            module.register_forward_pre_hook(lambda *_: time.sleep(seconds))
        seen.append(None)
        return work(**given)

    return call


@cheats(
    "instrument",
    "the reference's modules are found in memory, and get a hook that takes less time than other work on the machine",
    source="constructed: an attack on these defences found it",
)
class SlightHookOfOthers(Laborious):
    """Registers a hook that the comparison with the reference alone does not find."""

    def begin(self, labour: Labour) -> Call:
        """Return the cheat."""
        return _delay_others(super().begin(labour), SLIGHT_S)
