"""Tests of ``varlen`` and ``varlen_packed``, which compute attention without the padded tokens of a batch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attnbench.cases import Case
from attnbench.interface import Refusal
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.plugins.registry import load
from attnbench.refusals import LacksWeights, NeedsSameTensor
from attnzoo.by_size import FEW_WEIGHTS, attend_each, stores_weights
from attnzoo.varlen import Packing

SELF = MultiheadProblem(
    batch=3, queries=7, keys=7, embed_dim=12, num_heads=3, bias=True, batch_first=True, self_attention=True, mask="pad"
)
MASKS = ["pad", "padfloat", "padempty", "padlowest", "bool2d+pad", "float3d+padfloat", "empty3d+pad", "causal+pad"]


def make_case(problem: MultiheadProblem) -> Case:
    """Make a float64 case in mode train, with gradients of all inputs and parameters."""
    return Case(operator="multihead", problem=problem, dtype="float64", mode="train")


def compute(name: str, one: Case) -> tuple[Tensor, dict[str, Tensor]]:
    """Return output and gradients of an implementation; the cotangent of the output is 0 in rows of padded queries."""
    drawn = OPERATOR.inputs(one)
    inputs = drawn.map_tensors(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()))
    module = load(name).build(OPERATOR.reference(one, drawn)).train()
    output = module(**inputs.arguments())[0]
    padded = OPERATOR.padded_rows(one, drawn)["output"]
    cotangent = drawn.cotangents["output"].masked_fill(padded, 0.0)
    leaves = {"query": inputs.tensors["query"]} | dict(module.named_parameters())
    leaves |= {n: t for n, t in inputs.tensors.items() if n.endswith("mask") and t.requires_grad}
    found = torch.autograd.grad(output, list(leaves.values()), cotangent, materialize_grads=True, allow_unused=True)
    return output.detach(), dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", [{}, {"batch_first": False}, {"batch": None}, {"add_bias_kv": True}])
@pytest.mark.filterwarnings("ignore:.*mismatched key_padding_mask and attn_mask.*")
def test_packed_tokens_agree_with_the_formula(mask: str, layout: dict[str, Any]) -> None:
    """``varlen_packed`` and ``reshaped`` agree in the rows of real tokens and in the gradients.

    The rows of padded tokens are zeros.
    """
    one = make_case(replace(SELF, mask=mask, is_causal="causal" in mask, **layout))
    output, gradients = compute("varlen_packed", one)
    expected, wanted = compute("reshaped", one)
    padded = OPERATOR.padded_rows(one, OPERATOR.inputs(one))["output"]
    assert not output.masked_select(padded).any()
    assert bool(padded.any()) == (mask != "padlowest"), "finite numbers hide no token"
    torch.testing.assert_close(output.masked_fill(padded, 0.0), expected.masked_fill(padded, 0.0))
    torch.testing.assert_close(gradients, wanted)


@pytest.mark.parametrize("name", ["varlen", "varlen_packed"])
def test_padding_is_never_read(name: str) -> None:
    """If padded tokens are NaN, the rows of real tokens are finite; with ``varlen_packed``, so are all gradients."""
    one = make_case(SELF)
    drawn = OPERATOR.inputs(one)
    padded = drawn.tensors["key_padding_mask"]
    tokens = drawn.tensors["query"].masked_fill(padded[..., None], float("nan")).requires_grad_()
    module = load(name).build(OPERATOR.reference(one, drawn))
    output = module(tokens, tokens, tokens, key_padding_mask=padded, need_weights=False)[0]
    assert output[~padded].isfinite().all()
    if name == "varlen_packed":
        found = torch.autograd.grad(output[~padded].sum(), [tokens, *module.parameters()])
        assert all(gradient.isfinite().all() for gradient in found)


def test_padding_is_not_projected() -> None:
    """With half of the tokens padded, FLOP counts show which projections leave the padding out.

    ``varlen`` leaves it out of the key and value projections, ``varlen_packed`` out of all four.
    """
    reference = nn.MultiheadAttention(16, 2, batch_first=True)
    tokens, padded = torch.randn(4, 32, 16), torch.arange(32) >= torch.tensor([32, 16, 8, 8])[:, None]
    counted = {}
    for name in ("torch_mha", "varlen", "varlen_packed"):
        module = load(name).build(reference)
        with FlopCounterMode(display=False) as counter:
            module(tokens, tokens, tokens, key_padding_mask=padded, need_weights=False)
        counted[name] = counter.get_flop_counts()["Global"]
    projections = {
        name: sum(n for op, n in found.items() if str(op) in ("aten.mm", "aten.addmm"))
        for name, found in counted.items()
    }
    whole = 4 * 2 * 128 * 16 * 16  # four projections of 128 tokens
    assert projections == {"torch_mha": whole, "varlen": whole * 3 // 4, "varlen_packed": whole // 2}


def test_unknown_padded_queries_are_refused() -> None:
    """With a padding mask, ``varlen_packed`` refuses a query that is not the key tensor, as a case and in a call."""
    packed = load("varlen_packed")
    reason = NeedsSameTensor(arguments=("query", "key"), given="key_padding_mask")
    assert packed.unsupported(make_case(replace(SELF, self_attention=False))) == reason
    assert packed.unsupported(make_case(replace(SELF, self_attention=False, mask="bool2d"))) is None
    assert load("varlen").unsupported(make_case(replace(SELF, self_attention=False))) is None
    module = packed.build(nn.MultiheadAttention(8, 2, batch_first=True))
    tokens, padded = torch.randn(2, 3, 8), torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(Refusal, check=lambda refusal: refusal.args == (reason,)):
        module(tokens, tokens.clone(), tokens, key_padding_mask=padded, need_weights=False)
    with pytest.raises(Refusal, check=lambda refusal: refusal.args == (LacksWeights(),)):
        module(tokens, tokens, tokens, key_padding_mask=padded)


def test_unpacking_restores_the_packed_tokens() -> None:
    """``unpack`` puts packed tokens back at their positions and zeros at padded positions, wherever the padding is."""
    keep = torch.tensor([[True, False, True], [False, False, False], [False, True, True]])
    packing = Packing.from_mask(keep)
    tokens = torch.arange(1.0, 19.0).reshape(3, 3, 2)
    assert packing.lengths == [2, 0, 2]
    assert [part.tolist() for part in packing.split_positions()] == [[0, 2], [], [1, 2]]
    assert torch.equal(packing.pack(tokens), tokens[keep])
    assert torch.equal(packing.unpack(packing.pack(tokens)), tokens * keep[..., None])


@pytest.mark.parametrize("mask_shape", [(1, 7), (5, 7)])
def test_keys_that_a_mask_hides_from_every_query_are_removed(mask_shape: tuple[int, int]) -> None:
    """``attend`` of ``varlen`` never reads keys that the mask hides from every query; here they are NaN."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 4, generator=generator) for n in (5, 7, 7))
    mask = torch.ones(2, 1, *mask_shape, dtype=torch.bool)
    mask[0, :, :, 4:] = False
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
    k[0, :, 4:], v[0, :, 4:] = float("nan"), float("nan")
    module = load("varlen").build(nn.MultiheadAttention(12, 3, batch_first=True)).eval()
    output, _ = module.attend(q, k, v, mask=mask, is_causal=False, need_weights=False)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weights", [3 * 5 * 7, FEW_WEIGHTS.start, FEW_WEIGHTS.stop])
