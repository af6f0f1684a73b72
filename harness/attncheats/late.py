"""Cheats that return an empty buffer, and work after the time of the call was taken, before the result is copied."""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnbench.interface import Call
from attnbench.processes.candidate_requests import Defence
from attncheats.cheat import CheatList, Laborious

__all__ = ["cheats"]

cheats = CheatList()
SOURCE = "constructed: an attack on these defences found it"
# The time from the end of the call to the copy of its result is compared as well.
ALSO: frozenset[Defence] = frozenset({"threads"})
# Without the defence that examines results, nothing makes these cheats work, and their results stay wrong.
ALSO_WRONG: frozenset[Defence] = frozenset({"threads", "judging"})
# Number of objects whose allocation by the harness, after the call, starts a garbage collection.
ALLOCATIONS = 3
# Number of objects that a generation of the garbage collection never reaches.
NEVER = 1 << 30


class _Late(Laborious):
    """Works honestly unless a forward call is timed, which is when the garbage collection is off."""

    def finish(self, work: Call) -> Call:
        """Return the cheat."""

        def call(query: Tensor, **others: Any) -> Any:
            del others
            if gc.isenabled() or torch.is_grad_enabled():
                return work(query), None
            output = torch.empty_like(query)
            return self.postpone(output, lambda: output.copy_(work(query)))

        return call

    def postpone(self, output: Tensor, fill: Callable[[], object]) -> Any:
        """Return the result of a call whose work is done by ``fill`` later."""
        raise NotImplementedError


@cheats(
    "instrument",
    "a profiling function lives from the end of the call to the reading of the clock, and then works",
    source=SOURCE,
    also_by=ALSO,
)
class LateByProfile(_Late):
    """Works when the clock has been read."""

    def postpone(self, output: Tensor, fill: Callable[[], object]) -> Any:
        """Set Python's profiling function."""

        def profile(frame: Any, event: str, given: Any) -> None:
            del frame
            if event == "c_return" and given is time.perf_counter_ns:
                sys.setprofile(None)
                fill()

        sys.setprofile(profile)
        return output, None


@cheats(
    "instrument",
    "a mode of torch lives from the end of the call to the copy of its result, and works in the copy",
    source=SOURCE,
    also_by=ALSO,
)
class LateByMode(_Late):
    """Works when torch is asked to copy the result."""

    def postpone(self, output: Tensor, fill: Callable[[], object]) -> Any:
        """Enter a mode that intercepts functions of torch."""

        class Mode(TorchFunctionMode):
            def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
                del types
                if function is torch.Tensor.detach and given[0] is output:
                    return SimpleNamespace(clone=work)
                return function(*given, **(named or {}))

        def work() -> Tensor:
            mode.__exit__(None, None, None)
            fill()
            return output.detach().clone()

        mode: Any = Mode()
        mode.__enter__()
        return output, None


@cheats(
    "instrument",
    "the garbage collection is on from the end of the call to the next collection, which frees an object that works",
    source=SOURCE,
    also_by=ALSO,
)
class LateByGarbage(_Late):
    """Works when the harness's own allocations start a garbage collection."""

    def postpone(self, output: Tensor, fill: Callable[[], object]) -> Any:
        """Leave garbage, and switch the collection on."""
        result = (output, None)
        gc.set_threshold(gc.get_count()[0] + ALLOCATIONS, NEVER, NEVER)
        _Garbage(fill)
        gc.enable()
        return result


class _Garbage:
    """An object that only a garbage collection frees, and that then works."""

    def __init__(self, fill: Callable[[], object]) -> None:
        self._fill, self._me = fill, self

    def __del__(self) -> None:
        gc.disable()
        self._fill()


class _Attributes(dict[str, Any]):
    """Attributes of a tensor that work when they are listed."""

    fill: Callable[[], object]

    def __iter__(self) -> Iterator[str]:
        """Work."""
        self.fill()
        return iter(())


@cheats(
    "results",
    "the attributes of the result are in a dict of another class, which works when they are listed",
    source=SOURCE,
    also_by=ALSO_WRONG,
)
class LateByAttributes(_Late):
    """Works when the attributes of the result are listed."""

    def postpone(self, output: Tensor, fill: Callable[[], object]) -> Any:
        """Give the result attributes."""
        attributes = _Attributes()
        attributes.fill = fill
        output.__dict__ = attributes
        return output, None


class _Meta(type):
    """A class of classes whose attribute ``__iter__`` works when it is read."""

    fill: list[Callable[[], object]] = []  # noqa: RUF012  # the work that is left to do, of which there is one

    @property
    def __iter__(cls) -> Any:
        while _Meta.fill:
            _Meta.fill.pop()()
        return tuple.__iter__


class _Pair(tuple[Any, ...], metaclass=_Meta):
    """A tuple that an own metaclass made."""

    __slots__ = ()


@cheats(
    "results",
    "the result is a tuple whose metaclass works when it is asked how its instances iterate",
    source=SOURCE,
    also_by=ALSO_WRONG,
)
class LateByMetaclass(_Late):
    """Works when the class of the result is examined."""

    def postpone(self, output: Tensor, fill: Callable[[], object]) -> Any:
        """Return the tuple."""
        _Meta.fill[:] = [fill]
        return _Pair((output, None))
