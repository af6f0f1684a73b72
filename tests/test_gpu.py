"""On a CUDA device: what conforms there, and that time and memory are taken."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from attnbench.cli import attnbench
from attnbench.results import find, read

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none here"),
]

ANYWHERE = (
    "torch_mha", "naive_loop", "per_head", "batched_matmul", "reshaped", "sdpa", "sdpa_math", "online_softmax",
    "varlen", "varlen_packed", "fused_projection", "compiled", "flex",
)  # fmt: skip


def _run(*words: str) -> int:
    """Exit code of a command."""
    outcome = CliRunner().invoke(attnbench, words, standalone_mode=False, catch_exceptions=False)
    return int(outcome.return_value)


@pytest.mark.parametrize("implementation", ANYWHERE)
def test_built_in_implementations_conform_on_cuda(implementation: str, tmp_path: Path) -> None:
    """An implementation that conforms on a CPU conforms on CUDA."""
    assert _run("conform", implementation, "--device", "cuda", "--results", str(tmp_path)) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "implementation", ["sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "flash_attn", "xformers", "xformers_splitk"]
)
def test_fused_kernels_conform_or_refuse_on_cuda(implementation: str, dtype: str, tmp_path: Path) -> None:
    """A fused kernel is right on every case that it takes; 3 says that it takes none."""
    assert _run("conform", implementation, "--device", "cuda", "--dtype", dtype, "--results", str(tmp_path)) in (0, 3)


def test_profile_on_cuda_has_time_and_memory(tmp_path: Path) -> None:
    """What conforms on CUDA gets samples in turns, and device memory."""
    words = ("profile", "sdpa", "--device", "cuda", "--lengths", "128,256", "--results", str(tmp_path))
    assert _run(*words, "--processes", "2") == 0
    timed = [result for result in read(find(tmp_path, [])[0]).results if result.timing]
    assert {result.implementation for result in timed} == {"torch_mha", "sdpa"}
    assert all(result.memory and result.memory.method == "torch.cuda.max_memory_allocated" for result in timed)
