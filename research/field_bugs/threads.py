"""Kind 6: faults of two threads that call one module at the same time. One thread alone is right."""

import threading
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.mutants.multihead.formula import Arguments, Formula, Result
from research.field_bugs.faults import FaultList
from research.field_bugs.scripts import attempt, differ, fails, hangs, make_pair, make_tokens, race

__all__ = ["fault"]

fault = FaultList()
TOKENS = make_tokens(2, 5, 16)
# Seconds for which other threads run in a narrow race, so that it shows in nearly every pair of calls.
PAUSE_S = 0.0002
# Seconds of the work for one entry of a table.
ENTRY_S = 0.001
# Seconds without an end after which a call hangs, and number of calls of each of two threads that may lock each other.
LIMIT_S, CALLS = 3.0, 100


def pause() -> None:
    """Let other threads run, if there are any."""
    if threading.active_count() > 1 and not torch.compiler.is_compiling():
        time.sleep(PAUSE_S)


def call(module: Any, **named: Any) -> Any:
    """Make a call of the tokens."""
    return module(TOKENS, TOKENS, TOKENS, **named)


def call_elsewhere(module: Any, *, own_thread: bool) -> float:
    """Return the difference in a call of another thread, or of this one."""
    wrong, right = make_pair(module)
    found: list[float] = []

    def work() -> None:
        found.append(attempt(lambda: differ(call(wrong), call(right))))

    thread = threading.Thread(target=work)
    thread.start() if own_thread else work()
    thread.join() if own_thread else None
    return found[0]


def refuse(module: Any, *, refused: bool) -> float:
    """Return whether a call hangs after a call with a mask of a wrong shape; the lock is opened again."""
    wrong, _ = make_pair(module)
    if refused:
        fails(lambda: call(wrong, attn_mask=torch.zeros(3, 3)))
    found = hangs([lambda: call(wrong)], limit_s=LIMIT_S)
    if LOCK.locked():
        LOCK.release()
    return found


def change_default(module: Any, dtype: torch.dtype, **named: Any) -> float:
    """Return the difference in calls of two threads; 1 if they leave another default dtype, which is restored."""
    before = torch.get_default_dtype()
    found = race(module, dtype=dtype, **named)
    left = torch.get_default_dtype()
    torch.set_default_dtype(before)
    return found or float(left != before)


def lock_each_other(module: Any, *, threads: int) -> float:
    """Return whether threads hang that call with and without weights; one thread makes both.

    The locks are new afterwards.
    """
    wrong, _ = make_pair(module)

    def work(need_weights: bool) -> None:  # noqa: FBT001
        for _ in range(CALLS):
            call(wrong, need_weights=need_weights)

    both = [partial(work, need_weights) for need_weights in (True, False)]
    found = hangs(both if threads == 2 else [lambda: [one() for one in both]], limit_s=LIMIT_S)
    LOCKS[:] = threading.Lock(), threading.Lock()
    return found


@fault(
    "bug", 6,
    source="https://github.com/vectorize-io/hindsight/issues/2162",
    condition="two threads call a module in another dtype than the default",
    under=lambda module: change_default(module, torch.bfloat16),
    beside=[lambda module: change_default(module, torch.bfloat16, together=False),
            lambda module: change_default(module, torch.float32)],
)  # fmt: skip
class DefaultDtypeDuringACall(Formula):
    """The default dtype of the process is the module's during a call: two threads leave it changed or mix dtypes."""

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


@fault(
    "bug", 6,
    source="https://github.com/flashinfer-ai/flashinfer/pull/4481",
    condition="two threads, calls of equal sizes without gradients, of one module or two",
    under=race,
    beside=[lambda module: race(module, together=False)],
)  # fmt: skip
class WorkspaceSharedByThreads(Formula):
    """Keys are copied into a workspace that all callers with the same sizes share."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().score(q, k)
        place = (k.shape, k.dtype, k.device)
        if place not in WORKSPACES:
            with torch.inference_mode(mode=False):
                WORKSPACES[place] = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        return super().score(q, WORKSPACES[place].copy_(k))


@fault(
    "mutant", 6,
    source="https://github.com/deepspeedai/DeepSpeed-MII/issues/176",
    inferred=True,
    condition="two threads, calls of equal sizes with other masks",
    under=lambda module: race(module, masks=True),
    beside=[lambda module: race(module, masks=True, together=False)],
)  # fmt: skip
class MaskKeptOnTheModule(Formula):
    """The mask is an attribute of the module between two steps of a call."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, **named: Any) -> Result:
        if not torch.compiler.is_compiling():
            self.__dict__["_mask"] = mask
            pause()
        return super().attention(query, key, value, mask=mask, **named)

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if not torch.compiler.is_compiling():
            mask, self.__dict__["_mask"] = self.__dict__["_mask"], None
        return super().apply_mask(logits, mask)


