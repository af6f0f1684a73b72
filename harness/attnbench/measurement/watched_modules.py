"""The modules and tensors of a baseline: an implementation in the same process could make them slow.

A hook or a method of its own makes a single module slow, without any change of a class or of a function.
"""

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from attnbench.records.value_facts import Phrase, phrase

__all__ = ["WatchedModules"]

# Prefix of the modules of Python that define the classes of torch's own layers.
TORCH_LAYERS = "torch.nn."
_State = Mapping[str, object]


class WatchedModules:
    """torch's layers within some modules, and tensors, as they were when this object was made.

    Layers of other classes are not watched, because they may change themselves when they are called.
    """

    def __init__(self, modules: Iterable[object], tensors: Iterable[Tensor] = ()) -> None:
        self._layers = [layer for module in modules for layer in _list_layers(module)]
        parameters = [one for layer in self._layers for one in layer._parameters.values()]  # noqa: SLF001
        self._tensors = [*tensors, *(one for one in parameters if one is not None)]
        self._before = self._read()

    def find_changes(self) -> list[Phrase]:
        """Return what is no longer as it was, such as the memory of a tensor of the baseline."""
        return list(dict.fromkeys(_list_changes(self._before, self._read())))

    def _read(self) -> list[tuple[str, _State]]:
        layers = [(type(layer).__name__, _read_layer(layer)) for layer in self._layers]
        return layers + [("tensor", _read_tensor(tensor)) for tensor in self._tensors]


def _list_changes(before: list[tuple[str, _State]], now: list[tuple[str, _State]]) -> Iterator[Phrase]:
    for (kind, old), (_, new) in zip(before, now, strict=True):
        for name in old.keys() | new.keys():
            if name not in old or name not in new or old[name] != new[name]:
                yield phrase("changed_of_baseline", name=name, kind=kind)


def _list_layers(module: object) -> Iterator[nn.Module]:
    for layer in module.modules() if isinstance(module, nn.Module) else ():
        if type(layer).__module__.startswith(TORCH_LAYERS) and not isinstance(layer, LazyModuleMixin):
            yield layer


def _read_layer(layer: nn.Module) -> _State:
    """Return the attributes of one layer: of a dict, such as that of the hooks, its content."""
    own = {name: _identify(value) for name, value in vars(layer).items()}
    return own | {"class": id(type(layer))}


def _identify(value: object) -> object:
    """Return what is equal only if a value is the same object or, for a dict, if it has the same content."""
    if isinstance(value, dict):
        return [(name, id(one)) for name, one in value.items()]
    return value if isinstance(value, bool | int | float | str) else id(value)


def _read_tensor(tensor: Tensor) -> _State:
    return {
        "memory": (tensor.data_ptr(), tensor.dtype, tensor.stride()),
        "hook": _identify(tensor._backward_hooks or {}),  # noqa: SLF001  # torch names no other way
        "attribute": _identify(vars(tensor)),
    }
