"""Tests of attention in blocks of weights, and of where ``fused_projection`` uses it."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from attnbench.plugins.registry import load
from attnzoo import by_size
from attnzoo.by_size import FEWEST_IN_BLOCKS, attend_in_blocks, stores_blocks


class Operators(TorchDispatchMode):
    """Context that records the names of the operators, and the largest number of elements of a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.largest_softmax = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Record an operator and run it."""
        del types
        # The softmax that overwrites a tensor has another name than the one that returns a new tensor.
        name = func.overloadpacket.__name__.removeprefix("_")
        self.names.add(name)
        if name == "softmax":
            self.largest_softmax = max(self.largest_softmax, args[0].numel())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def cpu_with_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the CPU for one on which blocks are used."""
    monkeypatch.setattr(by_size, "multiplies_bfloat16", lambda: True)


@pytest.mark.parametrize("most", [1, 3 * 10, 10 * 10, 2 * 10 * 10, 5 * 10 * 10, 6 * 10 * 10])
def test_blocks_of_any_size_give_attention(most: int) -> None:
    """Blocks of some queries, of one head, of several heads and of all heads give attention.

    No block has more weights than ``most``, unless a single query has more.
    """
    heads = torch.randn(3, 6, 10, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with Operators() as operators:
        output = attend_in_blocks(heads, most)
    torch.testing.assert_close(output, scaled_dot_product_attention(*heads[:, None].unbind()).squeeze(0))
    assert 0 < operators.largest_softmax <= max(most, 10)


def attend(module: nn.Module, tokens: Tensor) -> tuple[Tensor, set[str]]:
    """Return the output of self-attention without weights, and the names of the operators that computed it."""
    with Operators() as operators:
        output = module(tokens, tokens, tokens, need_weights=False)[0]
    return output, operators.names


@pytest.mark.usefixtures("cpu_with_bfloat16")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_inference_in_bfloat16_uses_blocks(batch: int, *, bias: bool) -> None:
    """Without gradients, ``fused_projection`` in bfloat16 uses no fused kernel, and agrees with the reference."""
    torch.manual_seed(0)
    reference = nn.MultiheadAttention(32, 4, batch_first=True, bias=bias).bfloat16().eval()
    if bias:
        nn.init.normal_(reference.in_proj_bias)
    module, tokens = load("fused_projection").build(reference), torch.randn(batch, 96, 32).bfloat16()
    with torch.no_grad():
        output, names = attend(module, tokens)
        expected = reference.double()(*[tokens.double()] * 3, need_weights=False)[0]
    assert "scaled_dot_product_flash_attention_for_cpu" not in names
    assert "softmax" in names
    torch.testing.assert_close(output.double(), expected, rtol=0.02, atol=0.02)
    assert "softmax" not in attend(module, tokens)[1], "with gradients, the fused kernel is used"


def test_blocks_are_used_for_many_weights_in_bfloat16_on_some_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks need bfloat16, a CPU with bfloat16 instructions but no matrix unit, no gradients, and enough weights."""
    one = torch.zeros(1).bfloat16()
    with torch.no_grad():
        for amx in (False, True):
            features = {"avx512_bf16": True, "amx_bf16": amx}
            monkeypatch.setattr(torch.cpu, "get_capabilities", features.copy, raising=False)
            assert stores_blocks(FEWEST_IN_BLOCKS, one) is not amx
        monkeypatch.setattr(by_size, "multiplies_bfloat16", lambda: True)
        assert not stores_blocks(FEWEST_IN_BLOCKS - 1, one)
        assert not stores_blocks(FEWEST_IN_BLOCKS, one.float())
        assert not stores_blocks(FEWEST_IN_BLOCKS, one.to("meta"))
    assert not stores_blocks(FEWEST_IN_BLOCKS, one)
    monkeypatch.undo()
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not by_size.multiplies_bfloat16(), "without the list of capabilities, the fused kernel is used"
