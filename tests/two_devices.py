"""Emulates a second device on a CPU: inputs are on the device, and tensors made without ``device`` are on the host."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

# Functions that may combine a tensor on a device with one on the host: copies, and indices of these functions.
COMBINE = frozenset({"__getitem__", "__setitem__", "copy_", "index_put_", "index_put", "to", "type_as"})
# The device that tensors on the host say they are on. Its index tells it from the device of the inputs.
HOST = torch.device("cpu", 0)


class TwoDevices(TorchFunctionMode):
    """While it is active, a function that combines tensors of the two devices raises RuntimeError, as CUDA does.

    A tensor is on the host if it was made without a ``device`` that is a ``torch.device``, with that of a tensor on the
    host, or only from tensors on the host; a single number (zero dimensions) may be combined with any tensor.
    """

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, and note on which device its results are.

        Raises: RuntimeError if it combines tensors of two devices.
        """
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        host = [tensor for tensor in given if hasattr(tensor, "is_on_host")]
        if function.__name__ not in COMBINE and _have_shape(host) and _have_shape(set(given) - set(host)):
            raise RuntimeError(f"{function.__name__}: tensors are on two devices")
        if host and function == Tensor.device.__get__:  # type: ignore[attr-defined]
            return HOST
        result = function(*args, **kwargs)
        if function.__name__ == "to" and result is given[0]:
            # On a single device, ``to`` returns the same tensor, whose mark has to stay.
            result = result.view_as(result)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and all(tensor is not one for one in given):
                _mark(tensor, on_host=_stays_on_host(function, args, kwargs, len(host) == len(given)))
        return result


def _have_shape(tensors: Iterable[Tensor]) -> bool:
    """Whether any of the tensors has a dimension."""
    return any(tensor.dim() for tensor in tensors)


def _stays_on_host(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], all_on_host: bool) -> bool:
    """Whether the result of a function is on the host; ``all_on_host`` is true for a function without tensors too."""
    devices = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.device)]
    if devices:
        return devices == [HOST]
    if function.__name__ in ("to", "type_as") and isinstance(args[-1], Tensor):
        return hasattr(args[-1], "is_on_host")
    return all_on_host or function.__name__ == "cpu"


def _mark(tensor: Tensor, *, on_host: bool) -> None:
    if on_host:
        tensor.is_on_host = True  # type: ignore[attr-defined]
    elif hasattr(tensor, "is_on_host"):
        del tensor.is_on_host
