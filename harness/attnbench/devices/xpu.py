"""GPUs of Intel, with what ``torch.xpu`` offers; never run.

Not offered: a clock of the device, so that calls are timed from end to end; the model and the driver.
"""

from attnbench.devices.device import Accelerator

__all__ = ["XPU"]


class _Xpu(Accelerator):
    name = torch_type = "xpu"
    profiled_as = "xpu"
    article, noun = "an", "Intel GPU (xpu)"
    was_run = False
    # Those of CUDA, for want of a measurement.
    product_rows = (2048, 4096, 8192)
    copied_bytes = 2**31
    peak_method = "torch.xpu.max_memory_allocated"
    memory_errors = ("XPU out of memory",)


XPU = _Xpu()