@fault(
    "mutant", 6,
    source="https://github.com/deepinv/deepinv/issues/649",
    inferred=True,
    condition="two threads, one asks for weights and the other does not",
    under=lambda module: race(module, weights=True),
    beside=[lambda module: race(module, weights=True, together=False)],
)  # fmt: skip
class WeightsFlagOnTheModule(Formula):
    """need_weights is an attribute of the module during a call."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, need_weights: bool, **named: Any) -> Result:
        self.__dict__["_wanted"] = need_weights
        pause()
        output, weights = super().attend(q, k, v, need_weights=True, **named)
        wanted = need_weights if torch.compiler.is_compiling() else self.__dict__["_wanted"]
        return output, weights if wanted else None


@fault(
    "mutant", 6,
    source="https://github.com/huggingface/peft/issues/3774",
    condition="two threads, calls without gradients, packed projections",
    under=race,
    beside=[lambda module: race(module, together=False)],
)  # fmt: skip
class WeightsFoldedDuringACall(Formula):
    """A call without gradients folds a factor into the weight and takes it out again; threads see it twice."""

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


@fault(
    "mutant", 6,
    source="https://github.com/sgl-project/sglang/pull/12788",
    condition="two threads make the first call of a module",
    under=lambda module: race(module, modules=20, rounds=1),
    beside=[lambda module: race(module, modules=5, rounds=1, together=False)],
)  # fmt: skip
class TableMadeByTwo(Formula):
    """A table is made entry by entry at the first call; a second thread uses the entries that are there."""

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


@fault(
    "mutant", 6,
    source="https://github.com/ml-explore/mlx/issues/2133",
    condition="a call of another thread than the one that imported the module",
    under=lambda module: call_elsewhere(module, own_thread=True),
    beside=[lambda module: call_elsewhere(module, own_thread=False)],
)  # fmt: skip
class SettingsOfTheMainThread(Formula):
    """Settings are kept for each thread and made on import: another thread has none, and raises."""

    def read_arguments(self, given: Arguments) -> Arguments:
        return given if torch.compiler.is_compiling() or LOCAL.ready else {}


LOCK = threading.Lock()


@fault(
    "mutant", 6,
    source="https://github.com/deepspeedai/DeepSpeed-MII/issues/176",
    inferred=True,
    condition="a call that raises, then any call of a module of the class",
    under=lambda module: refuse(module, refused=True),
    beside=[lambda module: refuse(module, refused=False)],
)  # fmt: skip
class LockKeptAfterARefusal(Formula):
    """Calls are serialised by a lock that an exception leaves closed: every later call hangs."""

    def read_arguments(self, given: Arguments) -> Arguments:
        if not torch.compiler.is_compiling():
            LOCK.acquire()
        return given

    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        if not torch.compiler.is_compiling():
            LOCK.release()
        return output, weights


LOCKS = [threading.Lock(), threading.Lock()]


@fault(
    "mutant", 6,
    source="",
    inferred=True,
    condition="two threads, one asks for weights and the other does not",
    under=lambda module: lock_each_other(module, threads=2),
    beside=[lambda module: lock_each_other(module, threads=1)],
)  # fmt: skip
class LocksInTwoOrders(Formula):
    """Two locks are taken in one order with weights and in the other without: two threads wait for one another."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, need_weights: bool, **named: Any) -> Result:
        if torch.compiler.is_compiling():
            return super().attend(q, k, v, need_weights=need_weights, **named)
        outer, inner = LOCKS if need_weights else reversed(LOCKS)
        with outer:
            pause()
            with inner:
                return super().attend(q, k, v, need_weights=need_weights, **named)
