"""Tests of ``global_state``, which reads and restores torch's process-wide settings."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbench.candidate import global_state

CHANGES: dict[str, Callable[[], object]] = {
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the default device": lambda: torch.set_default_device("meta"),
    "the number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "the gradient mode": lambda: torch.set_grad_enabled(False),
    "the use of deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "the precision of float32 matrix products": lambda: torch.set_float32_matmul_precision("medium"),
    "reductions in float16 within CUDA's matrix products": lambda: toggle(
        torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"
    ),
    "reductions in bfloat16 within CUDA's matrix products": lambda: toggle(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"
    ),
    "accumulation in float16 within CUDA's matrix products": lambda: toggle(
        torch.backends.cuda.matmul, "allow_fp16_accumulation"
    ),
    "the use of oneDNN": lambda: toggle(torch.backends.mkldnn, "enabled"),
    "the use of flash attention": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "the use of memory-efficient attention": lambda: torch.backends.cuda.enable_mem_efficient_sdp(False),
    "the use of attention by matrix products": lambda: torch.backends.cuda.enable_math_sdp(False),
    "the use of cuDNN's attention": lambda: torch.backends.cuda.enable_cudnn_sdp(False),
    "the order in which torch tries kernels of attention": lambda: torch._C._set_sdp_priority_order([0, 1, 2, 3, 4]),
    "reductions in half precision in attention by matrix products": lambda: (
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    ),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "anomaly detection": lambda: torch.set_anomaly_enabled(True),
    "the reference's fast path": lambda: torch.backends.mha.set_fastpath_enabled(False),
}


def toggle(owner: Any, name: str) -> None:
    """Change a setting that is on or off."""
    setattr(owner, name, not getattr(owner, name))


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_is_restored(name: str) -> None:
    """If a setting is changed, only its value in ``read_settings`` differs; ``restore_settings`` undoes the change."""
    before = global_state.read_settings()
    assert before.keys() == CHANGES.keys()
    CHANGES[name]()
    try:
        changed = global_state.read_settings()
        assert {key for key in before if changed[key] != before[key]} == {name}
    finally:
        global_state.restore_settings(before)
    assert global_state.read_settings() == before


@pytest.mark.parametrize("owner", [torch.backends.mkldnn.matmul, torch.backends.cuda.matmul])
def test_the_precision_of_one_device_is_restored(owner: Any) -> None:
    """The precision of one device's products is a change of its own, and the common setting works after it is undone.

    In between, torch's function for the common setting raises.
    """
    before = global_state.read_settings()
    owner.fp32_precision = "tf32"
    changed = global_state.read_settings()
    global_state.restore_settings(before)
    differing = {key: str(changed[key]) for key in before if changed[key] != before[key]}
    assert list(differing) == ["the precision of float32 matrix products"]
    assert next(iter(differing.values())).startswith("mixed (")
    assert global_state.read_settings() == before
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_context_that_chooses_a_kernel_of_attention_changes_nothing() -> None:
    """After ``sdpa_kernel``, all settings are as before; within it, they are not."""
    before = global_state.read_settings()
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        inside = global_state.read_settings()
    assert global_state.read_settings() == before
    assert {key for key in before if inside[key] != before[key]} == {
        "the use of memory-efficient attention",
        "the use of cuDNN's attention",
        "the order in which torch tries kernels of attention",
    }


def test_random_numbers_restart() -> None:
    """After each ``restore_settings`` torch draws the same random numbers again.

    ``global_state.seed`` gives the random numbers of ``torch.manual_seed``.
    """
    before = global_state.read_settings()
    global_state.restore_settings(before)
    first = torch.rand(3)
    torch.rand(5)
    global_state.restore_settings(before)
    assert torch.equal(torch.rand(3), first)
    global_state.seed(7)
    seeded = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), seeded)
