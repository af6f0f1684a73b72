"""Tests of measured memory against closed forms: it is exact to the byte."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.interface import Implementation
from attnbench.measurement.memory import (
    count_held_bytes,
    describe_peak_method,
    measure_footprint,
    measure_peak_bytes,
    measure_saved_bytes,
)
from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.registry import load_operator, load_problem_types
from attnbench.records.types import Memory

FLOAT32 = 4
BATCH, HEADS, LENGTH, HEAD_DIM = 2, 3, 16, 8
# Bytes of all logits, and of one tensor of head-split tokens.
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
    """Attention that holds all logits and all weights at the same time."""
    logits = q @ k.mT
    logits = logits.mul_(1 / math.sqrt(HEAD_DIM))
    weights = torch.softmax(logits, dim=-1)
    return weights @ v


def test_a_naive_kernel_peaks_at_logits_weights_and_output() -> None:
    """The peak is two tensors of all query-key pairs and the output, without the inputs."""
    inputs = make_heads()
    assert measure_peak_bytes(lambda: naive(*inputs), "cpu") == 2 * LOGITS + TOKENS == 15_360


def test_memory_freed_before_the_peak_does_not_count() -> None:
    """The peak of temporaries that are allocated one after another is the largest one."""

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
    """The call runs once before it is measured."""
    made: dict[str, Tensor] = {}
    assert measure_peak_bytes(lambda: made.setdefault("workspace", torch.empty(1000)) if not made else None, "cpu") == 0


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("length", "query_block"), [(16, 16), (64, 32), (200, 64)])
def test_scratch_memory_inside_a_fused_kernel_counts(
    restored_threads: None, length: int, query_block: int, threads: int
) -> None:
    """The fused kernel allocates output, log-sum-exp and, per thread, one block of logits with its sums and its output.

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
    """Beyond the forward's results: three gradients, per thread two blocks of pairs, and one sum per row of a block.

    Source: block sizes and buffers in aten/src/ATen/native/cpu/FlashAttentionKernel.cpp.
    """
    torch.set_num_threads(threads)
    # The layout after the projections, which is the kernel's own.
    q, k, v, cotangent = (torch.randn(BATCH, length, HEADS, HEAD_DIM).transpose(1, 2) for _ in range(4))
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]

    def step() -> tuple[Tensor, ...]:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.autograd.grad(scaled_dot_product_attention(q, k, v), leaves, cotangent)

    tokens, log_sum_exp = BATCH * HEADS * length * HEAD_DIM, BATCH * HEADS * length
    scratch = threads * 2 * query_block * min(512, length) + query_block
    exact = FLOAT32 * (4 * tokens + log_sum_exp + scratch)
    assert measure_peak_bytes(step, "cpu") == exact
    # A cotangent in another layout is copied.
    cotangent = cotangent.contiguous()
    assert measure_peak_bytes(step, "cpu") == exact + FLOAT32 * tokens


def test_backward_of_a_naive_kernel_is_exact() -> None:
    """The peak is the weights, their gradient and that of the logits; the output, the gradient of v and the scale."""
    inputs = make_heads(gradients=True)
    cotangent = torch.randn_like(inputs[0])
    peak = measure_peak_bytes(lambda: torch.autograd.grad(naive(*inputs), inputs, cotangent), "cpu")
    assert peak == 3 * LOGITS + 2 * TOKENS + 8


