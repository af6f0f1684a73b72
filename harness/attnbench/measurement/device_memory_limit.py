"""How much of a CUDA device's memory torch may take in this process."""

import torch

__all__ = ["limit", "share"]


def share(limit_bytes: int, total_bytes: int) -> float:
    """A limit as torch wants it: a share of the device's memory, no more than all of it."""
    return min(1.0, limit_bytes / total_bytes)


def limit(limit_bytes: int) -> None:
    """Let an allocation of torch's beyond so many bytes fail in words, those of the inputs among them.

    What a library takes by itself is not limited by it.

    Raises: RuntimeError without a device.
    """
    total_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(share(limit_bytes, total_bytes))
