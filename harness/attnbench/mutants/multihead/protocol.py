"""Mutants of the torch.nn.Module interface: registration, state, copies and functional calls."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant("tensors_are_registered", "a bias is a plain tensor instead of a parameter, so no optimiser updates it")
class _BiasNotRegistered(Formula):
    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        super().adopt(parameters)
        if self.out_proj.bias is not None:
            self._bias = self.out_proj.bias.detach().clone()
            self.out_proj.register_parameter("bias", None)

    def merge(self, heads: Tensor) -> Tensor:
        bias = getattr(self, "_bias", None)
        return linear(heads.transpose(1, 2).flatten(2), self.out_proj.weight, None if bias is None else bias.to(heads))


@mutant("tensors_are_registered", "the scale is a plain tensor, which to() does not convert")
class _ScaleNotMoved(Formula):
    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        super().adopt(parameters)
        self._scale = torch.full((1,), 1 / math.sqrt(self.head_dim), dtype=self.out_proj.weight.dtype)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * self._scale) @ k.mT


@mutant("copies_work", "a deep copy shares its parameters with the original module")
class _CopySharesParameters(Formula):
    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied


@mutant(
    "copies_work",
    "the module has a lambda as an attribute, which pickle cannot store",
    batch_first=False,
)
class _PickleRefused(Formula):
    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        super().adopt(parameters)
        if not self.batch_first:
            self._swap: Callable[[Tensor], Tensor] = lambda tensor: tensor.transpose(0, 1)


@mutant("copies_work", "unpickling loses the dropout rate", dropout=0.25)
class _PickleForgetsDropout(Formula):
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {"dropout": 0.0})  # type: ignore[no-untyped-call]


@mutant("state_dict_round_trip", "the output bias is missing from the state dict")
class _BiasNotSaved(Formula):
    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        state = super().state_dict(*arguments, **named)
        state.pop("out_proj.bias", None)
        return state


@mutant("state_dict_round_trip", "a weight is saved under a name that load_state_dict does not know", kdim=10, vdim=14)
class _SavedUnderAnotherName(Formula):
    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        state = super().state_dict(*arguments, **named)
        return {name.replace("q_proj_weight", "query.weight"): tensor for name, tensor in state.items()}


@mutant(
    "state_dict_round_trip",
    "load_state_dict does not load the output projection: calls use the old parameters",
)
class _LoadedIntoCopy(Formula):
    def load_state_dict(self, state_dict: Mapping[str, Any], *arguments: Any, **named: Any) -> Any:
        kept = {name: tensor for name, tensor in self.state_dict().items() if name.startswith("out_proj")}
        return super().load_state_dict({**state_dict, **kept}, *arguments, **named)


@mutant(
    "functional_call_works",
    "calls use parameters stored at construction, not those that functional_call puts in place",
)
class _ParametersRemembered(Formula):
    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        super().adopt(parameters)
        self._remembered = (self.out_proj.weight, self.out_proj.bias)

    def merge(self, heads: Tensor) -> Tensor:
        return linear(heads.transpose(1, 2).flatten(2), *self._remembered)
