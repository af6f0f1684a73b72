"""Torch's process-wide settings: read before a call and restored after it, so that no call affects a later call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.backends import cuda

from attnbench.devices import list_devices

__all__ = ["read_settings", "restore_settings", "seed"]

mkldnn: Any = torch.backends.mkldnn  # torch's types do not know its attributes


@dataclass(frozen=True, slots=True)
class _Setting:
    get: Callable[[], Any]
    set: Callable[[Any], object]


class _Precision(NamedTuple):
    """Precision of float32 matrix products: by torch's common setting, and by the settings of each device."""

    # "mixed" if the settings of the devices do not follow from the common setting.
    common: str
    cpu: str
    cuda: str

    def __str__(self) -> str:
        return f"{self.common} ({self.cpu} on the CPU, {self.cuda} on CUDA)"


def _read_precision() -> _Precision:
    try:
        common = torch.get_float32_matmul_precision()
    except RuntimeError:
        common = "mixed"
    # "none" is the initial value. The products then have the precision "ieee", to which the common setting changes it.
    own = (mkldnn.matmul.fp32_precision, cuda.matmul.fp32_precision)
    return _Precision(common, *("ieee" if one == "none" else one for one in own))


def _set_precision(wanted: _Precision) -> None:
    if wanted.common != "mixed":
        torch.set_float32_matmul_precision(wanted.common)
    now = _read_precision()
    if now.cpu != wanted.cpu:
        mkldnn.matmul.fp32_precision = wanted.cpu
    if now.cuda != wanted.cuda:
        cuda.matmul.fp32_precision = wanted.cuda


def _make_switch(owner: Any, name: str) -> _Setting:
    """Return a setting that is an attribute of one of torch's backends."""
    return _Setting(lambda: getattr(owner, name), lambda on: setattr(owner, name, on))


def _set_device(device: torch.device) -> None:
    # For the CPU, set None: an explicit default device slows down every call that creates a tensor.
    torch.set_default_device(None if device.type == "cpu" else device)


# Before torch 2.9, devices have no settings of their own.
_PRECISION = (
    _Setting(_read_precision, _set_precision)
    if hasattr(mkldnn, "matmul")
    else _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
)
_SETTINGS: dict[str, _Setting] = {
    "the default dtype": _Setting(torch.get_default_dtype, torch.set_default_dtype),
    "the default device": _Setting(torch.get_default_device, _set_device),
    "the number of threads": _Setting(torch.get_num_threads, torch.set_num_threads),
    "the gradient mode": _Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    "the use of deterministic algorithms": _Setting(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
    ),
    "the precision of float32 matrix products": _PRECISION,
    "reductions in float16 within CUDA's matrix products": _make_switch(
        cuda.matmul, "allow_fp16_reduced_precision_reduction"
    ),
    "reductions in bfloat16 within CUDA's matrix products": _make_switch(
        cuda.matmul, "allow_bf16_reduced_precision_reduction"
    ),
    "accumulation in float16 within CUDA's matrix products": _make_switch(cuda.matmul, "allow_fp16_accumulation"),
    "the use of oneDNN": _make_switch(mkldnn, "enabled"),
    # torch.nn.attention.sdpa_kernel changes the following settings, and restores them at its end.
    "the use of flash attention": _Setting(cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    "the use of memory-efficient attention": _Setting(cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    "the use of attention by matrix products": _Setting(cuda.math_sdp_enabled, cuda.enable_math_sdp),
    "the use of cuDNN's attention": _Setting(cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    "the order in which torch tries kernels of attention": _Setting(
        torch._C._get_sdp_priority_order,  # noqa: SLF001  # torch names no other way
        torch._C._set_sdp_priority_order,  # noqa: SLF001
    ),
    "reductions in half precision in attention by matrix products": _Setting(
        cuda.fp16_bf16_reduction_math_sdp_allowed, cuda.allow_fp16_bf16_reduction_math_sdp
    ),
    "autocast": _Setting(lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    "anomaly detection": _Setting(torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "the reference's fast path": _Setting(
        torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled
    ),
}


def read_settings() -> dict[str, Any]:
    """Return the values of all settings; the keys are names of settings, such as "the default dtype"."""
    return {name: setting.get() for name, setting in _SETTINGS.items()}


def restore_settings(before: Mapping[str, Any]) -> None:
    """Restore the settings that differ from ``before``, and seed torch's generators with 0."""
    for name, value in before.items():
        if _SETTINGS[name].get() != value:
            _SETTINGS[name].set(value)
    seed(0)


def seed(number: int) -> None:
    """Seed torch's random number generators on all devices that this process uses.

    torch.manual_seed seeds the generators of all types of device and takes 0.3 ms. This function takes 1 µs.
    """
    for device in list_devices():
        device.seed(number)
