"""The torch operators and device kernels that did the work of a call, by their names in torch's profiler."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

__all__ = ["list_kernels"]

COPY = "aten::copy_"
# Prefixes of the names of torch operators that create a tensor or fill it with one number.
CREATORS = (
    "aten::empty", "aten::new_", "aten::zero", "aten::fill_", "aten::ones", "aten::full", "aten::resize_",
    "aten::scalar_tensor",
)  # fmt: skip
# Torch operators that do no work themselves, but call other operators that do. For example, aten::clone calls a copy,
# and aten::dropout calls a random generator and a product.
WRAPPERS = frozenset(
    {"aten::clone", "aten::to", "aten::_to_copy", "aten::_unsafe_view", "aten::dropout", "aten::promote_types"}
)
# Namespaces of profiler events that are not torch operators.
NO_OPERATORS = ("autograd::", "torch::", "profiler::", "c10d::")
# Largest number of profiler events for which the caller of each event is searched for. With more events, torch
# operators are listed by their names alone. A loop over tokens can cause a million events, whose callers take half a
# minute to find.
MOST_NESTED = 100_000
# A torch operator whose name contains this word is always listed, since its name shows the chosen backend.
ATTENTION = "attention"


@dataclass(slots=True)
class _Call:
    """One profiler event, and the events that it called."""

    name: str
    duration_ns: int
    parent: "_Call | None"
    children: list["_Call"] = field(default_factory=list)


def list_kernels(events: Sequence[Any]) -> tuple[str, ...]:
    """Names of the torch operators and device kernels that did the work of a call, in descending order of total time.

    `` ×3`` after a name means three calls. A torch operator is listed if it calls no other operator that does the work,
    or if its name contains "attention", which shows the chosen backend. Views and the creation of tensors are not work.
    A copy is not listed if a listed operator calls it directly. On CUDA, device kernels are listed in place of torch
    operators, except for operators whose name contains "attention".
    """
    found = [_Call(e.name(), e.duration_ns(), None) for e in events if not _is_on_cpu(e)]
    called = (
        _list_operators(events)
        if len(events) > MOST_NESTED
        else [call for top in _nest_events(events) for call in _find_work(top)]
    )
    found += [call for call in called if not found or ATTENTION in call.name]
    calls, total_ns = Counter(call.name for call in found), Counter[str]()
    for call in found:
        total_ns[call.name] += call.duration_ns
    return tuple(name if calls[name] == 1 else f"{name} ×{calls[name]}" for name, _ in total_ns.most_common())


def _list_operators(events: Sequence[Any]) -> list[_Call]:
    """Return all torch operators whose names show that they do work, even if their callers are listed as well."""
    return [_Call(e.name(), e.duration_ns(), None) for e in events if _is_on_cpu(e) and _is_work(e.name())]


def _nest_events(events: Sequence[Any]) -> list[_Call]:
    """Return the top-level events on the CPU, each with the events that it called.

    An event called the events of the same thread that lie within its time interval.
    """
    tops: list[_Call] = []
    stacks: dict[int, list[tuple[int, _Call]]] = {}
    own = [e for e in events if _is_on_cpu(e) and e.name() != "[memory]"]
    for event in sorted(own, key=lambda e: (e.start_ns(), -e.duration_ns())):
        stack = stacks.setdefault(event.start_thread_id(), [])
        end = event.start_ns() + event.duration_ns()
        while stack and stack[-1][0] < end:
            stack.pop()
        parent = stack[-1][1] if stack else None
        call = _Call(event.name(), event.duration_ns(), parent)
        (parent.children if parent else tops).append(call)
        stack.append((end, call))
    return tops


def _is_on_cpu(event: Any) -> bool:
    return bool(event.device_type().name == "CPU")


def _find_work(call: _Call) -> Iterator[_Call]:
    """The events that did the work of a call: the call itself, or events that it called."""
    below = [event for child in call.children for event in _find_work(child)]
    if not _is_work(call.name):
        return iter(below)
    if any(event.name != COPY for event in below) and ATTENTION not in call.name:
        return iter(below)
    return iter([call, *(event for event in below if event.name != COPY or event.parent is not call)])


@cache
def _is_work(name: str) -> bool:
    """Whether a torch operator does any work, judged by its name."""
    if "::" not in name or name.startswith((*NO_OPERATORS, *CREATORS)) or name in WRAPPERS:
        return False
    return not _is_view(name)


def _is_view(name: str) -> bool:
    """Whether a torch operator returns a view: its schema says that the result shares memory with an argument."""
    # torch has no public function that looks up an operator's schemas by its name.
    schemas = torch._C._jit_get_schemas_for_operator(name)  # noqa: SLF001
    aliases = [returned.alias_info for schema in schemas for returned in schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)
