"""CUDA devices."""

import subprocess
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from attnbench.devices.device import Accelerator
from attnbench.devices.timer import Step, Timer

__all__ = ["CUDA"]


class _Cuda(Accelerator):
    name = torch_type = "cuda"
    profiled_as = "cuda"
    noun = "CUDA device"
    product_rows = (2048, 4096, 8192)
    copied_bytes = 2**31
    peak_method = "torch.cuda.max_memory_allocated"
    memory_errors = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")

    def query_model(self) -> tuple[str | None, str | None]:
        """Return what the program nvidia-smi says, so that this process creates no CUDA context."""
        try:
            line = subprocess.run(
                ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                capture_output=True,
                text=True,
                check=True,
                timeout=20,
            ).stdout.splitlines()[0]
        except (OSError, subprocess.SubprocessError, IndexError):
            return None, None
        model, _, driver = line.partition(",")
        return model.strip(), driver.strip()

    def make_timer(self, steps: Mapping[str, Step], *, capturable: AbstractSet[str]) -> Timer | None:
        """Return what times calls between two CUDA events, for work on torch's CUDA streams."""
        from attnbench.devices.cuda_timing import CudaTimer

        return CudaTimer(steps, capturable=capturable)


CUDA = _Cuda()
