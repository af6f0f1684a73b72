"""What a device defines: a name, whether it is here, waiting, memory, a clock, autocast, and sizes of calibration."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.devices.timer import Step, Timer

if TYPE_CHECKING:
    import torch

__all__ = ["Accelerator", "Device", "memory_fraction"]


class Device:
    """A kind of device. The defaults are those of a device whose calls end with their work, as on a CPU.

    Methods import torch, the module of a device does not: a process without torch reads the attributes.
    """

    # Name in case ids and for --device.
    name: ClassVar[str]
    # What a sentence calls one such device, with its article: "a CUDA device".
    article: ClassVar[str] = "a"
    noun: ClassVar[str]
    # Type of torch's device on which the tensors are.
    torch_type: ClassVar[str]
    # Whether an implementation was ever checked on such a device.
    was_run: ClassVar[bool] = True
    # Numbers of rows of the square matrices whose product is timed, ascending. Larger matrices reach higher rates.
    product_rows: ClassVar[tuple[int, ...]]
    # Number of bytes whose copy is timed: several times the size of a last-level cache.
    copied_bytes: ClassVar[int]
    # How peak bytes are counted, for the record.
    peak_method: ClassVar[str] = "torch.profiler memory events"
    # Regular expressions of messages that say that memory is short.
    memory_errors: ClassVar[tuple[str, ...]] = ()
    # Device that torch's profiler traces beside the CPU.
    profiled_as: ClassVar[str | None] = None

    @property
    def backend(self) -> Any:
        """The module of torch for this type of device, such as ``torch.cuda``; None if this torch has none."""
        import torch

        return getattr(torch, self.torch_type, None)

    def is_available(self) -> bool:
        """Whether this machine has such a device, and this torch can use it."""
        return self.backend is not None and bool(self.backend.is_available())

    def query_model(self) -> tuple[str | None, str | None]:
        """Return the model and the driver version of the first such device, without torch; None where unknown."""
        return None, None

    def find_wait(self) -> Callable[[], object] | None:
        """Return the function that waits until the device has done its work; None if calls end with their work."""
        return None

    def synchronize(self) -> None:
        """Wait until the device has done its work."""
        wait = self.find_wait()
        if wait is not None:
            wait()

    def seed(self, number: int) -> None:
        """Seed torch's random number generators of the device, if this process uses the device."""

    def autocast(self, dtype: "torch.dtype", *, enabled: bool = True) -> AbstractContextManager[Any]:
        """Return the context in which torch computes in ``dtype`` on the device."""
        import torch

        return torch.autocast(self.torch_type, dtype=dtype, enabled=enabled)

    def limit_memory(self, limit_bytes: int) -> None:
        """Make torch raise an out-of-memory error if its tensors on the device need more than ``limit_bytes``.

        Memory that a library allocates by itself is not limited. The memory of the host is limited as address space,
        for all processes.
        """

    def measure_peak(self, call: Callable[[], object]) -> tuple[int, int | None] | None:
        """Peaks of the allocated and of the reserved bytes during a call, above the levels before the call.

        None if the device has no counter of its own; the profiler's memory events are then counted.
        """

    def make_timer(self, steps: Mapping[str, Step], *, capturable: AbstractSet[str]) -> Timer | None:
        """Return what times calls by the device's own clock; None if calls are timed from end to end only.

        ``steps`` maps names to calls that return as soon as their work is enqueued. The calls in ``capturable`` may
        also be captured in a graph.
        """


class Accelerator(Device):
    """A device beside the host, with the functions that torch gives ``torch.cuda`` and ``torch.xpu`` alike."""

    def find_wait(self) -> Callable[[], object] | None:
        """Return the function of torch that waits for the device."""
        wait: Callable[[], object] = self.backend.synchronize
        return wait

    def seed(self, number: int) -> None:
        """Seed the generators of all devices of this type, if torch has initialized the type in this process."""
        backend = self.backend
        if backend is not None and backend.is_initialized():
            backend.manual_seed_all(number)

    def limit_memory(self, limit_bytes: int) -> None:
        """Limit torch's allocator on the current device; tensors of inputs count.

        Raises: RuntimeError if there is no such device.
        """
        total_bytes = self.backend.get_device_properties(self.backend.current_device()).total_memory
        self.backend.set_per_process_memory_fraction(memory_fraction(limit_bytes, total_bytes))

    def measure_peak(self, call: Callable[[], object]) -> tuple[int, int | None] | None:
        """Peaks of the allocator's counters."""
        backend = self.backend
        backend.synchronize()
        # Empty the allocator's cache: a call that reuses cached blocks of earlier calls would reserve nothing.
        backend.empty_cache()
        backend.reset_peak_memory_stats()
        allocated, reserved = backend.memory_allocated(), backend.memory_reserved()
        result = call()
        backend.synchronize()
        del result
        return backend.max_memory_allocated() - allocated, backend.max_memory_reserved() - reserved


def memory_fraction(limit_bytes: int, total_bytes: int) -> float:
    """Return the limit as a fraction of the device's memory, at most 1: torch requires a fraction."""
    return min(1.0, limit_bytes / total_bytes)
