"""Cheats that make the reference's own objects slow, which no comparison of functions finds."""

import gc
import time
from typing import Any

from torch import nn

from attnbench.interface import Call
from attnbench.mutants.cheats.cheat import CheatList, Laborious
from attnbench.mutants.cheats.labour import Labour, burn

__all__ = ["cheats"]

cheats = CheatList()
SEARCH = "https://github.com/gpu-mode/pygpubench/pull/7"


def _find_modules() -> list[nn.MultiheadAttention]:
    return [one for one in gc.get_objects() if type(one) is nn.MultiheadAttention]


@cheats("alone", "the reference's modules are found in memory, and get a slow method of their own", source=SEARCH)
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


@cheats("alone", "the reference's modules are found in memory, and get a hook that takes time", source=SEARCH)
class HookOfOthers(Laborious):
    """Registers a hook on the reference's modules."""

    def begin(self, labour: Labour) -> Call:
        """Return the cheat."""
        work = super().begin(labour)
        seen: list[None] = []

        def call(**given: Any) -> Any:
            for module in _find_modules() if not seen else ():
                module.register_forward_pre_hook(lambda *_: time.sleep(0.002))
            seen.append(None)
            return work(**given)

        return call
