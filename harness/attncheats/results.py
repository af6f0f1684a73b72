"""Cheats whose results are computed when somebody looks at them, after the time was taken."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from attnbench.interface import Call
from attnbench.processes.candidate_requests import Defence
from attncheats.cheat import CheatList, Laborious
from attncheats.labour import Labour

__all__ = ["cheats"]

cheats = CheatList()
# The checks of a call after the timed calls read the memory of a result, which a lazy result has not written. Every
# result is copied, and the time to compute it then is found as well.
ALSO: frozenset[Defence] = frozenset({"judging", "threads"})
LAZY = "https://github.com/gpu-mode/reference-kernels/issues/162"
VALIDATE = "https://deep-reinforce.com/defense_kernel_hack.html"


class _LazyByFunction(Tensor):
    """A tensor that is computed when a function of torch gets it."""

    work: Callable[[], Tensor]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        """Compute the tensors among the arguments, and call the function."""
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  # torch names no other way

            def compute(lazy: "_LazyByFunction") -> Tensor:
                return lazy.__dict__["work"]()  # type: ignore[no-any-return]

            return function(*tree_map_only(cls, compute, given), **tree_map_only(cls, compute, named or {}))


@cheats(
    "results",
    "the output is a subclass of Tensor that computes when a function of torch gets it",
    source=LAZY,
    also_by=ALSO,
)
def lazy_by_function(labour: Labour) -> Call:
    """Defer its work by ``__torch_function__``."""

    def make(query: Tensor) -> Tensor:
        lazy = torch.empty_like(query).as_subclass(_LazyByFunction)
        lazy.__dict__["work"] = lambda: labour(query)
        return lazy

    return make


class _LazyByDispatch(Tensor):
    """A tensor without memory that is computed when an operator gets it."""

    @staticmethod
    def __new__(cls: Any, like: Tensor, work: Callable[[], Tensor]) -> "_LazyByDispatch":
        """Make a tensor with the shape and dtype of ``like``."""
        del work
        make: Any = torch.Tensor._make_wrapper_subclass  # noqa: SLF001  # torch names no other way
        return make(cls, like.shape, dtype=like.dtype)  # type: ignore[no-any-return]

    def __init__(self, like: Tensor, work: Callable[[], Tensor]) -> None:
        del like
        self.work = work

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operator: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        """Compute the tensors among the arguments, and call the operator."""
        del types

        def compute(lazy: "_LazyByDispatch") -> Tensor:
            return lazy.work()

        return operator(*tree_map_only(cls, compute, given), **tree_map_only(cls, compute, named or {}))


@cheats("results", "the output is a wrapper that computes when an operator gets it", source=VALIDATE, also_by=ALSO)
def lazy_by_dispatch(labour: Labour) -> Call:
    """Defer its work by ``__torch_dispatch__``."""
    return lambda query: _LazyByDispatch(query, lambda: labour(query))


@cheats("results", "the output is a plain tensor whose own attribute ``detach`` computes it", source=LAZY, also_by=ALSO)
def lazy_by_attribute(labour: Labour) -> Call:
    """Defer its work by an attribute of a plain tensor."""

    def make(query: Tensor) -> Tensor:
        output = torch.zeros_like(query)
        output.detach = lambda: labour(query)  # type: ignore[method-assign]
        return output

    return make


class _LazyTuple(tuple[Any, ...]):
    """A tuple that computes its first element when somebody iterates over it."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        """Compute the output."""
        work, *others = tuple.__iter__(self)
        return iter([work(), *others])


@cheats(
    "results", "what is returned is a tuple that computes its elements when they are read", source=LAZY, also_by=ALSO
)
class LazyTuple(Laborious):
    """Defers its work by the tuple that it returns."""

    def finish(self, work: Call) -> Call:
        """Return the cheat."""
        return lambda query, **_: _LazyTuple([lambda: work(query), None])
