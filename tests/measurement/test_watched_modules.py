"""Tests of ``WatchedModules``, which finds changes of the modules and tensors of a baseline."""

from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn

from attnbench.measurement.watched_modules import WatchedModules
from attnbench.records.value_facts import phrase


def make_reference() -> nn.MultiheadAttention:
    """Make a small reference."""
    return nn.MultiheadAttention(4, 2, batch_first=True)


class Slow(nn.MultiheadAttention):
    """A class that a cheat could give to the reference."""


def give_method(module: Any) -> None:
    """Give a module a method of its own."""
    module.forward = MethodType(nn.MultiheadAttention.forward, module)


def give_class(module: Any) -> None:
    """Give a module another class."""
    module.__class__ = Slow


def give_memory(module: Any) -> None:
    """Give a parameter other memory with the same numbers."""
    module.in_proj_weight.data = module.in_proj_weight.data.clone()


CHANGES: dict[str, Callable[[Any], object]] = {
    "_forward_pre_hooks": lambda module: module.register_forward_pre_hook(lambda *_: None),
    "_forward_hooks": lambda module: module.out_proj.register_forward_hook(lambda *_: None),
    "_backward_hooks": lambda module: module.register_full_backward_hook(lambda *_: None),
    "forward": give_method,
    "class": give_class,
    "batch_first": lambda module: setattr(module, "batch_first", False),
    "memory": give_memory,
    "hook": lambda module: module.in_proj_weight.register_hook(lambda gradient: gradient),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_reference_is_found(name: str) -> None:
    """A hook, a method, a class, an option or other memory of one module of torch is found."""
    module = make_reference()
    watched = WatchedModules([module])
    CHANGES[name](module)
    assert any(change.values["name"] == name for change in watched.find_changes())


def test_a_hook_of_an_input_is_found() -> None:
    """A hook of an input tensor runs in the backward pass."""
    query = torch.ones(2, requires_grad=True)
    watched = WatchedModules([], [query])
    query.register_hook(lambda gradient: gradient)
    assert watched.find_changes() == [phrase("changed_of_baseline", name="hook", kind="tensor")]


@pytest.mark.parametrize("training", [False, True])
def test_calls_of_the_reference_change_nothing(training: bool) -> None:
    """Forward and backward passes of the reference, and new values of its input, change nothing."""
    module = make_reference().train(training)
    query = torch.ones(1, 3, 4, requires_grad=True)
    watched = WatchedModules([module], [query])
    for _ in range(2):
        output, _ = module(query, query, query)
        torch.autograd.grad(output.sum(), [query, *module.parameters()])
        with torch.no_grad():
            query.mul_(-1)
    assert watched.find_changes() == []


def test_layers_that_change_themselves_are_not_watched() -> None:
    """A layer of another class may change its own attributes, and a lazy layer gets another class."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count, self.inner = 0, nn.LazyLinear(2)

        def forward(self, query: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return self.inner(query)  # type: ignore[no-any-return]

    module = Counting()
    watched = WatchedModules([module, object()])
    module(torch.ones(1, 3))
    assert watched.find_changes() == []
