"""Peak rates of this machine for a matrix product and for a copy; no call should reach higher rates."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from attnbench.devices import get_device
from attnbench.devices.device import Device

__all__ = ["Roofline", "measure_roofline"]

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
    kind, used = getattr(torch, dtype), get_device(device)
    with torch.no_grad():
        return Roofline(
            flop_per_s=_measure_product_flop_per_s(kind, used),
            bytes_per_s=_measure_copy_bytes_per_s(kind, used),
            threads=torch.get_num_threads(),
        )


def _measure_product_flop_per_s(dtype: torch.dtype, device: Device) -> float:
    """Return the highest rate over sizes; the smallest matrices decide which of them are read by columns.

    A dtype without instructions of its own may be several times as fast in one order as in another: on an EPYC without
    bfloat16 instructions, 1.3, 1.3, 8 and 15 GFLOP/s.
    """
    rates = []
    orders = [(one, other) for one in (False, True) for other in (False, True)]
    for rows in device.product_rows:
        # The matrices are random: with zeros, a device draws less power and therefore runs at a higher clock.
        pair = [torch.randn(rows, rows, device=device.torch_type).to(dtype) for _ in range(2)]
        result = torch.empty_like(pair[0])
        took_s = {order: _time_product_s(pair, order, result, device) for order in orders}
        fastest = min(took_s, key=took_s.__getitem__)
        orders = [fastest]
        rates.append(2 * rows**3 / took_s[fastest])
        if took_s[fastest] > LONG_S:
            break
    return max(rates)


def _time_product_s(
    pair: Sequence[torch.Tensor], by_columns: tuple[bool, bool], result: torch.Tensor, device: Device
) -> float:
    one, other = (matrix.t() if turned else matrix for matrix, turned in zip(pair, by_columns, strict=True))
    return _time_fastest_s(lambda: torch.mm(one, other, out=result), device)


def _measure_copy_bytes_per_s(dtype: torch.dtype, device: Device) -> float:
    source = torch.ones(device.copied_bytes // dtype.itemsize, dtype=dtype, device=device.torch_type)
    result = torch.empty_like(source)
    return 2 * device.copied_bytes / _time_fastest_s(lambda: result.copy_(source), device)


def _time_fastest_s(call: Callable[[], object], device: Device) -> float:
    """Return the time of the fastest of several calls in seconds, after one warm-up call."""
    _time_call_s(call, device)
    took_s = [_time_call_s(call, device)]
    while len(took_s) < CALLS and sum(took_s) < ENOUGH_S:
        took_s.append(_time_call_s(call, device))
    return min(took_s)


def _time_call_s(call: Callable[[], object], device: Device) -> float:
    device.synchronize()
    begin = time.perf_counter()
    call()
    device.synchronize()
    return time.perf_counter() - begin
