"""Which operators and kernels did the work of a call, by the names that torch's profiler has for them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

__all__ = ["kernels"]

COPY = "aten::copy_"
# What begins a name of an operator that makes a tensor, or sets all of it to one number.
MAKERS = (
    "aten::empty", "aten::new_", "aten::zero", "aten::fill_", "aten::ones", "aten::full", "aten::resize_",
    "aten::scalar_tensor",
)  # fmt: skip
# Operators that do nothing, or leave the work to others: a copy, or the drawing and multiplying of a dropout.
CARRIERS = frozenset(
    {"aten::clone", "aten::to", "aten::_to_copy", "aten::_unsafe_view", "aten::dropout", "aten::promote_types"}
)
# Namespaces of events that are no operators.
NO_OPERATORS = ("autograd::", "torch::", "profiler::", "c10d::")
# Events beyond which nobody sorts out who made whom: a loop over tokens makes a million, which take half a minute.
MANY = 100_000
# A word in the name of an operator that is told even where others do its work: it says which way was taken.
ROUTE = "attention"


@dataclass(slots=True)
class _Call:
    """One event, and those that it made."""

    name: str
    duration_ns: int
    parent: "_Call | None"
    children: list["_Call"] = field(default_factory=list)


def kernels(events: Sequence[Any]) -> tuple[str, ...]:
    """Names of what did the work, the longest first, each with the number of its calls where that is not one.

    An operator counts if no other one does its work, or if its name says that it is attention: that tells which way
    was taken. Views and empty tensors are no work. A copy counts unless an operator makes it straight into its own
    result. On a device its kernels stand in the place of the operators that started them.
    """
    found = [_Call(e.name(), e.duration_ns(), None) for e in events if not _on_cpu(e)]
    called = _flat(events) if len(events) > MANY else [call for top in _nested(events) for call in _working(top)]
    found += [call for call in called if not found or ROUTE in call.name]
    calls, total_ns = Counter(call.name for call in found), Counter[str]()
    for call in found:
        total_ns[call.name] += call.duration_ns
    return tuple(name if calls[name] == 1 else f"{name} ×{calls[name]}" for name, _ in total_ns.most_common())


def _flat(events: Sequence[Any]) -> list[_Call]:
    """Operators that do work by their names, whoever made them."""
    return [_Call(e.name(), e.duration_ns(), None) for e in events if _on_cpu(e) and _is_work(e.name())]


def _nested(events: Sequence[Any]) -> list[_Call]:
    """Events on the CPU that no other one made, each with those that it made: an event lies within its maker's time."""
    tops: list[_Call] = []
    stacks: dict[int, list[tuple[int, _Call]]] = {}
    own = [e for e in events if _on_cpu(e) and e.name() != "[memory]"]
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


def _on_cpu(event: Any) -> bool:
    return bool(event.device_type().name == "CPU")


def _working(call: _Call) -> Iterator[_Call]:
    """What did the work of a call: itself, or others that it made."""
    below = [worker for child in call.children for worker in _working(child)]
    if not _is_work(call.name):
        return iter(below)
    if any(worker.name != COPY for worker in below) and ROUTE not in call.name:
        return iter(below)
    return iter([call, *(worker for worker in below if worker.name != COPY or worker.parent is not call)])


@cache
def _is_work(name: str) -> bool:
    """Whether an operator does something, as far as its name tells."""
    if "::" not in name or name.startswith((*NO_OPERATORS, *MAKERS)) or name in CARRIERS:
        return False
    return not _is_view(name)


def _is_view(name: str) -> bool:
    """Whether an operator returns its argument in another shape: its schema says that the two share their memory."""
    # Private, and the only place where torch says so of an operator by its name.
    schemas = torch._C._jit_get_schemas_for_operator(name)  # noqa: SLF001
    aliases = [returned.alias_info for schema in schemas for returned in schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)
