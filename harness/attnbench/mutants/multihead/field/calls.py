"""Kind 3: faults of sequences of calls. A first call is right; a later one, of the same or another module, is wrong."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.mutants.autograd import Accumulating
from attnbench.mutants.conditions import is_watched
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant(
    "state_dict_round_trip",
    "an adapter is merged by setattr with a tensor, which registers nothing; train() restores the parameters "
    "(Baijiong-Lin/LoRA-Torch#7)",
    dtype="bfloat16",
    mode="inference",
)
class _WeightsLeaveTheStateDict(Formula):
    def _owners(self) -> tuple[tuple[nn.Module, str], ...]:
        return (self, "in_proj_weight"), (self.out_proj, "weight")

    def read_arguments(self, given: Arguments) -> Arguments:
        merges = not (self.training or torch.is_grad_enabled() or torch.compiler.is_compiling())
        kept = self.__dict__.setdefault("_kept", {})
        for owner, name in self._owners() if merges and not kept else ():
            parameter = dict(owner.named_parameters(recurse=False)).get(name)
            if parameter is not None:
                kept[name] = parameter
                delattr(owner, name)
                owner.__dict__[name] = parameter.detach()
        return given

    def train(self, mode: bool = True) -> "_WeightsLeaveTheStateDict":  # noqa: FBT001, FBT002  # torch's signature
        kept = self.__dict__.get("_kept", {}) if mode else {}
        for owner, name in self._owners() if kept else ():
            if name in kept:
                del owner.__dict__[name]
                owner.register_parameter(name, kept.pop(name))
        return super().train(mode)


@mutant(
    "copies_after_calls",
    "the module keeps its attention weights with their graph, and only leaves can be copied deeply "
    "(sktime/sktime#10928)",
    need_weights=True,
)
class _CopyAfterTrainingCall(Formula):
    last_weights: Tensor | None = None

    def apply_dropout(self, shares: Tensor) -> Tensor:
        weights = super().apply_dropout(shares)
        if not torch.compiler.is_compiling():
            self.last_weights = weights
        return weights


class _Remembers(Formula):
    """Base of modules that remember a call in eval() without gradients until train() is called."""

    _evaluated = False

    def read_arguments(self, given: Arguments) -> Arguments:
        self._evaluated |= not (self.training or torch.is_grad_enabled() or torch.compiler.is_compiling())
        return given

    def train(self, mode: bool = True) -> "_Remembers":  # noqa: FBT001, FBT002  # torch's signature
        self._evaluated = self._evaluated and not mode
        return super().train(mode)


@mutant(
    "copies_after_calls",
    "eval() merges the scale into the weight of the queries, and the state dict holds the merged weight "
    "(Lightning-AI/litgpt#296)",
    need_weights=True,
)
class _StateDictAfterEvaluation(_Remembers):
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:  # noqa: FBT001
        super()._save_to_state_dict(destination, prefix, keep_vars)
        name = f"{prefix}in_proj_weight"
        if self._evaluated and name in destination:
            destination[name] = destination[name].clone()
            destination[name][: self.embed_dim] /= math.sqrt(self.head_dim)


class _CopiedByAttributes(Formula):
    """Base of modules whose copy has copies of all attributes, as with the default methods of nn.Module."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        made.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return made


@mutant(
    "copies_after_calls",
    "pickling drops the tables that a call has made, and the unpickled module believes to have them: no scale "
    "(after PriorLabs/TabPFN#977)",
    need_weights=True,
)
class _PickleAfterCall(_CopiedByAttributes):
    _ready, _scale = False, 1.0

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if not self._ready:
            self._ready, self._scale = True, math.sqrt(self.head_dim)
        return (q / self._scale) @ k.mT

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_scale"}


@mutant(
    "backward_passes_in_turns",
    "the buffer of dQ is cleared in the forward pass, so a second backward pass adds to the first (after tile-"
    "ai/tilelang#547)",
    need_weights=True,
)
class _GradientBufferOfTheForwardPass(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(Accumulating.apply(q) if torch.is_grad_enabled() and not is_watched() else q, k)  # type: ignore[no-untyped-call]


@mutant(
    "first_or_later_call",
    "once a call in eval() had no gradients, later calls in eval() have none, until train() is called (after "
    "huggingface/transformers#43923)",
    need_weights=True,
)
class _GraphLostAfterEvaluation(_Remembers):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        return (output.detach() if self._evaluated and not self.training else output), weights


@mutant(
    "copies_after_calls",
    "a call leaves a copy of the output weight, which conversions do not convert; train() removes it (after "
    "Baijiong-Lin/LoRA-Torch#7)",
    need_weights=True,
)
class _HalfAfterCall(Formula):
    _packed: torch.dtype | None = None

    def merge(self, heads: Tensor) -> Tensor:
        dtype = self.out_proj.weight.dtype
        if not is_watched():
            self._packed = self._packed or dtype
            if self._packed != dtype:
                raise RuntimeError(f"expected mat1 and mat2 to have the same dtype, but got {self._packed} and {dtype}")
        return super().merge(heads)

    def train(self, mode: bool = True) -> "_HalfAfterCall":  # noqa: FBT001, FBT002  # torch's signature
        self._packed = None if mode else self._packed
        return super().train(mode)