def test_sequences_of_few_weights_and_of_many_give_the_same(dtype: torch.dtype, weights: int) -> None:
    """Output and gradients agree with the formula, whether attention weights are stored for backward or not.

    The output of a sequence without keys is 0.
    """
    generator = torch.Generator().manual_seed(0)
    lengths = [(5, 7), (1, 1), (9, 3), (4, 0)]
    sequences = [
        tuple(torch.randn(3, n, 4, generator=generator, dtype=dtype, requires_grad=True) for n in (queries, keys, keys))
        for queries, keys in lengths
    ]
    outputs = attend_each(sequences, weights, like=sequences[0][0])
    for (q, k, v), output in zip(sequences, outputs, strict=True):
        expected = ((q @ k.mT / 2).softmax(dim=-1) @ v).transpose(0, 1)  # (queries, heads, head_dim)
        cotangent = torch.randn(output.shape, generator=generator, dtype=dtype)
        found, wanted = (torch.autograd.grad(x, (q, k, v), cotangent) for x in (output, expected))
        torch.testing.assert_close((output, *found), (expected, *wanted))


def test_weights_are_stored_for_backward_in_a_range_of_sizes() -> None:
    """Attention weights are stored for backward if and only if their number lies in the range ``FEW_WEIGHTS``."""
    q = torch.zeros(2, 8, 4, requires_grad=True)
    for weights in (2 * 8 * 8, FEW_WEIGHTS.start, FEW_WEIGHTS.stop - 1, FEW_WEIGHTS.stop):
        with SavedShapes() as saved:
            attend_each([(q, q, q)], weights, like=q)
        assert ((2, 8, 8) in saved.shapes) is (weights in FEW_WEIGHTS)


