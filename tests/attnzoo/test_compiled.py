"""Tests of implementations that call ``torch.compile``: ``prepare`` compiles them; without a compiler they refuse."""

import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.interface import Refusal
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.plugins.registry import load
from attnbench.refusals import (
    CannotCompile,
    LacksGradients,
    LacksKeywords,
    NeedsDevice,
    NeedsDtype,
    NeedsElements,
    NeedsPackage,
    NeedsProgram,
)

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, with which torch.compile compiles")
PADDED = MultiheadProblem(
    batch=2, queries=5, keys=7, embed_dim=24, num_heads=3, bias=True, batch_first=True, mask="bool2d+pad"
)


def make_case(problem: MultiheadProblem = PADDED, **fields: Any) -> Case:
    """Make a case in float32."""
    return Case(operator="multihead", problem=problem, **fields)


def count_graphs() -> int:
    """Return the number of graphs that this process has compiled so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.mark.extended
@needs_compiler
@pytest.mark.parametrize(("name", "mode"), [("compiled", "train"), ("flex", "inference")])
def test_a_prepared_call_is_compiled_and_correct(name: str, mode: str) -> None:
    """``prepare`` compiles; the call that it returns agrees with the oracle, and compiles no further graph."""
    one = make_case(mode=mode)
    candidate = Candidate(load(name), OPERATOR, one, OPERATOR.inputs(one))
    before = count_graphs()
    outputs = candidate.run()
    found = outputs | (candidate.compute_gradients(outputs) if one.differentiates else {})
    assert count_graphs() == before > 0
    exact = OPERATOR.inputs(one).map_tensors(lambda t: t.double() if t.is_floating_point() else t)
    expected = OPERATOR.evaluate(one, exact)
    assert found.keys() == expected.keys()
    for key, value in found.items():
        torch.testing.assert_close(value.detach().double(), expected[key], rtol=1e-4, atol=1e-5)


@pytest.mark.extended
@needs_compiler
@pytest.mark.parametrize(("name", "mask"), [("compiled", "bool2d"), ("flex", "none"), ("flex", "bool3d+pad")])
def test_other_sizes_are_not_compiled_again(name: str, mask: str) -> None:
    """One graph works for any batch size and any lengths of queries and keys."""
    counts = []
    for batch, queries, keys in ((2, 5, 7), (4, 9, 9), (3, 100, 3)):
        one = make_case(replace(PADDED, batch=batch, queries=queries, keys=keys, mask=mask), mode="inference")
        exact = OPERATOR.inputs(one).map_tensors(lambda t: t.double() if t.is_floating_point() else t)
        output = Candidate(load(name), OPERATOR, one, OPERATOR.inputs(one)).run()["output"]
        torch.testing.assert_close(output.double(), OPERATOR.evaluate(one, exact)["output"], rtol=1e-4, atol=1e-5)
        counts.append(count_graphs())
    assert counts[0] == counts[-1]


@pytest.mark.extended
@needs_compiler
def test_other_widths_of_values_are_not_compiled_again() -> None:
    """One graph of ``core_compiled`` works for values of any width: as wide as queries, narrower or wider."""
    counts = []
    for wide in (8, 5, 12):
        q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, wide)
        found = load("core_compiled").build(None)(q, k, v)
        torch.testing.assert_close(found, nn.functional.scaled_dot_product_attention(q, k, v), rtol=1e-4, atol=1e-5)
        counts.append(count_graphs())
    assert counts[0] == counts[-1]


@pytest.mark.extended
@needs_compiler
@pytest.mark.parametrize("keys", [7, 1])
@pytest.mark.parametrize("name", ["compiled", "flex"])
def test_other_strides_are_not_compiled_again(name: str, keys: int) -> None:
    """One graph works for contiguous, expanded and transposed tensors and masks, and for views of wider ones."""
    wide, mask = torch.randn(2, 3, keys, 10), torch.zeros(1, 1, 5, keys, requires_grad=True)
    own = [wide[..., :8].clone(), wide[..., :8], wide[:, :1, :, :8].expand(2, 3, keys, 8)]
    own += [wide[..., :8].transpose(1, 2).contiguous().transpose(1, 2)]
    masks = [mask, mask[0, 0], mask.detach()[0].requires_grad_()[0], torch.zeros(5, keys + 3)[:, :keys]]
    kernel, counts = load(f"core_{name}"), []
    with torch.no_grad():
        for k, bias in zip(own, masks, strict=True):
            kernel.attend(torch.randn(2, 3, 5, 8), k, k, mask=bias, is_causal=False, softcap=None, scale=0.5)
            counts.append(count_graphs())
    assert counts[0] == counts[-1]


@pytest.mark.extended
@needs_compiler
def test_other_heads_and_masks_are_not_compiled_again() -> None:
    """One graph of ``core_flex`` works for any number of sequences and heads, any shape of bias, and any soft-cap."""
    flex, plain, counts = load("core_flex").build(None), load("core_reshaped").build(None), []
    for batch, shared, softcap in ((2, 3, 3.0), (3, 1, 20.0)):
        heads = 2 * shared
        q, k, v = (torch.randn(batch, n, 7, 8) for n in (heads, shared, shared))
        given = {"softcap": softcap, "key_lengths": torch.arange(batch)}
        for bias in (None, torch.randn(7, 7), torch.randn(batch, heads, 7, 7)):
            with torch.no_grad():
                found = flex(q, k, v, bias=bias, **given)
            torch.testing.assert_close(found, plain(q, k, v, bias=bias, **given), rtol=1e-4, atol=1e-5)
            counts.append(count_graphs())
    assert counts[0] == counts[-1]


@pytest.mark.extended
@needs_compiler
def test_compiling_draws_no_random_number() -> None:
    """From the same seed, the call that compiles and the call after it drop the same attention weights."""
    module = load("compiled").build(nn.MultiheadAttention(8, 2, dropout=0.375, batch_first=True))
    tokens = torch.randn(3, 6, 8)
    outputs = []
    for _ in range(2):
        torch.manual_seed(0)
        outputs.append(module(tokens, tokens, tokens)[0])
    assert torch.equal(*outputs)


def test_flex_refuses_what_it_does_not_compute_on_a_cpu() -> None:
    """``unsupported`` returns the reason, and the call raises Refusal."""
    flex = load("flex")
    assert flex.unsupported(make_case(mode="train")) == LacksGradients(device="cpu")
    dtypes = NeedsDtype(dtypes=("float32", "bfloat16", "float16"), device="cpu")
    assert flex.unsupported(make_case(mode="inference", dtype="float64")) == dtypes
    module = flex.build(nn.MultiheadAttention(8, 2, batch_first=True))
    tokens = torch.randn(1, 3, 8, requires_grad=True)
    with pytest.raises(Refusal, check=lambda refusal: refusal.args == (LacksGradients(device="cpu"),)):
        module(tokens, tokens, tokens, need_weights=False)
    with torch.no_grad(), pytest.raises(Refusal, check=lambda refusal: refusal.args == (dtypes,)):
        module.double()(*[tokens.double()] * 3, need_weights=False)
    with torch.no_grad(), pytest.raises(Refusal, check=lambda refusal: refusal.args == (NeedsElements(),)):
        module.float()(*[tokens[:, :0]] * 3, need_weights=False)


@pytest.mark.parametrize("name", ["compiled", "flex"])
def test_without_a_compiler_every_case_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the compiler to install; cases whose mode compiles the call are refused for another reason."""
    implementation, plain = load(name), make_case(replace(PADDED, mask="none"), mode="inference")
    assert implementation.unsupported(plain.with_fields(mode="aot")) == CannotCompile(why="compiled")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert implementation.unsupported(plain) == NeedsProgram(programs=("g++", "clang++"))


def test_flash_attn_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is a missing device, a missing package (with its install command) or a missing keyword."""
    flash = load("flash_attn")
    plain = make_case(replace(PADDED, mask="none"), mode="inference", dtype="float16")
    assert flash.unsupported(plain) == NeedsDevice(devices=("cuda",))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert flash.unsupported(plain.with_fields(device="cuda")) == NeedsPackage(
        packages=("flash-attn",), install="pip install flash-attn --no-build-isolation"
    )
    assert flash.unsupported(make_case(mode="inference")) == LacksKeywords(keywords=("mask",))
