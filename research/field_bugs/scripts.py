"""Parts of the functions that show faults by several calls, modes or threads, which no case describes."""

import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.mutants.multihead.formula import Formula
from research.field_bugs.faults import SHOWN, compare

__all__ = [
    "attempt",
    "differ",
    "evaluate",
    "fails",
    "hangs",
    "make_pair",
    "make_tokens",
    "race",
    "switching_often",
    "train",
]

# Seconds between switches of threads, much shorter than a call, so that races are frequent.
SWITCH_S = 1e-5
# Sizes of the calls of two threads: long enough that the threads run at the same time.
RACE_BATCH, RACE_LENGTH, RACE_WIDTH, RACE_HEADS = 4, 64, 64, 8


def make_pair(
    module: Any, *, seed: int = 0, dtype: torch.dtype = torch.float32, width: int = 16, heads: int = 2, **arguments: Any
) -> tuple[Any, Any]:
    """Return a module of the class and the correct formula, with the same random parameters."""
    torch.manual_seed(seed)
    reference = nn.MultiheadAttention(width, heads, batch_first=True, dtype=dtype, **arguments)
    for parameter in reference.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return module(reference), Formula(reference)


def make_tokens(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    """Draw normally distributed tokens."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(dtype).requires_grad_(grad)


def differ(found: Any, right: Any) -> float:
    """Return the difference of two tensors, or of two tuples of tensors and None."""
    both = [one if isinstance(one, tuple) else (one,) for one in (found, right)]
    named = [{str(number): x for number, x in enumerate(one) if x is not None} for one in both]
    return compare(*named)


def evaluate(module: Any, tokens: Tensor, **named: Any) -> Any:
    """Make a call without gradients."""
    with torch.no_grad():
        return module(tokens, tokens, tokens, **named)


def train(module: Any, tokens: Tensor) -> Tensor:
    """Make a call with a backward pass; return the gradient of the tokens."""
    leaf = tokens.detach().clone().requires_grad_()
    module(leaf, leaf, leaf)[0].pow(2).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def fails(call: Callable[[], object]) -> float:
    """Return 1 if the call raises an exception, else 0."""
    try:
        call()
    except Exception:  # noqa: BLE001  # any exception is the fault
        return 1.0
    return 0.0


def attempt(measure: Callable[[], float]) -> float:
    """Return what ``measure`` returns; infinite if it raises."""
    try:
        return measure()
    except Exception:  # noqa: BLE001  # any exception is the fault
        return math.inf


@contextmanager
def switching_often() -> Iterator[None]:
    """Context in which threads switch every ``SWITCH_S``, and a call has one thread of its own."""
    before, threads = sys.getswitchinterval(), torch.get_num_threads()
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        torch.set_num_threads(threads)


def hangs(calls: Sequence[Callable[[], object]], *, limit_s: float) -> float:
    """Return 1 if one of the calls, each in a thread of its own, has not returned after ``limit_s``, else 0."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    with switching_often():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(limit_s)
    return float(any(thread.is_alive() for thread in threads))


def _measure_call(wrong: Any, x: Tensor, right: Any, named: dict[str, Any]) -> float:
    return differ(evaluate(wrong, x, **named), right)


def race(module: Any, *, masks: bool = False, weights: bool = False, modules: int = 1, together: bool = True,
         rounds: int = 150, dtype: torch.dtype = torch.float32) -> float:  # fmt: skip
    """Return the difference in calls of two threads, each with other tokens; one after the other if not ``together``.

    With ``masks`` each thread has another mask; with ``weights`` one of them asks for weights. Each of ``modules``
    modules is called ``rounds`` times, or until a call differs.
    """
    pairs = [make_pair(module, width=RACE_WIDTH, heads=RACE_HEADS, dtype=dtype) for _ in range(modules)]
    barrier, worst = threading.Barrier(2 if together else 1), [0.0, 0.0]

    def work(number: int) -> None:
        x = make_tokens(RACE_BATCH, RACE_LENGTH, RACE_WIDTH, seed=number, dtype=dtype)
        named: dict[str, Any] = {"need_weights": weights and number == 0}
        if masks:
            mask = torch.ones(RACE_LENGTH, RACE_LENGTH, dtype=torch.bool).triu(1 - 4 * number)
            named["attn_mask"] = mask & ~torch.eye(RACE_LENGTH, dtype=torch.bool)
        right = evaluate(pairs[0][1], x, **named)
        for wrong in [wrong for wrong, _ in pairs] * rounds:
            try:
                barrier.wait()
            except threading.BrokenBarrierError:
                return
            worst[number] = attempt(partial(_measure_call, wrong, x, right, named))
            if worst[number] > SHOWN:
                barrier.abort()
                return

    with switching_often():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
            if not together:
                thread.join()
        for thread in threads:
            thread.join()
    return max(worst)
