"""Wrong linear attention: each mutant has one mistake, a check that must fail, and a case on which that check fails."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import elu, relu

from attnbench.cases import Case, Mode
from attnbench.kernel import from_call
from attnbench.mutants.mutant import Mutant, MutantSet
from linear_attention.operator import OPERATOR, SMALL

__all__ = ["MUTANTS"]

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
_mutants: list[Mutant] = []


def _mutant(caught_by: str, why: str, mode: Mode = "eval") -> Callable[[Attention], Attention]:
    """Register a function as a mutant; the mutant's name is ``linear_`` followed by the name of the function."""

    def mark(attention: Attention) -> Attention:
        implementation = from_call(attention, operator=OPERATOR.name, name=f"linear_{attention.__name__}")
        shown_by = Case(operator=OPERATOR.name, problem=SMALL, mode=mode).id
        _mutants.append(Mutant(implementation=implementation, caught_by=caught_by, why=why, shown_by=shown_by))
        return attention

    return mark


def _features(tensor: Tensor) -> Tensor:
    return elu(tensor) + 1


def _attend(q: Tensor, k: Tensor, value: Tensor) -> Tensor:
    """Compute attention from features of queries and keys.

    Shape: q (batch, queries, width), k and value (batch, keys, width).
    """
    return q @ (k.mT @ value) / (q @ k.sum(dim=-2, keepdim=True).mT)


@_mutant(
    "forward_parity", "The division by the sum of the weights is missing: some linear transformers have a norm instead."
)
def not_divided(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _features(query) @ (_features(key).mT @ value)


@_mutant("repeated_keys_change_nothing", "The output is divided by the number of keys instead of the weights' sum.")
def divided_by_the_number_of_keys(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _features(query) @ (_features(key).mT @ value) / (key.shape[-2] + 1)


@_mutant("forward_parity", "elu without its + 1 gives negative features.")
def features_without_the_one(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _attend(elu(query), elu(key), value)


@_mutant("forward_parity", "relu in place of elu: all negative numbers get the same feature.")
def features_by_relu(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _attend(relu(query) + 1, relu(key) + 1, value)


@_mutant("forward_parity", "The feature map is applied to queries only.")
def keys_without_features(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _attend(_features(query), key, value)


@_mutant("forward_parity", "A constant that avoids division by zero is so large that it changes the output.")
def large_epsilon(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k = _features(query), _features(key)
    return q @ (k.mT @ value) / (q @ k.sum(dim=-2, keepdim=True).mT + 1e-2)


@_mutant("forward_parity", "The state of keys and values is kept in bfloat16.")
def state_in_bfloat16(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k = _features(query), _features(key)
    state = (k.mT @ value).bfloat16().to(value.dtype)
    return q @ state / (q @ k.sum(dim=-2, keepdim=True).mT)


@_mutant("forward_parity", "Keys are read in pairs, and the last key of an odd number is left out.")
def odd_key_left_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    even = key.shape[-2] - key.shape[-2] % 2 or 1
    return _attend(_features(query), _features(key[:, :even]), value[:, :even])


@_mutant("input_gradients", "The sum of the weights is taken for a constant in the backward pass.")
def sum_without_gradient(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k = _features(query), _features(key)
    return q @ (k.mT @ value) / (q @ k.sum(dim=-2, keepdim=True).mT).detach()


@_mutant("inputs_untouched", "The feature map overwrites the queries.", mode="inference")
def features_in_place(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _attend(torch.nn.functional.elu_(query).add_(1), _features(key), value)


@_mutant("strided_inputs", "Queries are read as if they were contiguous.", mode="inference")
def strides_ignored(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    flat = query.as_strided(query.shape, torch.empty(query.shape).stride())
    return _attend(_features(flat), _features(key), value)


MUTANTS = MutantSet(mutants=tuple(_mutants))
