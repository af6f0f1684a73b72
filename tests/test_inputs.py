"""Tests of what a case feeds in: the same numbers everywhere, and none that would hide a mistake."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnbench import encoder
from attnbench.cases import DTYPES, MODES, Case
from attnbench.inputs import Draw, loaded, rounded, stored
from attnbench.interface import Inputs
from attnbench.operators.multihead.inputs import inputs
from attnbench.operators.multihead.oracle import logits_mask
from attnbench.operators.multihead.problem import ENCODER_LAYERS, LOGIT_STD
from attnbench.operators.multihead.suites import CROSS, SELF, SENTENCES, suite

needs_encoder = pytest.mark.skipif(encoder.missing() is not None, reason=str(encoder.missing()))

# Everything that a case can have, so that there is something to leave out.
FULL = Case(operator="multihead", problem=CROSS, dtype="float64").with_problem(
    add_bias_kv=True, add_zero_attn=True, need_weights=True, mask="float3d+padfloat"
)


def drawn() -> Iterator[Case]:
    """Cases of the suite full whose inputs are drawn, one per problem."""
    return iter({one.problem: one for one in suite("full") if one.problem.encoder_layer is None}.values())


def named(given: Inputs) -> dict[str, Tensor]:
    """Every tensor by name."""
    cotangents = {f"cotangent.{name}": tensor for name, tensor in given.cotangents.items()}
    return given.parameters | given.tensors | cotangents


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_a_case_has_the_same_numbers_in_every_dtype_and_mode(dtype: str, mode: str) -> None:
    """They are drawn in float64 and then rounded once."""
    exact = named(inputs(FULL))
    found = named(inputs(FULL.with_fields(dtype=dtype, mode=mode)))
    assert found.keys() == exact.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, exact[name].to(getattr(torch, dtype)))


def test_a_case_has_the_same_numbers_every_time() -> None:
    """Whatever else was drawn meanwhile, and without moving torch's own generator."""
    state = torch.get_rng_state()
    first = named(inputs(FULL))
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    second = named(inputs(FULL))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_tensor_depends_on_the_seed_and_its_own_name_alone() -> None:
    """A name drawn before, after or between others gets the same numbers."""
    alone = Draw(7).normal("key", 2, 3)
    draw = Draw(7)
    draw.normal("query", 5)
    assert torch.equal(draw.normal("key", 2, 3), alone)
    assert torch.equal(draw.normal("key", 2, 3), alone)
    assert not torch.equal(draw.normal("value", 2, 3), alone)
    assert not torch.equal(Draw(8).normal("key", 2, 3), alone)
    assert torch.equal(Draw(7).normal("key", 2, 3, std=0.5), 0.5 * alone)
    uniform = draw.uniform("hide", 1000)
    assert float(uniform.min()) >= 0
    assert float(uniform.max()) < 1


def test_a_tensor_added_to_a_case_changes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same seed, masks, biases and columns come beside the other tensors and leave them alone."""
    monkeypatch.setattr(Case, "seed", 5)
    bare = named(inputs(FULL.with_problem(bias=False, add_bias_kv=False, add_zero_attn=False, mask="none")))
    full = named(inputs(FULL))
    assert full.keys() - bare.keys() == {
        "attn_mask", "key_padding_mask", "bias_k", "bias_v", "in_proj_bias", "out_proj.bias",
    }  # fmt: skip
    for name in bare.keys() - {"cotangent.weights"}:  # which has as many columns as there are keys
        assert torch.equal(full[name], bare[name]), name


def test_no_parameter_is_left_at_what_the_reference_begins_with() -> None:
    """Every element of every parameter is random, biases too: a fresh module's zero biases would hide a missing one."""
    for one in drawn():
        for name, parameter in inputs(one.with_fields(dtype="float64")).parameters.items():
            assert len(parameter.unique()) == parameter.numel(), f"{name} of {one.id}"
            assert bool(parameter.all())


@pytest.mark.parametrize(("regime", "std"), [("flat", 0.3), ("plain", 2.0), ("peaked", 8.0), ("onehot", 30.0)])
@pytest.mark.parametrize("problem", [CROSS, SELF], ids=["cross", "self"])
def test_logits_have_the_standard_deviation_of_their_regime(problem: object, regime: str, std: float) -> None:
    """From nearly flat rows to nearly one-hot ones, computed here from tokens, weights and biases."""
    one = Case(operator="multihead", problem=problem, dtype="float64").with_problem(
        batch=8, queries=64, keys=64, regime=regime
    )
    given, heads = inputs(one), one.problem.num_heads
    weights = given.parameters["in_proj_weight"].chunk(3)
    biases = given.parameters["in_proj_bias"].chunk(3)
    q, k = (
        (given.tensors[name] @ weight.T + bias).unflatten(-1, (heads, -1)).transpose(1, 2)
        for name, weight, bias in (("query", weights[0], biases[0]), ("key", weights[1], biases[1]))
    )
    assert LOGIT_STD[regime] == std
    assert float((q @ k.mT / math.sqrt(one.problem.head_dim)).std()) == pytest.approx(std, rel=0.4)


def test_every_row_has_a_key_unless_the_mask_is_an_empty_one() -> None:
    """Only ``empty2d``, ``empty3d`` and ``padempty`` hide every key from a row, and each of them does."""
    for one in drawn():
        mask = logits_mask(one.problem, inputs(one))
        empty = mask is not None and bool((mask == -math.inf).all(dim=-1).any())
        assert empty == ("empty" in one.problem.mask), one.id