def test_weights_are_stored_in_float32_on_a_cpu_only() -> None:
    """``stores_weights`` is false for bfloat16, float64 and any device but a CPU; there the fused kernel is used."""
    few, one = FEW_WEIGHTS.start, torch.zeros(1)
    assert stores_weights(few, one)
    assert not stores_weights(few, one.bfloat16())
    assert not stores_weights(few, one.double())
    assert not stores_weights(few, one.to("meta"))


@pytest.mark.parametrize("name", ["fused_projection", "varlen"])
@pytest.mark.parametrize("tracer", ["compile", "export", "trace"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.trace:DeprecationWarning")
def test_a_graph_works_for_any_sequence_length(name: str, tracer: str) -> None:
    """A graph with a dynamic length gives the eager output at lengths 20, 90 and 300.

    The number of attention weights lies in FEW_WEIGHTS at length 90 only; the graph must not depend on that.
    """
    torch.compiler.reset()
    module = load(name).build(nn.MultiheadAttention(12, 3, batch_first=True)).eval()

    class SelfAttention(nn.Module):
        """Module whose forward takes only the tokens, which are query, key and value."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.module(tokens, tokens, tokens, need_weights=False)[0]  # type: ignore[no-any-return]

    whole, tokens = SelfAttention(), torch.randn(1, 90, 12)
    graph: Callable[[torch.Tensor], torch.Tensor] = torch.compile(whole, dynamic=True, fullgraph=True, backend="eager")
    if tracer == "export":
        sizes = {"tokens": {1: torch.export.Dim("length", min=2)}}
        graph = torch.export.export(whole, (tokens,), dynamic_shapes=sizes).module()
    elif tracer == "trace":
        graph = torch.jit.trace(whole, (tokens,))
    for length in (90, 20, 300):
        given = torch.randn(1, length, 12)
        torch.testing.assert_close(graph(given), whole(given))


@pytest.mark.parametrize("batch", [1, 2])
def test_varlen_compiles_for_batches_of_other_lengths(batch: int) -> None:
    """A compiled ``varlen`` gives the eager output at several lengths; its graph breaks where it reads the mask."""
    torch.compiler.reset()
    module = load("varlen").build(nn.MultiheadAttention(12, 3, batch_first=True)).eval()
    graph = torch.compile(module, backend="eager")
    for length in (90, 80, 100):
        given, hidden = torch.randn(batch, length, 12), torch.zeros(batch, length, dtype=torch.bool)
        hidden[:, length // 2 :] = True
        with torch.no_grad():
            outputs = [m(given, given, given, key_padding_mask=hidden, need_weights=False)[0] for m in (graph, module)]
        torch.testing.assert_close(*outputs)


class SavedShapes:
    """Context that records the shapes of the tensors that autograd saves for backward."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._record, lambda x: x)

    def _record(self, x: torch.Tensor) -> torch.Tensor:
        self.shapes.append(tuple(x.shape))
        return x

    def __enter__(self) -> "SavedShapes":
        self._hooks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.__exit__()


SIZES: dict[str, tuple[int, int, bool]] = {
    # Number of sequences, tokens per sequence, autocast on or off. The number of attention weights is for 4 heads.
    "few weights": (1, 72, False),
    "fewer": (1, 60, False),
    "more": (1, 257, False),
    "several sequences": (2, 72, False),
    "autocast": (1, 72, True),
}


@pytest.mark.parametrize("case", SIZES)
def test_one_sequence_of_few_weights_agrees_with_the_reference(case: str) -> None:
    """Output and gradients of ``fused_projection`` agree with the reference for each entry of SIZES.

    Attention weights are stored only in the entry "few weights"; in the others the fused kernel computes the output.
    """
    batch, length, autocast = SIZES[case]
    torch.manual_seed(0)
    reference = nn.MultiheadAttention(32, 4, batch_first=True)
    nn.init.normal_(reference.in_proj_bias)
    module = load("fused_projection").build(reference)
    found = []
    for one in (module, reference):
        torch.manual_seed(1)
        tokens = torch.randn(batch, length, 32, requires_grad=True)
        with SavedShapes() as saved, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = one(tokens, tokens, tokens, need_weights=False)[0]
        parts = dict(one.named_parameters())
        found.append([output, *torch.autograd.grad(output, [tokens, *parts.values()], torch.ones_like(output))])
        if one is module:
            assert ((4, length, length) in saved.shapes) is (case == "few weights")
    tolerance = 0.05 if autocast else 1e-4
    torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)
