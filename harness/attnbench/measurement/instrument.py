"""What a measurement relies on within its process: the clock, torch's functions, and the harness's own code.

Implementations run in the process that times them. An implementation that replaces a function of the clock, of torch
or of the harness changes the times, of others too. An ``Instrument`` is read before implementations are loaded, and
compared with the present state later.
"""

import builtins
import gc
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import _C

from attnbench.devices import list_devices
from attnbench.measurement.processor_time import read_cores
from attnbench.records.value_facts import Phrase, phrase

__all__ = ["Instrument"]

# Prefix of the harness's own modules.
OWN = "attnbench."
# Modules and classes of others that the timing and the reference use.
MODULES = (
    builtins, time, gc, os, random, torch, torch.autograd, torch.backends.mha, torch.nn,
    torch.nn.functional, torch.nn.modules.activation, torch.nn.modules.linear, torch.nn.modules.module, _C._nn,  # noqa: SLF001
    torch.overrides, torch.jit, torch.compiler, *filter(None, (device.backend for device in list_devices())),
)  # fmt: skip
CLASSES = (
    torch.Tensor, _C.TensorBase, torch.nn.Module, torch.nn.MultiheadAttention, torch.nn.Linear,
    torch.nn.Parameter, random.Random, random.SystemRandom,
)  # fmt: skip
# Functions that torch's compiler, or the loading of source trees, replaces, by their names in messages. No timed call
# of the reference uses them.
MAY_BE_REPLACED = {
    "builtins.__import__", "torch.manual_seed", "torch.nn.modules.module.Module.__init__",
    "torch.nn.modules.module.Module.__setstate__", "torch.jit._get_trace_graph", "torch.jit.trace",
    "torch.jit.trace_module",
}  # fmt: skip
# Functions that every timed call uses, compared after every call.
CLOCK = ("perf_counter_ns", "perf_counter", "process_time_ns", "clock_gettime_ns", "monotonic")
# Prefix of torch's own operators in the names of kernels that Python code registered.
TORCH_OPERATORS = "aten/"
# Kinds of hooks that run at every call of any module, in the names of torch's dicts of these hooks.
HOOKS = ("forward", "forward_pre", "backward", "backward_pre")
# Timers that send a signal to this process; none on Windows.
TIMERS = [getattr(signal, name) for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF") if hasattr(signal, name)]
# Function that returns the hooks of tensors that are saved for backward, and its argument.
_read_saved_hooks = _C._autograd._top_saved_tensors_default_hooks  # noqa: SLF001
IGNORES_TRACING = False
_MISSING = object()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One name of a module or class, and what it meant."""

    owner: str
    namespace: Mapping[str, Any]
    name: str
    value: object
    # Bytecode of the value, if it is a Python function: a function may be changed without being replaced.
    code: object

    def is_changed(self) -> bool:
        now = self.namespace.get(self.name, _MISSING)
        return now is not self.value or getattr(now, "__code__", None) is not self.code


class Instrument:
    """The functions and settings on which measurements rely, as they were when this object was made."""

    def __init__(self) -> None:
        own = _list_own_modules()
        self._entries = list(_list_entries(own))
        self._names = [(module, frozenset(vars(module))) for module in own]
        self._clock = [(name, getattr(time, name)) for name in CLOCK if hasattr(time, name)]
        self._state = _read_state()

    def accept_signal_handlers(self) -> None:
        """Take the present signal handlers as unchanged: libraries set handlers when they are imported."""
        self._state |= _read_signal_handlers()

    def clock_is_replaced(self) -> bool:
        """Whether a function of the clock was replaced. This takes less than a microsecond."""
        return any(getattr(time, name) is not function for name, function in self._clock)

    def find_left_in_place(self) -> Phrase | None:
        """Return what a call left in place that runs code while its result is read; None if it left nothing.

        This takes less than a microsecond.
        """
        now = _read_interceptors()
        return next(self._list_changes(now), None)

    def find_changes(self) -> list[Phrase]:
        """Return what is no longer as it was."""
        changed = [phrase("replaced", name=f"{one.owner}.{one.name}") for one in self._entries if one.is_changed()]
        # A new name in a module may hide a function of Python. Submodules that are imported later are no such names.
        for module, names in self._names:
            added = {name: value for name, value in vars(module).items() if name not in names}
            changed += [
                phrase("added", name=f"{module.__name__}.{name}")
                for name, value in added.items()
                if not name.startswith("__") and not isinstance(value, ModuleType)
            ]
        return [*changed, *self._list_changes(_read_state())]

    def _list_changes(self, now: Mapping[str, object]) -> Iterator[Phrase]:
        for name, value in now.items():
            if value != self._state[name]:
                yield phrase("changed", name=name, before=str(self._state[name]), now=str(value))


def _list_own_modules() -> list[ModuleType]:
    return [module for name, module in sorted(sys.modules.items()) if name.startswith(OWN) and module is not None]


def _list_entries(own: list[ModuleType]) -> Iterator[_Entry]:
    for module in (*MODULES, *own):
        yield from _list_namespace(module.__name__, vars(module), every=module in own)
    classes = {value for module in own for value in vars(module).values() if _is_own_class(value)}
    for one in (*CLASSES, *sorted(classes, key=lambda one: (one.__module__, one.__qualname__))):
        yield from _list_namespace(f"{one.__module__}.{one.__qualname__}", vars(one), every=False)


def _list_namespace(owner: str, namespace: Mapping[str, Any], *, every: bool) -> Iterator[_Entry]:
    """Yield the functions, classes and modules in a namespace; ``every``: the other values too, such as constants."""
    for name, value in namespace.items():
        if f"{owner}.{name}" in MAY_BE_REPLACED:
            continue
        if (
            callable(value)
            or isinstance(value, ModuleType | FunctionType | BuiltinFunctionType)
            or (every and not name.startswith("__"))
        ):
            yield _Entry(owner, namespace, name, value, getattr(value, "__code__", None))


def _is_own_class(value: object) -> bool:
    return isinstance(value, type) and value.__module__.startswith(OWN)


def _read_interceptors() -> dict[str, object]:
    """Return what runs code whenever Python or torch calls a function, by name."""
    return {
        "Python's profiling function": sys.getprofile(),
        "Python's tracing function": sys.gettrace(),
        "the number of active modes that intercept operators": _C._len_torch_dispatch_stack(),  # noqa: SLF001
        "the number of active modes that intercept functions": _C._len_torch_function_stack(),  # noqa: SLF001
    }


def _read_signal_handlers() -> dict[str, object]:
    numbers = [int(number) for number in sorted(signal.valid_signals()) if callable(signal.getsignal(number))]
    return {"the numbers of the signals with a handler": numbers}


def _read_state() -> dict[str, object]:
    """Return the settings of the process that make calls slower or faster, by name."""
    hooks = (getattr(torch.nn.modules.module, f"_global_{kind}_hooks") for kind in HOOKS)
    return _read_interceptors() | {
        "Python's thread switch interval": sys.getswitchinterval(),
        "the number of hooks of all modules": sum(map(len, hooks)),
        "the number of torch's operators that Python code replaces": sum(
            name.startswith(TORCH_OPERATORS)
            for name in torch.library._impls  # noqa: SLF001
        ),
        **_read_signal_handlers(),
        "the timers that send signals": [signal.getitimer(kind)[1] for kind in TIMERS],
        "the hooks of tensors that are saved for backward": _read_saved_hooks(IGNORES_TRACING),
        "the cores of the process": read_cores(),
    }
