"""Limit on the CUDA memory that torch may allocate in this process."""

import torch

__all__ = ["memory_fraction", "set_memory_limit"]


def memory_fraction(limit_bytes: int, total_bytes: int) -> float:
    """Return the limit as a fraction of the device's memory, at most 1: torch requires a fraction."""
    return min(1.0, limit_bytes / total_bytes)


def set_memory_limit(limit_bytes: int) -> None:
    """Make torch raise an out-of-memory error if its tensors, inputs included, need more than ``limit_bytes``.

    Memory that a library allocates by itself is not limited.

    Raises: RuntimeError if there is no CUDA device.
    """
    total_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(memory_fraction(limit_bytes, total_bytes))
