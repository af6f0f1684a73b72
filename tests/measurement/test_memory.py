"""Tests that the measured memory of a call equals a closed form to the byte."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.devices.cpu import CPU
from attnbench.devices.cuda import CUDA
from attnbench.interface import Implementation
from attnbench.measurement.memory import (
    count_held_bytes,
    measure_footprint,
    measure_peak_bytes,
    measure_saved_bytes,
)
from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.registry import load_operator, load_problem_types
from attnbench.records.types import Memory

FLOAT32 = 4
BATCH, HEADS, LENGTH, HEAD_DIM = 2, 3, 16, 8
# LOGITS: bytes of the logits of all heads. TOKENS: bytes of q (or k, v, or the output), split into heads.
LOGITS = BATCH * HEADS * LENGTH * LENGTH * FLOAT32
TOKENS = BATCH * HEADS * LENGTH * HEAD_DIM * FLOAT32


@pytest.fixture
def restored_threads() -> Iterator[None]:
    """Restore the number of threads after the test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make_heads(length: int = LENGTH, *, gradients: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Make random q, k and v, split into heads."""
    return tuple(torch.randn(BATCH, HEADS, length, HEAD_DIM, requires_grad=gradients) for _ in range(3))


def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention with all logits and all attention weights in memory at the same time."""
    logits = q @ k.mT
    logits = logits.mul_(1 / math.sqrt(HEAD_DIM))
    weights = torch.softmax(logits, dim=-1)
    return weights @ v


def test_a_naive_kernel_peaks_at_logits_weights_and_output() -> None:
    """The peak is the logits, the attention weights and the output; the inputs do not count."""
    inputs = make_heads()
    assert measure_peak_bytes(lambda: naive(*inputs), "cpu") == 2 * LOGITS + TOKENS == 15_360


def test_memory_freed_before_the_peak_does_not_count() -> None:
    """If each temporary is freed before the next is allocated, the peak is the largest temporary."""

    def allocate() -> None:
        torch.empty(1000)
        torch.empty(3000)
        torch.empty(2000)

    assert measure_peak_bytes(allocate, "cpu") == 3000 * FLOAT32


def test_a_call_that_allocates_nothing_has_no_peak() -> None:
    """An in-place operation needs no memory beyond the inputs."""
    tensor = torch.ones(100)
    assert measure_peak_bytes(tensor.exp_, "cpu") == 0


def test_workspaces_that_are_allocated_once_do_not_count() -> None:
    """Memory that only the first call allocates is not measured, because the call runs once before the measurement."""
    made: dict[str, Tensor] = {}
    assert measure_peak_bytes(lambda: made.setdefault("workspace", torch.empty(1000)) if not made else None, "cpu") == 0


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("length", "query_block"), [(16, 16), (64, 32), (200, 64)])
def test_scratch_memory_inside_a_fused_kernel_counts(
    restored_threads: None, length: int, query_block: int, threads: int
) -> None:
    """The fused kernel allocates the output, the log-sum-exp of each row, and scratch memory per thread.

    The scratch memory of a thread is one block of logits, two numbers per row of the block, and the block's output.
    Source: block sizes and buffers in aten/src/ATen/native/cpu/FlashAttentionKernel.cpp.
    """
    torch.set_num_threads(threads)
    inputs = make_heads(length)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        peak = measure_peak_bytes(lambda: scaled_dot_product_attention(*inputs), "cpu")
    output, log_sum_exp = BATCH * HEADS * length * HEAD_DIM, BATCH * HEADS * length
    key_block = min(512, length)
    per_thread = query_block * key_block + 2 * query_block + query_block * HEAD_DIM
    assert peak == FLOAT32 * (output + log_sum_exp + threads * per_thread)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("length", "query_block"), [(16, 16), (64, 32), (200, 64), (800, 256)])
def test_backward_of_a_fused_kernel_is_exact(
    restored_threads: None, length: int, query_block: int, threads: int
) -> None:
    """The peak is the forward pass's output and log-sum-exp, the gradients of q, k and v, and scratch memory.

    The scratch memory is two blocks of query-key pairs per thread, and one sum per row of a block.
    Source: block sizes and buffers in aten/src/ATen/native/cpu/FlashAttentionKernel.cpp.
    """
    torch.set_num_threads(threads)
    # The layout that q, k and v have after the projections; the kernel needs no copy of such tensors.
    q, k, v, cotangent = (torch.randn(BATCH, length, HEADS, HEAD_DIM).transpose(1, 2) for _ in range(4))
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]

    def step() -> tuple[Tensor, ...]:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.autograd.grad(scaled_dot_product_attention(q, k, v), leaves, cotangent)

    tokens, log_sum_exp = BATCH * HEADS * length * HEAD_DIM, BATCH * HEADS * length
    scratch = threads * 2 * query_block * min(512, length) + query_block
    exact = FLOAT32 * (4 * tokens + log_sum_exp + scratch)
    assert measure_peak_bytes(step, "cpu") == exact
    # A contiguous cotangent has another layout, so the kernel copies it.
    cotangent = cotangent.contiguous()
    assert measure_peak_bytes(step, "cpu") == exact + FLOAT32 * tokens


