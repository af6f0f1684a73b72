"""A cheat that works between the writing of the new input values and the reading of the clock."""

import gc
import sys
import time
import weakref
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from attnbench.interface import Call
from attncheats.cheat import CheatList
from attncheats.labour import Labour

__all__ = ["cheats"]

cheats = CheatList()


class _Early:
    """The calls of the cheat; between samples, a profiling function lives, which nothing but its work shows."""

    def __init__(self, labour: Labour) -> None:
        self._labour = labour
        # The cheat's own queries, and the result for the values that were written into them.
        self._queries: Tensor | None = None
        self._ready: Tensor | None = None
        self._freed: object = None

    def __call__(self, query: Tensor) -> Tensor:
        """Return the result that is ready; the freeing of the result sets the profiling function."""
        if gc.isenabled() or torch.is_grad_enabled():
            return self._labour(query)
        output = self._labour(query) if self._ready is None else self._ready
        self._queries, self._ready = query, None
        self._arm_after(output)
        return output

    def _arm_after(self, result: Tensor) -> None:
        self._freed = weakref.ref(result, self._arm)

    def _arm(self, _: object) -> None:
        readings = 0

        def profile(frame: FrameType, event: str, given: Any) -> None:
            nonlocal readings
            code = frame.f_code.co_name
            if event == "call" and code == "compare_process":
                sys.setprofile(None)
            elif event == "return" and code == "prepare" and (queries := self._find_own(frame)) is not None:
                sys.setprofile(None)
                self._ready = self._labour(queries)
            elif event == "c_call" and code == "_take_wall_sample" and given is time.perf_counter_ns:
                # The second reading ends the call of another implementation, before it is examined.
                readings += 1
                if readings == 2:
                    sys.setprofile(None)
                    result = frame.f_locals["result"]
                    self._arm_after(result[0] if isinstance(result, tuple) else result)

        sys.setprofile(profile)

    def _find_own(self, frame: FrameType) -> Tensor | None:
        """Return the cheat's own queries if they have been prepared for a call."""
        prepared: Tensor = frame.f_locals["self"].inputs[frame.f_locals["name"]].tensors["query"]
        is_own = self._queries is not None and prepared.data_ptr() == self._queries.data_ptr()
        return self._queries if is_own else None


@cheats(
    "instrument",
    "a profiling function lives from the freeing of a result to the next call, and works when values are written",
    source="constructed: an attack on these defences found it",
    also_by=frozenset({"threads"}),
)
def early_by_profile(labour: Labour) -> Call:
    """Have the result ready when the clock is read."""
    return _Early(labour)
