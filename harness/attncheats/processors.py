"""Cheats that use more of the machine than they were given, or take it from others."""

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from attnbench.interface import Call
from attncheats.cheat import CheatList
from attncheats.labour import Labour

__all__ = ["cheats"]

cheats = CheatList()
THREADS = "https://deep-reinforce.com/defense_kernel_hack.html"


@cheats("threads", "a thread keeps Python busy all the time, except during the cheat's own calls", source=THREADS)
def burning_thread(labour: Labour) -> Call:
    """Slow others down: whenever a call of others releases Python's lock, it waits for the thread to give it back."""
    loud = threading.Event()

    def burn() -> None:
        while loud.wait():
            for _ in range(1000):
                pass

    threading.Thread(target=burn, daemon=True).start()

    def call(query: Tensor) -> Tensor:
        loud.clear()
        output = labour(query)
        loud.set()
        return output

    return call


def _widen() -> None:
    """Let this thread, and those that it starts, run on all cores."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


@cheats("processor", "torch's number of threads is doubled within the call", source=THREADS)
def two_threads(labour: Labour) -> Call:
    """Use two threads where one was given."""

    def call(query: Tensor) -> Tensor:
        torch.set_num_threads(2)
        output = labour(query)
        torch.set_num_threads(1)
        return output

    return call


def _halve(labour: Labour, pool: ThreadPoolExecutor) -> Call:
    def call(query: Tensor) -> Tensor:
        work = torch.no_grad()(labour)
        halves = [pool.submit(work, half) for half in query.chunk(2)]
        return torch.cat([half.result() for half in halves])

    return call


@cheats("processor", "a pool of two threads computes a half of the batch each", source=THREADS)
def two_workers(labour: Labour) -> Call:
    """Use a pool of two threads where one was given."""
    return _halve(labour, ThreadPoolExecutor(2))


@cheats(
    "processor", "a pool of two threads computes a half of the batch each, on all cores of the machine", source=THREADS
)
def two_workers_on_all_cores(labour: Labour) -> Call:
    """Use a pool of two threads, which leave the cores that were given."""
    return _halve(labour, ThreadPoolExecutor(2, initializer=_widen))


def _share_memory() -> tuple[ctypes.c_int, Tensor, Tensor]:
    """Return memory that child processes share: a number that is 1 while there is work, a shape, and space."""
    shared = mmap.mmap(-1, 1 << 24)
    return (
        ctypes.c_int.from_buffer(shared),
        torch.frombuffer(shared, dtype=torch.int64, offset=8, count=3),
        torch.frombuffer(shared, dtype=torch.float32, offset=64),
    )


def _do_half(labour: Labour, state: ctypes.c_int, sizes: Tensor, space: Tensor) -> None:
    """Do the work that another process shares."""
    with torch.no_grad():
        shape = tuple(sizes.tolist())
        count = sizes.prod().item()
        space[count : 2 * count] = labour(space[:count].view(shape)).flatten()
    state.value = 0


@cheats(
    "processor",
    "a process computes a half of the batch on all cores of the machine",
    source="constructed: the thread injection of deep-reinforce.com/defense_kernel_hack.html in a process of its own",
)
def helper_process(labour: Labour) -> Call:
    """Let another process do a half of the work."""
    state, sizes, space = _share_memory()
    own = os.getpid()
    if os.fork() == 0:
        _widen()
        while os.getppid() == own:
            if state.value:
                _do_half(labour, state, sizes, space)
        os._exit(0)
    return _share(labour, space, sizes, state)


def _share(
    labour: Labour, space: Tensor, sizes: Tensor, state: ctypes.c_int, wake: Callable[[], object] = lambda: None
) -> Call:
    """Return a function that gives a half of the batch to a process, by memory that both share."""

    def call(query: Tensor) -> Tensor:
        mine, its = query.chunk(2)
        sizes.copy_(torch.tensor(its.shape))
        space[: its.numel()] = its.flatten()
        state.value = 1
        wake()
        output = labour(mine)
        while state.value:
            pass
        return torch.cat([output, space[its.numel() : 2 * its.numel()].view(its.shape)])

    return call


@cheats(
    "processor",
    "a process starts a process for each half of a batch, which ends before anybody looks",
    source="constructed: an attack on these defences found it",
)
def grandchild_per_call(labour: Labour) -> Call:
    """Let a process that lives for one call do a half of the work."""
    state, sizes, space = _share_memory()
    wanted, want = os.pipe()
    own = os.getpid()
    if os.fork() == 0:
        os.close(want)
        _widen()
        while os.getppid() == own:
            if (child := os.fork()) == 0:
                if os.read(wanted, 1):
                    _do_half(labour, state, sizes, space)
                os._exit(0)
            os.waitpid(child, 0)
        os._exit(0)
    return _share(labour, space, sizes, state, wake=lambda: os.write(want, b"1"))