def test_backward_of_a_naive_kernel_is_exact() -> None:
    """The peak is the attention weights, the gradients of weights and logits, the output, the gradient of v and 8 B.

    The 8 bytes are the scale.
    """
    inputs = make_heads(gradients=True)
    cotangent = torch.randn_like(inputs[0])
    peak = measure_peak_bytes(lambda: torch.autograd.grad(naive(*inputs), inputs, cotangent), "cpu")
    assert peak == 3 * LOGITS + 2 * TOKENS + 8


def test_a_fused_kernel_saves_its_output_and_log_sum_exp() -> None:
    """Besides q, k and v, only the output and the log-sum-exp are saved for backward; no query-key pairs are."""
    inputs = make_heads(gradients=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        saved = measure_saved_bytes(lambda: scaled_dot_product_attention(*inputs), list(inputs))
    assert saved == TOKENS + BATCH * HEADS * LENGTH * FLOAT32


def test_one_more_byte_is_measured() -> None:
    """A call that allocates 65 instead of 64 bytes beside a large peak has a peak of one byte more."""
    inputs = make_heads(200)

    def hold(extra: int) -> Tensor:
        held = torch.empty(extra, dtype=torch.uint8)
        output = naive(*inputs)
        del held
        return output

    assert measure_peak_bytes(lambda: hold(65), "cpu") == measure_peak_bytes(lambda: hold(64), "cpu") + 1


def test_backward_counts() -> None:
    """The peak of Σ exp(x) with its backward pass is 2002 numbers for 1000 elements of x.

    These are the saved exponentials, the gradient of x, and two scalars.
    """
    x = torch.randn(1000, requires_grad=True)
    peak = measure_peak_bytes(lambda: torch.autograd.grad(x.exp().sum(), x), "cpu")
    assert peak == FLOAT32 * (1000 + 1000 + 2)


def test_a_naive_kernel_saves_its_weights() -> None:
    """Besides q, k and v, only the attention weights are saved for backward; views of saved tensors do not count."""
    inputs = make_heads(gradients=True)
    assert measure_saved_bytes(lambda: naive(*inputs), list(inputs)) == LOGITS == 6_144


def test_views_of_one_storage_are_saved_once() -> None:
    """A storage that autograd saves several times, also through views, is counted once, with all its bytes."""
    x = torch.randn(10, 10, requires_grad=True)

    def call() -> Tensor:
        squares = x.exp()
        return squares * squares * squares.T + squares[:2].sum()

    # Two storages are saved. exp and both products save ``squares``; the second product also saves
    # ``squares * squares``.
    assert measure_saved_bytes(call, [x]) == 2 * 100 * FLOAT32


def test_inputs_are_not_counted_as_saved() -> None:
    """A call that saves only tensors of the given list of inputs has no saved bytes."""
    x = torch.randn(100, requires_grad=True)
    assert measure_saved_bytes(lambda: x * x, [x]) == 0
    assert measure_saved_bytes(lambda: x * x, []) == 100 * FLOAT32


class WithWorkspace(Implementation):
    """The reference with a further allocation: each forward pass allocates and frees a million float32 numbers."""

    def build(self, reference: torch.nn.Module) -> torch.nn.Module:
        """Return the reference."""
        return reference

    def prepare(self, module: torch.nn.Module, case: Case, inputs: object) -> Callable[..., object]:
        """Return a call of the module that also allocates a million numbers."""

        def call(**arguments: object) -> object:
            returned = module(**arguments)
            torch.empty(1_000_000)
            return returned

        return call


def make_candidate(mode: str, implementation: Implementation | None = None) -> Candidate:
    """Make a candidate of an implementation (by default the reference) on a case of sequences of 8 tokens."""
    text = f"multihead/B1.L8.S8.E16.H2/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/{mode}"
    case, operator = Case.parse(text, load_problem_types()), load_operator("multihead")
    return Candidate(implementation or load_implementation("torch_mha"), operator, case, operator.inputs(case))


def test_workspace_excludes_output_and_gradients() -> None:
    """The workspace is the peak minus the output in mode inference, and minus output and gradients in mode train."""
    workspace, output = 4_000_000, 8 * 16 * FLOAT32
    measured = measure_footprint(make_candidate("inference", WithWorkspace())).memory
    assert (measured["peak_bytes"], measured["workspace_bytes"]) == (workspace + output, workspace)
    measured = measure_footprint(make_candidate("train")).memory
    gradients = (8 * 16 + 4 * 16 * 16 + 4 * 16) * FLOAT32
    assert measured["peak_bytes"] - measured["workspace_bytes"] == output + gradients
    assert measured["workspace_bytes"] > 0


def test_a_footprint_has_the_fields_of_a_record() -> None:
    """A measured footprint has the fields of the record ``Memory``; on a CPU ``reserved_bytes`` is None."""
    measured = measure_footprint(make_candidate("train"))
    record = Memory(**measured.memory)
    assert record.saved_bytes is not None
    assert record.reserved_bytes is None
    assert record.threads == torch.get_num_threads()
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in measured.kernels


def test_storages_are_counted_once_and_existing_ones_not_at_all() -> None:
    """Several views of one storage are counted once; views of an existing tensor, and values like None, are not."""
    x, existing = torch.empty(10), torch.empty(10)
    assert count_held_bytes([x, x[2:], None, existing[1:]], [existing]) == 10 * FLOAT32


def test_the_record_names_the_method_of_measurement() -> None:
    """The method is named differently for a CPU and for a CUDA device."""
    assert CPU.peak_method == "torch.profiler memory events"
    assert CUDA.peak_method == "torch.cuda.max_memory_allocated"
