"""GPUs of Apple, with what ``torch.mps`` offers; never run.

Not offered: float64, a peak of the allocated bytes, traces by torch's profiler, and a clock of the device, so that
calls are timed from end to end.
"""

from collections.abc import Callable

from attnbench.devices.device import Accelerator, memory_fraction

__all__ = ["MPS"]


class _Mps(Accelerator):
    name = torch_type = "mps"
    article, noun = "an", "Apple GPU (mps)"
    was_run = False
    # Those of CUDA, a quarter of the size: the memory is the host's. For want of a measurement.
    product_rows = (1024, 2048, 4096)
    copied_bytes = 2**29
    peak_method = "torch.mps.current_allocated_memory at the end of the call"
    memory_errors = ("MPS backend out of memory",)

    def seed(self, number: int) -> None:
        """Seed the generator of the device, if there is one: torch does not say whether this process uses it."""
        if self.is_available():
            self.backend.manual_seed(number)

    def limit_memory(self, limit_bytes: int) -> None:
        """Limit torch's allocator, whose limit is a fraction of the recommended largest working set."""
        self.backend.set_per_process_memory_fraction(
            memory_fraction(limit_bytes, self.backend.recommended_max_memory())
        )

    def measure_peak(self, call: Callable[[], object]) -> tuple[int, int | None] | None:
        """Bytes that are allocated when the call ends, with its result: memory freed before is not counted."""
        backend = self.backend
        backend.synchronize()
        allocated = backend.current_allocated_memory()
        result = call()
        backend.synchronize()
        held = backend.current_allocated_memory() - allocated
        del result
        return max(0, held), None


MPS = _Mps()
