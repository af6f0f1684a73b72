"""What this machine reaches on one matrix product and on one copy, in this process: nothing should be faster."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["Reached", "reached"]

# Rows of square matrices: the larger the faster, until a call takes long.
PRODUCT_ROWS = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}
# Bytes that are copied: several times what a last-level cache holds.
COPIED_BYTES = {"cpu": 2**28, "cuda": 2**31}
# Calls of each, since a single one may meet other work on the machine; and seconds after which there are no more.
CALLS, ENOUGH_S = 5, 0.5
# Unit: seconds. Beyond that a larger product is not tried: some dtypes are computed number by number.
LONG_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The best of several calls."""

    flop_per_s: float
    # Read and written, together.
    bytes_per_s: float
    threads: int


def reached(dtype: str, device: str) -> Reached:
    """Rates of a matrix product and of a copy in a dtype, with this process's number of threads.

    Raises: RuntimeError where the device has no memory for them.
    """
    kind = getattr(torch, dtype)
    with torch.no_grad():
        return Reached(
            flop_per_s=_product_flop_per_s(kind, device),
            bytes_per_s=_copied_bytes_per_s(kind, device),
            threads=torch.get_num_threads(),
        )


def _product_flop_per_s(dtype: torch.dtype, device: str) -> float:
    rates = []
    for rows in PRODUCT_ROWS[device]:
        # Random numbers: zeros draw less power, and a device that draws less runs faster.
        one, other = (torch.randn(rows, rows, device=device).to(dtype) for _ in range(2))
        result = torch.empty_like(one)
        took_s = _best_s(lambda: torch.mm(one, other, out=result), device)  # noqa: B023  # called at once
        rates.append(2 * rows**3 / took_s)
        if took_s > LONG_S:
            break
    return max(rates)


def _copied_bytes_per_s(dtype: torch.dtype, device: str) -> float:
    source = torch.ones(COPIED_BYTES[device] // dtype.itemsize, dtype=dtype, device=device)
    result = torch.empty_like(source)
    return 2 * COPIED_BYTES[device] / _best_s(lambda: result.copy_(source), device)


def _best_s(call: Callable[[], object], device: str) -> float:
    """Shortest of several calls, after one that makes what is made once."""
    _took_s(call, device)
    took_s = [_took_s(call, device)]
    while len(took_s) < CALLS and sum(took_s) < ENOUGH_S:
        took_s.append(_took_s(call, device))
    return min(took_s)


def _took_s(call: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin
