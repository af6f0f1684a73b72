"""Tests of the inputs of a case: they have the same numbers everywhere, and do not hide mistakes."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.cases import CALL_MODES, DTYPES, MODES, Case, Dtype, Mode
from attnbench.interface import Inputs
from attnbench.operators.multihead.draw_masks import LOW, LOWEST, WINDOW, find_union_row
from attnbench.operators.multihead.identity import HIDDEN_ZEROLEAK
from attnbench.operators.multihead.inputs import draw_inputs
from attnbench.operators.multihead.oracle import compute_logits_mask, evaluate
from attnbench.operators.multihead.problem import (
    ENCODER_LAYERS,
    EXACT_MASKS,
    FINITE_MASKS,
    IDENTITY_REGIMES,
    LOGIT_STD,
    OVERFLOW_LOGIT,
    SIDE_PADDING,
    MultiheadProblem,
)
from attnbench.operators.multihead.suites import CROSS, LISTS, SELF, SENTENCES
from attnbench.oracle import sentence_encoder, tensor_file
from attnbench.oracle.inputs import Draw, inputs_to_dict, load_inputs, round_inputs

needs_encoder = pytest.mark.skipif(
    sentence_encoder.describe_missing() is not None, reason=str(sentence_encoder.describe_missing())
)

# A case with every optional tensor, so that tests can leave some out.
FULL = Case(operator="multihead", problem=CROSS, dtype="float64").with_problem(
    add_bias_kv=True, add_zero_attn=True, need_weights=True, mask="float3d+padfloat"
)


def iterate_random_cases() -> Iterator[Case]:
    """Yield the cases of the suite full that have random inputs, one case per problem."""
    return iter({one.problem: one for one in LISTS.load_suite("full") if one.problem.encoder_layer is None}.values())


def collect_tensors(given: Inputs) -> dict[str, Tensor]:
    """Return every tensor of the inputs by name."""
    cotangents = {f"cotangent.{name}": tensor for name, tensor in given.cotangents.items()}
    return given.parameters | given.tensors | cotangents


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_a_case_has_the_same_numbers_in_every_dtype_and_mode(dtype: Dtype, mode: Mode) -> None:
    """Inputs are drawn in float64 and rounded once: under autocast to float32, else to the case's dtype."""
    exact = collect_tensors(draw_inputs(FULL))
    one = FULL.with_fields(dtype=dtype, mode=mode)
    found = collect_tensors(draw_inputs(one))
    assert one.given_dtype == ("float32" if CALL_MODES[mode].autocast else dtype)
    assert found.keys() == exact.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, exact[name].to(getattr(torch, one.given_dtype)))


def test_a_case_has_the_same_numbers_every_time() -> None:
    """Inputs do not depend on the state of torch's random number generator, and do not change this state."""
    state = torch.get_rng_state()
    first = collect_tensors(draw_inputs(FULL))
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    second = collect_tensors(draw_inputs(FULL))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_tensor_depends_only_on_the_seed_and_its_name() -> None:
    """A tensor does not depend on which tensors were drawn before."""
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
    """With the same seed, adding masks, biases, bias_k and add_zero_attn does not change the other tensors."""
    monkeypatch.setattr(Case, "seed", 5)
    bare = collect_tensors(
        draw_inputs(FULL.with_problem(bias=False, add_bias_kv=False, add_zero_attn=False, mask="none"))
    )
    full = collect_tensors(draw_inputs(FULL))
    assert full.keys() - bare.keys() == {
        "attn_mask", "key_padding_mask", "bias_k", "bias_v", "in_proj_bias", "out_proj.bias",
    }  # fmt: skip
    for name in bare.keys() - {"cotangent.weights"}:  # one column per key, also of bias_k
        assert torch.equal(full[name], bare[name]), name


def test_no_parameter_keeps_the_initial_values_of_the_reference() -> None:
    """Every element of every parameter is random: with zero biases, an implementation without biases would pass."""
    for one in iterate_random_cases():
        if one.problem.regime in IDENTITY_REGIMES:
            continue
        for name, parameter in draw_inputs(one.with_fields(dtype="float64", mode="eval")).parameters.items():
            assert len(parameter.unique()) == parameter.numel(), f"{name} of {one.id}"
            assert bool(parameter.all())


@pytest.mark.parametrize(
    ("regime", "std"), [("flat", 0.3), ("plain", 2.0), ("peaked", 8.0), ("onehot", 30.0), ("huge", 300.0)]
)
@pytest.mark.parametrize("problem", [CROSS, SELF], ids=["cross", "self"])
def test_logits_have_the_standard_deviation_of_their_regime(problem: object, regime: str, std: float) -> None:
    """From regime flat to huge, the standard deviation of logits rises from 0.3 to 300, as computed from the inputs."""
    one = Case(operator="multihead", problem=problem, dtype="float64").with_problem(
        batch=8, queries=64, keys=64, regime=regime
    )
    given, heads = draw_inputs(one), one.problem.num_heads
    weights = given.parameters["in_proj_weight"].chunk(3)
    biases = given.parameters["in_proj_bias"].chunk(3)
    q, k = (
        (given.tensors[name] @ weight.T + bias).unflatten(-1, (heads, -1)).transpose(1, 2)
        for name, weight, bias in (("query", weights[0], biases[0]), ("key", weights[1], biases[1]))
    )
    assert LOGIT_STD[regime] == std
    assert float((q @ k.mT / math.sqrt(one.problem.head_dim)).std()) == pytest.approx(std, rel=0.55)


def test_only_certain_masks_have_fully_masked_rows() -> None:
    """``empty`` masks have fully masked rows, and ``union2d`` with padding can have some; no other mask has any.

    A window, or padding that is not at the end, can fully mask a row together with another mask.
    """
    seen = set()
    for one in iterate_random_cases():
        problem = one.problem
        if not min(problem.sequences, problem.queries, problem.keys):
            continue
        mask = compute_logits_mask(problem, draw_inputs(one))
        empty = mask is not None and bool((mask[..., : problem.keys] == -math.inf).all(dim=-1).any())
        hides = problem.padding_mask not in (None, "padlowest")
        anywhere = problem.padding_mask in ("padleft", "padholes") and problem.attention_mask is not None
        together = hides and problem.keys > 1 and (problem.attention_mask in ("union2d", "window2d") or anywhere)
        if not together or empty:
            assert empty == ("empty" in problem.mask or together), one.id
        seen |= {(problem.attention_mask, empty)}
    assert {("union2d", True), ("union2d", False), ("floatempty2d", True), ("lowest2d", False)} <= seen


def test_a_union_mask_fully_masks_a_row_only_together_with_padding() -> None:
    """One row of ``union2d`` leaves only the last key visible, which is padding in every sequence but the first."""
    given = draw_inputs(FULL.with_problem(mask="union2d+pad", add_bias_kv=False, add_zero_attn=False))
    attention, padding = given.tensors["attn_mask"], given.tensors["key_padding_mask"]
    row = find_union_row(FULL.problem)
    assert attention[row].tolist() == [True] * 6 + [False]
    assert padding[:, -1].tolist() == [False, True]
    assert not bool(attention.all(dim=-1).any())
    assert not bool(padding.all(dim=-1).any())


def test_lowest_masks_are_finite_in_every_dtype_and_their_sum_is_not() -> None:
    """``lowest`` masks contain −1e4, −6e4 and a whole row of −1e4; a row of finite numbers is not fully masked."""
    given = draw_inputs(FULL.with_problem(mask="lowest2d+padlowest"))
    attention, padding = given.tensors["attn_mask"], given.tensors["key_padding_mask"]
    assert set(attention.unique().tolist()) == {LOWEST, LOW, 0.0}
    assert set(padding.unique().tolist()) == {LOWEST, 0.0}
    assert set(attention[2].tolist()) == {LOW}
    for dtype in DTYPES:
        half = getattr(torch, dtype)
        assert bool(attention.to(half).isfinite().all())
    assert not bool((attention.half().min() + padding.half().min()).isfinite())


def test_every_second_row_of_lowestrows_is_at_the_lowest_number() -> None:
    """Half of the rows of ``lowestrows2d`` are −6e4 at every key; these rows are visible, also if there is one row."""
    for queries in (1, 2, 5, 8):
        case = FULL.with_problem(queries=queries, mask="lowestrows2d", add_bias_kv=False, add_zero_attn=False)
        mask = draw_inputs(case).tensors["attn_mask"]
        sunk = (mask == LOWEST).all(dim=-1)
        assert int(sunk.sum()) in (queries // 2, (queries + 1) // 2)
        assert bool(sunk[queries // 2])
        assert bool(mask.half().isfinite().all())


def test_a_float_causal_mask_hides_what_the_boolean_one_hides() -> None:
    """It is 0 where ``causal`` shows a key and minus infinity where it hides one, as torch's own function makes it."""
    case = Case(operator="multihead", problem=CROSS).with_problem(mask="floatcausal", queries=4, keys=4)
    mask = draw_inputs(case).tensors["attn_mask"]
    assert torch.equal(mask, torch.nn.Transformer.generate_square_subsequent_mask(4))
    wide = case.with_problem(queries=4, keys=6)
    boolean = draw_inputs(wide.with_problem(mask="causal")).tensors["attn_mask"]
    assert torch.equal(draw_inputs(wide).tensors["attn_mask"] == -math.inf, boolean)


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (8, 8), (1, 9), (13, 4), (1, 1), (3, 1030)])
def test_a_window_shows_the_last_keys_up_to_a_query(queries: int, keys: int) -> None:
    """``window2d`` shows each query its own position and the keys before it, ``WINDOW`` in all, and never no key."""
    visible = ~draw_inputs(FULL.with_problem(queries=queries, keys=keys, mask="window2d")).tensors["attn_mask"]
    for query, row in enumerate(visible):
        position = max(query + keys - queries, 0)
        assert row.nonzero().flatten().tolist() == [*range(max(position - WINDOW + 1, 0), position + 1)]


@pytest.mark.parametrize("batch", [1, 4, None])
def test_padding_is_at_the_end_at_the_start_or_anywhere(batch: int | None) -> None:
    """``pad`` hides keys at the end of a sequence, ``padleft`` at the start, and ``padholes`` at other positions."""
    masks = {}
    for kind in ("pad", "padleft", "padholes"):
        mask = draw_inputs(FULL.with_problem(batch=batch, keys=40, mask=kind)).tensors["key_padding_mask"]
        masks[kind] = mask[None] if batch is None else mask
    at_end, at_start = masks["pad"].long(), masks["padleft"].long()
    assert torch.equal(at_end.sort(dim=1).values, at_end)
    assert torch.equal(at_start.sort(dim=1, descending=True).values, at_start)
    several = [row for row in masks["padholes"].long() if 1 < int(row.sum()) < 39]
    assert several
    assert not any(torch.equal(row.sort(descending=end).values, row) for row in several for end in (False, True))


@pytest.mark.parametrize("head_dim", [4, 16, 64, 256])
def test_overflowing_products_exceed_float16_before_the_scale_only(head_dim: int) -> None:
    """In ``overflow``, one product of each row and head exceeds 65504; scaled, it is 2¹⁵, and the others are 0."""
    case = build_exact_case("overflow", "none", embed_dim=3 * head_dim, keys=4, dtype="float16")
    given = draw_inputs(case)
    assert all(bool(tensor.isfinite().all()) for tensor in given.tensors.values())
    w_q, w_k, _ = given.parameters["in_proj_weight"].double().chunk(3)
    query, key = (given.tensors[name].double() for name in ("query", "key"))
    q, k = (torch.unflatten(x @ w.T, -1, (3, head_dim)).transpose(1, 2) for x, w in ((query, w_q), (key, w_k)))
    assert torch.equal(q.half().double(), q)
    products = q @ k.mT
    assert set(products.unique().tolist()) == {0.0, OVERFLOW_LOGIT * math.sqrt(head_dim)}
    assert float(products.max()) > torch.finfo(torch.float16).max > float(products.max()) / math.sqrt(head_dim)
    assert bool(((products > 0).sum(dim=-1) == 1).all())


def test_every_mask_hides_something_and_not_everything() -> None:
    """A mask that hides nothing would not show whether an implementation applies it."""
    for one in iterate_random_cases():
        # Short masks, and a causal mask with fewer keys than queries, may hide nothing.
        if one.problem.keys < 5 or one.problem.queries < 5 or not one.problem.sequences:
            continue
        for name, kind in (("attn_mask", one.problem.attention_mask), ("key_padding_mask", one.problem.padding_mask)):
            if kind is None:
                continue
            mask = draw_inputs(one).tensors[name]
            hidden = mask if mask.dtype == torch.bool else (mask < -1e3)
            # The padding mask of a single sequence may hide nothing.
            alone = name == "key_padding_mask" and one.problem.sequences == 1
            assert 0 < int(hidden.sum()) < hidden.numel() or alone or kind in FINITE_MASKS, one.id
            # Elements that do not hide a key are finite, and not all equal.
            if mask.is_floating_point() and "lowest" not in kind:
                assert bool((mask[~hidden].isfinite()).all())
                assert len(mask[~hidden].unique()) > 1


# Cases without projections


def build_exact_case(regime: str, mask: str, *, dtype: Dtype = "float64", **changes: Any) -> Case:
    """Return a case without biases, in a regime without random projections."""
    width = 192 if regime == "overflow" else 21
    problem = MultiheadProblem(
        **{"batch": 2, "queries": 5, "keys": 17, "embed_dim": width, "num_heads": 3, "batch_first": True}
        | {"regime": regime, "mask": mask}
        | changes
    )
    return Case(operator="multihead", problem=problem, dtype=dtype)


def test_identity_parameters_only_scale_and_permute() -> None:
    """W_q is twice the identity, W_k and W_o are the identity, and W_v is a permutation other than the identity."""
    parameters = draw_inputs(build_exact_case("identity", "none")).parameters
    w_q, w_k, w_v = parameters["in_proj_weight"].chunk(3)
    one = torch.eye(21, dtype=torch.float64)
    assert torch.equal(w_q, 2 * one)
    assert torch.equal(w_k, one)
    assert torch.equal(parameters["out_proj.weight"], one)
    assert not torch.equal(w_v, one)
    assert torch.equal(w_v @ w_v.T, one)
    assert parameters.keys() == {"in_proj_weight", "out_proj.weight"}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    ("regime", "mask"),
    [
        (regime, mask)
        for regime, masks in EXACT_MASKS.items()
        for mask in masks
        if (regime, mask) != ("uniform", "none")
    ],
)
def test_exact_cases_are_exact_in_every_dtype(regime: str, mask: str, *, batch_first: bool) -> None:
    """Every dtype represents the oracle's output and the values exactly; hidden values of ``zeroleak`` are large."""
    one = build_exact_case(regime, mask, batch_first=batch_first)
    output = evaluate(one, draw_inputs(one))["output"]
    for dtype in DTYPES:
        narrow = getattr(torch, dtype)
        assert torch.equal(output.to(narrow).double(), output), dtype
        value = draw_inputs(one).tensors["value"]
        assert torch.equal(value.to(narrow).double(), value), dtype
    visible = [] if mask == "none" else [int(row.isfinite().sum()) for row in _list_mask_rows(one)]
    if regime == "uniform":
        assert all(count & (count - 1) == 0 for count in visible)
        assert len(output.unique()) > 3
    if regime == "selection":
        assert set(visible) == {1}
    if regime == "overflow":
        assert len(output.unique()) > 20
    if regime == "zeroleak":
        assert not output.any()
        assert float(draw_inputs(one).tensors["value"].max()) == HIDDEN_ZEROLEAK


def _list_mask_rows(one: Case) -> Tensor:
    mask = compute_logits_mask(one.problem, draw_inputs(one))
    assert mask is not None
    return mask.flatten(0, -2)


def test_arguments_that_a_case_shares_are_one_tensor() -> None:
    """``key_is_value`` and ``query_is_key`` pass one tensor for two arguments; the third argument is another tensor."""
    shared = draw_inputs(FULL.with_problem(key_is_value=True)).tensors
    assert shared["key"] is shared["value"]
    assert shared["query"] is not shared["key"]
    shared = draw_inputs(FULL.with_problem(query_is_key=True, queries=7)).tensors
    assert shared["query"] is shared["key"]
    assert shared["value"] is not shared["key"]


def test_sizes_of_the_crossed_case_are_pairwise_distinct() -> None:
    """Batch, lengths, heads, head_dim and widths are all different, so a transposed or swapped axis changes a shape."""
    sizes = [CROSS.batch, CROSS.queries, CROSS.keys, CROSS.num_heads, CROSS.head_dim, CROSS.embed_dim]
    for widths in ([], [10, 14]):
        assert len({*sizes, *widths}) == len(sizes) + len(widths)
    pairs = {(one.problem.kdim, one.problem.vdim) for one in LISTS.load_suite("full")}
    assert pairs >= {(None, None), (10, 14), (10, None), (None, 14), (10, 10)}


def test_one_tensor_under_three_names_stays_one(tmp_path: Path) -> None:
    """Self-attention passes one tensor three times, also after inputs are loaded from a file or change their dtype."""
    given = draw_inputs(Case(operator="multihead", problem=SELF, dtype="bfloat16"))
    tensor_file.write(tmp_path / "inputs", inputs_to_dict(given))
    again = load_inputs(str(tmp_path / "inputs"), "cpu")
    for one in (given, again, round_inputs(again, torch.float64)):
        assert one.tensors["query"] is one.tensors["key"] is one.tensors["value"]
    assert torch.equal(again.tensors["query"], given.tensors["query"])
    other = draw_inputs(Case(operator="multihead", problem=CROSS)).tensors
    assert other["key"] is not other["value"]


def test_inputs_survive_a_file(tmp_path: Path) -> None:
    """Every option and tensor is restored from the file, and tensors keep their dtype."""
    given = draw_inputs(FULL.with_fields(dtype="float16"))
    tensor_file.write(tmp_path / "inputs", inputs_to_dict(given))
    again = load_inputs(str(tmp_path / "inputs"), "cpu")
    assert again.options == given.options == {
        "need_weights": True, "average_attn_weights": False, "is_causal": False,
    }  # fmt: skip
    assert again.arguments().keys() == {*given.tensors, *given.options}
    for name, tensor in collect_tensors(again).items():
        assert tensor.dtype == torch.float16
        assert torch.equal(tensor, collect_tensors(given)[name])


def test_rounding_leaves_boolean_masks_unchanged() -> None:
    """Rounding inputs changes the dtype of floating-point tensors only."""
    given = round_inputs(draw_inputs(FULL.with_problem(mask="bool3d+padfloat")), torch.float16)
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
def test_tokens_have_the_layout_of_the_problem(
    changes: dict[str, object], query: tuple[int, ...], key: tuple[int, ...]
) -> None:
    """Tokens are batch first, sequence first or without a batch; the output's cotangent has the shape of the query."""
    given = draw_inputs(FULL.with_problem(**changes))
    assert (given.tensors["query"].shape, given.tensors["key"].shape) == (query, key)
    assert given.cotangents["output"].shape == query
    batch = () if "batch" in changes else (2,)
    assert given.cotangents["weights"].shape == (*batch, 3, 5, 9)  # 7 keys, bias_k and the zero key


def test_layouts_hold_the_same_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same seed, sequence-first tokens are the transpose of batch-first tokens."""
    monkeypatch.setattr(Case, "seed", 5)
    first, other = (draw_inputs(FULL.with_problem(batch_first=flag)).tensors for flag in (True, False))
    for name in ("query", "key", "value"):
        assert torch.equal(first[name], other[name].transpose(0, 1))
        assert other[name].is_contiguous()


@needs_encoder
@pytest.mark.parametrize("layer", range(ENCODER_LAYERS))
def test_sentences_have_different_lengths(layer: int) -> None:
    """In cases with real sentences, the padding mask gives each sentence its length, and the lengths differ."""
    one = Case(operator="multihead", problem=SENTENCES, dtype="float32").with_problem(regime=f"minilm{layer}")
    given = draw_inputs(one)
    lengths = (~given.tensors["key_padding_mask"]).sum(dim=1).tolist()
    assert len(set(lengths)) == len(lengths) == one.problem.batch
    assert max(lengths) == one.problem.keys
    assert given.tensors["query"] is given.tensors["key"] is given.tensors["value"]
    assert given.tensors["query"].shape == (3, 14, 384)


@needs_encoder
def test_layers_of_the_encoder_differ() -> None:
    """Each layer of the encoder has its own parameters and its own hidden states."""
    queries = [
        draw_inputs(Case(operator="multihead", problem=SENTENCES).with_problem(regime=f"minilm{layer}"))
        for layer in range(ENCODER_LAYERS)
    ]
    assert len({float(one.tensors["query"].sum()) for one in queries}) == ENCODER_LAYERS
    assert len({float(one.parameters["in_proj_weight"].sum()) for one in queries}) == ENCODER_LAYERS


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_that_look_as_if_they_hid_nothing(dtype: Dtype) -> None:
    """``floatnegative2d`` is finite and at most 0; ``floatzerosum2d`` is finite, and its sum is exactly 0 in any dtype.

    Both change logits, and neither has the same numbers in every row.
    """
    for form in FINITE_MASKS:
        mask = draw_inputs(FULL.with_problem(mask=form).with_fields(dtype=dtype)).tensors["attn_mask"]
        assert bool(mask.isfinite().all())
        assert not bool((mask == mask[0]).all())
        assert (float(mask.max()) <= 0) == (form == "floatnegative2d")
        assert (float(mask.sum()) == 0) == (form == "floatzerosum2d")


@pytest.mark.parametrize("keys", [0, 1, 2, 3, 9])
def test_side_padding_leaves_a_key_visible(keys: int) -> None:
    """``padall`` hides the last two keys of every sequence, ``padlast`` the last of the last; one key stays visible."""
    for batch in (0, 1, 2, 5):
        for form in SIDE_PADDING:
            hidden = draw_inputs(FULL.with_problem(batch=batch, keys=keys, mask=form)).tensors["key_padding_mask"]
            assert hidden.shape == (batch, keys)
            assert not bool(hidden[:, :1].any())
            if keys > 1 and form == "padlast":
                assert hidden.nonzero().tolist() == [[batch - 1, keys - 1]] * bool(batch)
            if keys > 2 and form == "padall":
                assert bool(hidden[:, -2:].all())