def test_every_mask_hides_something_and_not_everything() -> None:
    """A mask that changes nothing would tell nothing about who reads it."""
    for one in drawn():
        for name in ("attn_mask", "key_padding_mask"):
            mask = inputs(one).tensors.get(name)
            # Short ones, and a causal mask over fewer keys than queries, may be all visible.
            if mask is None or one.problem.keys < 5 or one.problem.queries < 5:
                continue
            hidden = mask if mask.dtype == torch.bool else mask == -math.inf
            assert 0 < int(hidden.sum()) < hidden.numel(), one.id
            # No NaN, and values beside minus infinity that are not all the same.
            if mask.is_floating_point():
                assert bool((mask[~hidden].isfinite()).all())
                assert len(mask[~hidden].unique()) > 1


def test_sizes_of_the_crossed_case_are_pairwise_distinct() -> None:
    """A transposed or swapped axis changes a shape: batch, lengths, heads, head_dim and widths are all different."""
    sizes = [CROSS.batch, CROSS.queries, CROSS.keys, CROSS.num_heads, CROSS.head_dim, CROSS.embed_dim]
    for widths in ([], [10, 14]):
        assert len({*sizes, *widths}) == len(sizes) + len(widths)
    assert {(one.problem.kdim, one.problem.vdim) for one in suite("full")} == {(None, None), (10, 14)}


def test_one_tensor_under_three_names_stays_one(tmp_path: Path) -> None:
    """Self-attention passes the same object three times, on the way through a file and into another dtype too."""
    given = inputs(Case(operator="multihead", problem=SELF, dtype="bfloat16"))
    torch.save(stored(given), tmp_path / "inputs")
    again = loaded(str(tmp_path / "inputs"), "cpu")
    for one in (given, again, rounded(again, torch.float64)):
        assert one.tensors["query"] is one.tensors["key"] is one.tensors["value"]
    assert torch.equal(again.tensors["query"], given.tensors["query"])
    other = inputs(Case(operator="multihead", problem=CROSS)).tensors
    assert other["key"] is not other["value"]


def test_inputs_survive_a_file(tmp_path: Path) -> None:
    """Every tensor and option comes back as it was, in its dtype."""
    given = inputs(FULL.with_fields(dtype="float16"))
    torch.save(stored(given), tmp_path / "inputs")
    again = loaded(str(tmp_path / "inputs"), "cpu")
    assert again.options == given.options == {
        "need_weights": True, "average_attn_weights": False, "is_causal": False,
    }  # fmt: skip
    assert again.arguments().keys() == {*given.tensors, *given.options}
    for name, tensor in named(again).items():
        assert tensor.dtype == torch.float16
        assert torch.equal(tensor, named(given)[name])


def test_rounding_leaves_boolean_masks_alone() -> None:
    """Only floating tensors change their dtype."""
    given = rounded(inputs(FULL.with_problem(mask="bool3d+padfloat")), torch.float16)
    assert given.tensors["attn_mask"].dtype == torch.bool
    assert given.tensors["key_padding_mask"].dtype == torch.float16


@pytest.mark.parametrize(
    ("changes", "query", "key"),
    [
        ({}, (2, 5, 24), (2, 7, 24)),
        ({"batch_first": False}, (5, 2, 24), (7, 2, 24)),
        ({"batch": None}, (5, 24), (7, 24)),
        ({"kdim": 10, "vdim": 14}, (2, 5, 24), (2, 7, 10)),
    ],
)
def test_tokens_have_the_layout_that_the_problem_asks_for(
    changes: dict[str, object], query: tuple[int, ...], key: tuple[int, ...]
) -> None:
    """Batch first, sequence first or without a batch; the output's weights in the loss are like the query."""
    given = inputs(FULL.with_problem(**changes))
    assert (given.tensors["query"].shape, given.tensors["key"].shape) == (query, key)
    assert given.cotangents["output"].shape == query
    batch = () if "batch" in changes else (2,)
    assert given.cotangents["weights"].shape == (*batch, 3, 5, 9)  # two extra columns


def test_layouts_hold_the_same_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same seed, sequence first is the transpose of batch first."""
    monkeypatch.setattr(Case, "seed", 5)
    first, other = (inputs(FULL.with_problem(batch_first=flag)).tensors for flag in (True, False))
    for name in ("query", "key", "value"):
        assert torch.equal(first[name], other[name].transpose(0, 1))
        assert other[name].is_contiguous()


@needs_encoder
@pytest.mark.parametrize("layer", range(ENCODER_LAYERS))
def test_sentences_have_different_lengths(layer: int) -> None:
    """The real case pads: its sentences end at different tokens, and the mask says where."""
    one = Case(operator="multihead", problem=SENTENCES, dtype="float32").with_problem(regime=f"minilm{layer}")
    given = inputs(one)
    lengths = (~given.tensors["key_padding_mask"]).sum(dim=1).tolist()
    assert len(set(lengths)) == len(lengths) == one.problem.batch
    assert max(lengths) == one.problem.keys
    assert given.tensors["query"] is given.tensors["key"] is given.tensors["value"]
    assert given.tensors["query"].shape == (3, 14, 384)


@needs_encoder
def test_layers_of_the_encoder_differ() -> None:
    """Each layer has weights of its own and gets other hidden states."""
    queries = [
        inputs(Case(operator="multihead", problem=SENTENCES).with_problem(regime=f"minilm{layer}"))
        for layer in range(ENCODER_LAYERS)
    ]
    assert len({float(one.tensors["query"].sum()) for one in queries}) == ENCODER_LAYERS
    assert len({float(one.parameters["in_proj_weight"].sum()) for one in queries}) == ENCODER_LAYERS
