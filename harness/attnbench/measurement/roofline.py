"""Peak rates of this machine for a matrix product and for a copy; no call should reach higher rates."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

__all__ = ["Roofline", "measure_roofline"]

# For each device, the numbers of rows of the square matrices whose product is timed, ascending. Larger matrices reach
# higher rates.
PRODUCT_ROWS = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}
# For each device, the number of bytes to copy: several times the size of a last-level cache.
COPIED_BYTES = {"cpu": 2**28, "cuda": 2**31}
# Each product and the copy are timed at most ``CALLS`` times. The fastest call counts, since other work on the machine
# may slow a call down. No more calls are made once the timed calls took ``ENOUGH_S`` seconds in total.
CALLS, ENOUGH_S = 5, 0.5
# If a matrix product takes more than this many seconds, larger matrices are not tried. Dtypes without a fast matrix
# product take longer.
LONG_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Highest rates that were measured for a matrix product and for a copy."""

    flop_per_s: float
    # Rate of the copy: bytes read plus bytes written, per second.
    bytes_per_s: float
    threads: int


def measure_roofline(dtype: str, device: str) -> Roofline:
    """Measure the peak rates of a matrix product and of a copy in a dtype, with torch's present number of threads.

    Raises: RuntimeError if the device has too little memory for the tensors.
    """
    kind = getattr(torch, dtype)
    with torch.no_grad():
        return Roofline(
            flop_per_s=_measure_product_flop_per_s(kind, device),
            bytes_per_s=_measure_copy_bytes_per_s(kind, device),
            threads=torch.get_num_threads(),
        )


def _measure_product_flop_per_s(dtype: torch.dtype, device: str) -> float:
    """Return the highest rate over sizes; the smallest matrices decide which of them are read by columns.

    A dtype without instructions of its own may be several times as fast in one order as in another: on an EPYC without
    bfloat16 instructions, 1.3, 1.3, 8 and 15 GFLOP/s.
    """
    rates = []
    orders = [(one, other) for one in (False, True) for other in (False, True)]
    for rows in PRODUCT_ROWS[device]:
        # The matrices are random: with zeros, a device draws less power and therefore runs at a higher clock.
        pair = [torch.randn(rows, rows, device=device).to(dtype) for _ in range(2)]
        result = torch.empty_like(pair[0])
        took_s = {order: _time_product_s(pair, order, result, device) for order in orders}
        fastest = min(took_s, key=took_s.__getitem__)
        orders = [fastest]
        rates.append(2 * rows**3 / took_s[fastest])
        if took_s[fastest] > LONG_S:
            break
    return max(rates)


def _time_product_s(
    pair: Sequence[torch.Tensor], by_columns: tuple[bool, bool], result: torch.Tensor, device: str
) -> float:
    one, other = (matrix.t() if turned else matrix for matrix, turned in zip(pair, by_columns, strict=True))
    return _time_fastest_s(lambda: torch.mm(one, other, out=result), device)


def _measure_copy_bytes_per_s(dtype: torch.dtype, device: str) -> float:
    source = torch.ones(COPIED_BYTES[device] // dtype.itemsize, dtype=dtype, device=device)
    result = torch.empty_like(source)
    return 2 * COPIED_BYTES[device] / _time_fastest_s(lambda: result.copy_(source), device)


def _time_fastest_s(call: Callable[[], object], device: str) -> float:
    """Return the time of the fastest of several calls in seconds, after one warm-up call."""
    _time_call_s(call, device)
    took_s = [_time_call_s(call, device)]
    while len(took_s) < CALLS and sum(took_s) < ENOUGH_S:
        took_s.append(_time_call_s(call, device))
    return min(took_s)


def _time_call_s(call: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin
