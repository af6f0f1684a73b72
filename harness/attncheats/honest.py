"""Honest oddities: correct implementations with unusual habits, which no defence may take for cheats."""

import importlib
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Call, Inputs
from attncheats.cheat import Laborious, OddityList
from attncheats.labour import Labour

__all__ = ["oddities"]

oddities = OddityList()


@oddities("the work and nothing else: the measure of what cheats do")
class PlainLabour(Laborious):
    """The honest labour."""


@oddities("code is compiled in the first call")
def compiled_in_first_call(labour: Labour) -> Call:
    """Compile by torch.compile."""
    return torch.compile(lambda query: labour(query), backend="aot_eager")  # noqa: PLW0108  # the compiler takes functions


@oddities("a graph is captured when the call is prepared, and replayed in every call")
class CapturedGraph(Laborious):
    """Replays a graph of operators."""

    def prepare(self, module: object, case: Case, inputs: Inputs) -> Call:
        """Return the function that is timed."""
        from torch.fx.experimental.proxy_tensor import make_fx  # takes a second

        labour = Labour(module, heads=case.problem.num_heads)
        return self.finish(make_fx(labour)(inputs.tensors["query"].detach().clone()))


@oddities("one workspace is kept between calls")
def kept_workspace(labour: Labour) -> Call:
    """Use the same memory for the further products of all calls."""
    space: list[Tensor] = []

    def call(query: Tensor) -> Tensor:
        if not space:
            space.append(query @ query.mT)
        torch.matmul(query, query.mT, out=space[0])
        return labour(query)

    return call


@oddities("large buffers are allocated in the first call")
class LazyBuffers(Laborious):
    """Allocates in the first call."""

    _buffers: list[Tensor] | None = None

    def begin(self, labour: Labour) -> Call:
        """Return the function that is timed."""

        def call(query: Tensor) -> Tensor:
            if self._buffers is None:
                self._buffers = [torch.zeros(1 << 20) for _ in range(4)]
            return labour(query)

        return call


@oddities("a pool of as many threads as were given does the work")
def pool_of_given_threads(labour: Labour) -> Call:
    """Work on the threads of a pool."""
    pool = ThreadPoolExecutor(torch.get_num_threads())
    work = torch.no_grad()(labour)

    def call(query: Tensor) -> Tensor:
        parts = [pool.submit(work, part) for part in query.chunk(torch.get_num_threads())]
        return torch.cat([part.result() for part in parts])

    return call


@oddities("the first three calls time two ways, and later calls take the faster way")
def autotuned(labour: Labour) -> Call:
    """Read the clock in the first calls."""

    def work_one_by_one(query: Tensor) -> Tensor:
        return torch.cat([labour(one) for one in query.chunk(query.shape[0])])

    ways: list[Callable[[Tensor], Tensor]] = [labour, work_one_by_one]
    took: list[list[float]] = [[], []]

    def call(query: Tensor) -> Tensor:
        if len(took[0]) < 3:
            for way, times in zip(ways, took, strict=True):
                begin = time.perf_counter()
                output = way(query)
                times.append(time.perf_counter() - begin)
            return output
        return ways[min(took[1]) < min(took[0])](query)

    return call


@oddities("every call returns the same output buffer")
def same_output_buffer(labour: Labour) -> Call:
    """Reuse the buffer of the output."""
    buffer: list[Tensor] = []

    def call(query: Tensor) -> Tensor:
        if not buffer:
            buffer.append(torch.empty_like(query))
        return buffer[0].copy_(labour(query))

    return call


@oddities("weights are transposed and packed once, when the call is prepared")
def packed_weights(labour: Labour) -> Call:
    """Call with packed copies of the parameters."""
    module = labour.module
    with torch.no_grad():
        for owner, name in ((module, "in_proj_weight"), (module.out_proj, "weight")):
            packed = getattr(owner, name).mT.contiguous().mT
            setattr(owner, name, torch.nn.Parameter(packed, requires_grad=False))
    return labour


@oddities("views of the inputs of the latest calls are kept")
def kept_views(labour: Labour) -> Call:
    """Hold on to views of its inputs."""
    views: list[Tensor] = []

    def call(query: Tensor) -> Tensor:
        views[:] = [*views[-3:], query.mT, query[0]]
        return labour(query)

    return call


@oddities("modules of torch and of Python are imported in the third call")
def lazy_import(labour: Labour) -> Call:
    """Import in a call."""
    count = 0

    def call(query: Tensor) -> Tensor:
        nonlocal count
        count += 1
        if count == 3:
            for name in ("torch.nn.attention.bias", "torch.nn.utils.parametrize", "colorsys"):
                importlib.import_module(name)
        return labour(query)

    return call


@oddities("an operator in a namespace of its own is registered with torch and called")
def own_operator(labour: Labour) -> Call:
    """Register a custom operator."""

    @torch.library.custom_op("attnbench_oddities::attend", mutates_args=())
    def attend(query: Tensor) -> Tensor:
        return labour(query)

    return attend


@oddities("hooks of the module itself do a part of the work")
class HooksOfItsOwn(Laborious):
    """Uses hooks of its own module."""

    def begin(self, labour: Labour) -> Call:
        """Return the function that is timed."""

        class Attention(torch.nn.Module):
            def forward(self, query: Tensor) -> Tensor:
                return labour(query)

        module = Attention()
        module.register_forward_pre_hook(lambda _, given: labour.do_further_work(given[0]))
        return module


@oddities("a short process runs when the call is prepared")
def short_process(labour: Labour) -> Call:
    """Ask another program about the machine."""
    subprocess.run(["uname", "-m"], check=True, capture_output=True)
    return labour


@oddities("the output is a view, which is not contiguous, of a larger buffer")
def view_of_larger_buffer(labour: Labour) -> Call:
    """Return a view of a larger buffer."""

    def call(query: Tensor) -> Tensor:
        buffer = torch.empty(query.shape[0], query.shape[2], query.shape[1] + 8)
        output = buffer[:, :, 4:-4].mT
        return output.copy_(labour(query))

    return call


@oddities("a thread waits for work that never comes")
def waiting_thread(labour: Labour) -> Call:
    """Have an idle thread."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return labour


@oddities("the output carries an attribute with a note about how it was computed")
class AnnotatedOutput(Laborious):
    """Returns a plain tensor with an attribute."""

    def begin(self, labour: Labour) -> Call:
        """Return the function that is timed."""

        def call(query: Tensor) -> Tensor:
            output = labour(query)
            output.computed_by = self.name  # type: ignore[attr-defined]
            return output

        return call
