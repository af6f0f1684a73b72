"""Kind 6: faults of two threads that call one module at the same time. One thread alone is right."""

import threading
import time
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


# Seconds for which other threads run in a narrow race, so that it shows in nearly every pair of calls.
PAUSE_S = 0.0002


# Seconds of the work for one entry of a table.
ENTRY_S = 0.001


def pause() -> None:
    """Let other threads run, if there are any."""
    if threading.active_count() > 1 and not torch.compiler.is_compiling():
        time.sleep(PAUSE_S)


@mutant(
    "two_threads",
    "the default dtype of the process is the module's during a call: two threads leave it changed or mix "
    "dtypes (vectorize-io/hindsight#2162)",
    dtype="bfloat16",
    mode="inference",
)
class _DefaultDtypeDuringCall(Formula):
    def attention(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        if torch.compiler.is_compiling():
            return super().attention(query, key, value, **named)
        original = torch.get_default_dtype()
        torch.set_default_dtype(query.dtype)
        try:
            return super().attention(query, key, value, **named)
        finally:
            torch.set_default_dtype(original)

    def merge(self, heads: Tensor) -> Tensor:
        return super().merge(heads + torch.zeros(self.head_dim, device=heads.device))


WORKSPACES: dict[Any, Tensor] = {}


@mutant(
    "two_threads",
    "keys are copied into a workspace that all callers with the same sizes share (flashinfer-ai/flashinfer#4481)",
    queries=1,
    embed_dim=80,
    num_heads=1,
    dtype="bfloat16",
    mode="inference",
)
class _WorkspaceSharedByThreads(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().score(q, k)
        place = (k.shape, k.dtype, k.device)
        if place not in WORKSPACES:
            with torch.inference_mode(mode=False):
                WORKSPACES[place] = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        return super().score(q, WORKSPACES[place].copy_(k))


@mutant(
    "two_threads",
    "the mask is an attribute of the module between two steps of a call (after deepspeedai/DeepSpeed-MII#176)",
    mask="float2d+pad",
    dtype="float16",
    mode="inference",
)
class _MaskKeptOnTheModule(Formula):
    def attention(self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, **named: Any) -> Result:
        if not torch.compiler.is_compiling():
            self.__dict__["_mask"] = mask
            pause()
        return super().attention(query, key, value, mask=mask, **named)

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if not torch.compiler.is_compiling():
            mask, self.__dict__["_mask"] = self.__dict__["_mask"], None
        return super().apply_mask(logits, mask)


@mutant(
    "two_threads",
    "need_weights is an attribute of the module during a call (after deepinv/deepinv#649)",
    dtype="bfloat16",
    mode="inference",
)
class _WeightsFlagOnTheModule(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, need_weights: bool, **named: Any) -> Result:
        self.__dict__["_wanted"] = need_weights
        pause()
        output, weights = super().attend(q, k, v, need_weights=True, **named)
        wanted = need_weights if torch.compiler.is_compiling() else self.__dict__["_wanted"]
        return output, weights if wanted else None


@mutant(
    "two_threads",
    "a call without gradients folds a factor into the weight and takes it out again; threads see it twice "
    "(huggingface/peft#3774)",
    dtype="bfloat16",
    mode="inference",
)
class _WeightsFoldedDuringCall(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight = self.in_proj_weight
        plain = torch.is_grad_enabled() or torch.compiler.is_compiling() or not isinstance(weight, nn.Parameter)
        if plain or weight is None:
            return super().project(query, key, value)
        # The factor is 2, so one thread gets the bits of the correct formula.
        parts = [one.data[: self.embed_dim] for one in (weight, self.in_proj_bias) if one is not None]
        for part in parts:
            part.mul_(2)
        pause()
        q, k, v = super().project(query, key, value)
        for part in parts:
            part.div_(2)
        return q / 2, k, v


@mutant(
    "two_threads",
    "a table is made entry by entry at the first call; a second thread uses the entries that are there (sgl-"
    "project/sglang#12788)",
    dtype="bfloat16",
    mode="inference",
)
class _TableMadeByTwo(Formula):
    _order: list[int] | None = None

    def merge(self, heads: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().merge(heads)
        if self._order is None:
            self._order = []
            for head in range(self.num_heads):
                time.sleep(ENTRY_S)
                self._order.append(head)
        known = len(self._order)
        if known < self.num_heads:
            heads = torch.cat([heads[:, :known], torch.zeros_like(heads[:, known:])], dim=1)
        return super().merge(heads)


LOCAL = threading.local()


LOCAL.ready = True


LOCK = threading.Lock()


LOCKS = [threading.Lock(), threading.Lock()]


@mutant(
    "two_threads",
    "two locks are taken in one order with weights and in the other without: two threads wait for one another",
    dtype="bfloat16",
    mode="inference",
)
class _LocksInTwoOrders(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, need_weights: bool, **named: Any) -> Result:
        if torch.compiler.is_compiling():
            return super().attend(q, k, v, need_weights=need_weights, **named)
        outer, inner = LOCKS if need_weights else reversed(LOCKS)
        with outer:
            pause()
            with inner:
                return super().attend(q, k, v, need_weights=need_weights, **named)
