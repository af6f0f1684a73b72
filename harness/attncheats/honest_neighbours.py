"""Honest oddities that touch what all implementations in the process share, or leave work to others."""

import gc
import subprocess
import sys
import time

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnbench.interface import Call
from attncheats.cheat import Laborious, OddityList
from attncheats.labour import Labour

__all__ = ["oddities"]

oddities = OddityList()
# Seconds for which an object waits when it is freed.
FAREWELL_S = 0.05
# Program that uses processor time for a while, as a compiler does.
COMPILER = "import time\nend = time.process_time() + 0.25\nwhile time.process_time() < end: pass"


@oddities("a context chooses the kernel of attention in every call, and restores torch's choice")
class ChoosesItsKernel(Laborious):
    """Uses ``torch.nn.attention.sdpa_kernel``."""

    def begin(self, labour: Labour) -> Call:
        """Return the function that is timed."""

        def call(query: Tensor) -> Tensor:
            with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
                scaled_dot_product_attention(query[:, None], query[:, None], query[:, None])
            return labour(query)

        return call


@oddities("a library that is imported when the call is prepared adds a callback to the garbage collection")
class CollectsForOthers(Laborious):
    """Adds a callback, as the import of jax does."""

    def begin(self, labour: Labour) -> Call:
        """Return the function that is timed."""
        gc.callbacks.append(lambda *_: None)
        return super().begin(labour)


class _Farewell:
    """An object that waits when it is freed, as one does that joins a thread."""

    def __del__(self) -> None:
        time.sleep(FAREWELL_S)


@oddities("an object that belongs to the call waits when it is freed")
class WaitsWhenFreed(Laborious):
    """Holds objects that take time to free."""

    def begin(self, labour: Labour) -> Call:
        """Return the function that is timed."""
        held = [_Farewell() for _ in range(8)]

        def call(query: Tensor) -> Tensor:
            assert held
            return labour(query)

        return call


@oddities("the first call starts a process that works for a while, as a compiler does, beside later calls")
class CompilesInBackground(Laborious):
    """Starts a process in its first call."""

    def begin(self, labour: Labour) -> Call:
        """Return the function that is timed."""
        compiler: list[subprocess.Popen[bytes]] = []

        def call(query: Tensor) -> Tensor:
            if not compiler:
                compiler.append(subprocess.Popen([sys.executable, "-c", COMPILER]))
            compiler[0].poll()
            return labour(query)

        return call
