"""Honest oddities that touch what all implementations in the process share, or leave work to others."""

import gc
import subprocess
import sys
import time

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnbench.interface import Call
from attncheats.cheat import OddityList
from attncheats.labour import Labour

__all__ = ["oddities"]

oddities = OddityList()
# Seconds for which an object waits when it is freed.
FAREWELL_S = 0.05
# Program that uses processor time for a while, as a compiler does.
COMPILER = "import time\nend = time.process_time() + 0.25\nwhile time.process_time() < end: pass"


@oddities("a context chooses the kernel of attention in every call, and restores torch's choice")
def chooses_its_kernel(labour: Labour) -> Call:
    """Use ``torch.nn.attention.sdpa_kernel``."""

    def call(query: Tensor) -> Tensor:
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
            scaled_dot_product_attention(query[:, None], query[:, None], query[:, None])
        return labour(query)

    return call


@oddities("a library that is imported when the call is prepared adds a callback to the garbage collection")
def collects_for_others(labour: Labour) -> Call:
    """Add a callback, as the import of jax does."""
    gc.callbacks.append(lambda *_: None)
    return labour


class _Farewell:
    """An object that waits when it is freed, as one does that joins a thread."""

    def __del__(self) -> None:
        time.sleep(FAREWELL_S)


@oddities("an object that belongs to the call waits when it is freed")
def waits_when_freed(labour: Labour) -> Call:
    """Hold objects that take time to free."""
    held = [_Farewell() for _ in range(8)]

    def call(query: Tensor) -> Tensor:
        assert held
        return labour(query)

    return call


@oddities("the first call starts a process that works for a while, as a compiler does, beside later calls")
def compiles_in_background(labour: Labour) -> Call:
    """Start a process in its first call."""
    compiler: list[subprocess.Popen[bytes]] = []

    def call(query: Tensor) -> Tensor:
        if not compiler:
            compiler.append(subprocess.Popen([sys.executable, "-c", COMPILER]))
        compiler[0].poll()
        return labour(query)

    return call