def test_a_fused_kernel_saves_its_output_and_log_sum_exp() -> None:
    """Backward needs these beyond q, k and v, and no tensor of query-key pairs."""
    inputs = make_heads(gradients=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        saved = measure_saved_bytes(lambda: scaled_dot_product_attention(*inputs), list(inputs))
    assert saved == TOKENS + BATCH * HEADS * LENGTH * FLOAT32


def test_one_more_byte_is_measured() -> None:
    """The count is exact also for small differences of large peaks."""
    inputs = make_heads(200)

    def hold(extra: int) -> Tensor:
        held = torch.empty(extra, dtype=torch.uint8)
        output = naive(*inputs)
        del held
        return output

    assert measure_peak_bytes(lambda: hold(65), "cpu") == measure_peak_bytes(lambda: hold(64), "cpu") + 1


def test_backward_counts() -> None:
    """The peak of forward and backward of Σ exp(x) is the saved exponentials, the gradient, and two numbers."""
    x = torch.randn(1000, requires_grad=True)
    peak = measure_peak_bytes(lambda: torch.autograd.grad(x.exp().sum(), x), "cpu")
    assert peak == FLOAT32 * (1000 + 1000 + 2)


def test_a_naive_kernel_saves_its_weights() -> None:
    """Backward needs only the weights beyond q, k and v; views among the saved tensors are not counted again."""
    inputs = make_heads(gradients=True)
    assert measure_saved_bytes(lambda: naive(*inputs), list(inputs)) == LOGITS == 6_144


def test_views_of_one_storage_are_saved_once() -> None:
    """A tensor that is saved twice, and again as a view of itself, is counted once and completely."""
    x = torch.randn(10, 10, requires_grad=True)

    def call() -> Tensor:
        squares = x.exp()
        return squares * squares * squares.T + squares[:2].sum()

    # exp saves its result; of the factors of both products, only the first factor of the second one is new.
    assert measure_saved_bytes(call, [x]) == 2 * 100 * FLOAT32


def test_inputs_are_not_counted_as_saved() -> None:
    """A call that saves only its inputs has no saved bytes."""
    x = torch.randn(100, requires_grad=True)
    assert measure_saved_bytes(lambda: x * x, [x]) == 0
    assert measure_saved_bytes(lambda: x * x, []) == 100 * FLOAT32


class WithWorkspace(Implementation):
    """The reference, with a workspace of a million numbers in its forward pass."""

    def build(self, reference: torch.nn.Module) -> torch.nn.Module:
        """Return the reference."""
        return reference

    def prepare(self, module: torch.nn.Module, case: Case, inputs: object) -> Callable[..., object]:
        """Return a call that allocates the workspace too."""

        def call(**arguments: object) -> object:
            returned = module(**arguments)
            torch.empty(1_000_000)
            return returned

        return call


def make_candidate(mode: str, implementation: Implementation | None = None) -> Candidate:
    """Make a candidate of an implementation, by default of the reference, on a case of a profile."""
    text = f"multihead/B1.L8.S8.E16.H2/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/{mode}"
    case, operator = Case.parse(text, load_problem_types()), load_operator("multihead")
    return Candidate(implementation or load_implementation("torch_mha"), operator, case, operator.inputs(case))


def test_workspace_excludes_output_and_gradients() -> None:
    """In inference it is the peak without the output; in training, also without all gradients."""
    workspace, output = 4_000_000, 8 * 16 * FLOAT32
    measured = measure_footprint(make_candidate("inference", WithWorkspace())).memory
    assert (measured["peak_bytes"], measured["workspace_bytes"]) == (workspace + output, workspace)
    measured = measure_footprint(make_candidate("train")).memory
    gradients = (8 * 16 + 4 * 16 * 16 + 4 * 16) * FLOAT32
    assert measured["peak_bytes"] - measured["workspace_bytes"] == output + gradients
    assert measured["workspace_bytes"] > 0


def test_a_footprint_has_the_fields_of_a_record() -> None:
    """A worker's answer can be stored unchanged; on a CPU there are no reserved bytes."""
    measured = measure_footprint(make_candidate("train"))
    record = Memory(**measured.memory)
    assert record.saved_bytes is not None
    assert record.reserved_bytes is None
    assert record.threads == torch.get_num_threads()
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in measured.kernels


def test_storages_are_counted_once_and_existing_ones_not_at_all() -> None:
    """Views of one storage are counted once; values that are not tensors have no bytes."""
    x, existing = torch.empty(10), torch.empty(10)
    assert count_held_bytes([x, x[2:], None, existing[1:]], [existing]) == 10 * FLOAT32


def test_the_record_names_the_method_of_measurement() -> None:
    """Each kind of device has its method."""
    assert describe_peak_method("cpu") == "torch.profiler memory events"
    assert describe_peak_method("cuda") == "torch.cuda.max_memory_allocated"
