"""Tests of the oracle, against the reference, the formula as loops, extended precision and finite differences."""

import math
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.checks.requirement import draws_dropout
from attnbench.interface import Inputs
from attnbench.operators.multihead import OPERATOR
from attnbench.operators.multihead.inputs import draw_inputs
from attnbench.operators.multihead.oracle import Noise, _attend, compute_logits_mask, evaluate
from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.operators.multihead.reference import build_reference
from attnbench.operators.multihead.rows import find_hidden_rows
from attnbench.operators.multihead.suites import CROSS, LISTS, SELF
from attnbench.oracle import sentence_encoder
from attnbench.oracle.expected import CaseOracle
from attnbench.oracle.inputs import round_inputs

# Largest allowed difference, relative to the largest element or, if that is larger, to 1. The roundoff of float64 is
# 1e-16; the largest standard deviation of logits is 30.
CLOSE = 1e-12
# Largest allowed difference, measured like CLOSE, for masks with numbers of 60000, whose last digit is 7e-12.
FAR = 1e-10

needs_encoder = pytest.mark.skipif(
    sentence_encoder.describe_missing() is not None, reason=str(sentence_encoder.describe_missing())
)


def case(problem: MultiheadProblem = CROSS, mode: Any = "eval", **changes: Any) -> Case:
    """Return a case in float64."""
    return Case(operator="multihead", problem=problem, dtype="float64", mode=mode).with_problem(**changes)


def list_core_cases(*, encoded: bool) -> list[Case]:
    """Return the cases of the suite core in float64, each once, with or without real sentences.

    Cases of a compiler and cases that draw dropout are left out; the oracle does not depend on the compiler. Cases
    under autocast become cases in mode train, because autocast has no float64.
    """
    double = (
        one.with_fields(dtype="float64", mode="train" if one.autocast else one.mode) for one in LISTS.load_suite("core")
    )
    return [
        one
        for one in dict.fromkeys(double)
        if (one.problem.encoder_layer is not None) == encoded and one.compiler is None and not draws_dropout(one)
    ]


def run_reference(one: Case, given: Inputs) -> dict[str, Tensor]:
    """Return outputs and gradients of ``torch.nn.MultiheadAttention``, by name.

    The module is called in train mode without is_causal, because its fast path and is_causal give other results. If the
    batch, the queries or the keys are empty, attention weights are requested: without them the reference refuses masks.
    """
    problem = one.problem
    tracked = given.map_tensors(
        lambda t: t.detach().clone().requires_grad_(t.is_floating_point() and one.tracks_inputs)
    )
    module = build_reference(one, given).train()
    if not one.training:
        module.dropout = 0.0
    empty = min(problem.sequences, problem.queries, problem.keys) == 0
    changed = {"is_causal": False} | ({"need_weights": True} if empty else {})
    with warnings.catch_warnings(), torch.set_grad_enabled(one.differentiates):
        warnings.filterwarnings("ignore", message=".*mismatched key_padding_mask and attn_mask.*")
        output, weights = module(**tracked.arguments() | changed)
    found = {"output": output} | ({"weights": weights} if problem.need_weights else {})
    if one.differentiates:
        loss = sum(((value * given.cotangents[name]).sum() for name, value in found.items()), torch.zeros(()))
        leaves = {name: leaf for name, leaf in tracked.tensors.items() if leaf.requires_grad}
        leaves |= {name: leaf for name, leaf in module.named_parameters() if leaf.requires_grad}
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        found |= {f"grad.{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}
    return {name: value.detach() for name, value in found.items()}


def describe_disagreements(one: Case, found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """Describe the quantities whose error is larger than CLOSE, or than FAR for masks or logits with large numbers."""
    # For one tensor as query, key and value, the oracle has one gradient (grad.query), and the reference has three.
    problem = one.problem
    shared = problem.self_attention or problem.key_is_value or problem.query_is_key
    expected = {name: value for name, value in expected.items() if name in found or not shared}
    if found.keys() != expected.keys():
        return [f"{one.id}: {sorted(found.keys() ^ expected.keys())} are missing"]
    return [
        f"{one.id}: {name} is off by {error:.3g}"
        for name in found
        if not (error := relative_error(found[name], expected[name]))
        <= (FAR if "lowest" in one.problem.mask or one.problem.regime == "overflow" else CLOSE)
    ]


def relative_error(value: Tensor, expected: Tensor) -> float:
    """Return max |value − expected| / max(1, max |expected|); NaN for a wrong shape or a NaN element."""
    if value.shape != expected.shape:
        return math.nan
    if not value.numel():
        return 0.0
    return float((value - expected).abs().max() / expected.abs().max().clamp(min=1))


# Against the reference


def test_the_oracle_equals_the_reference_in_float64() -> None:
    """Outputs, attention weights and gradients agree on every generated problem of core, in every mode.

    Two kinds of cases are left out: those with dropout, and those with fully masked rows that request attention
    weights. In a fully masked row the reference gives NaN if weights are requested, and zero otherwise.
    """
    wrong, compared = [], 0
    for one in list_core_cases(encoded=False):
        given = draw_inputs(one)
        if one.problem.need_weights and find_hidden_rows(one, given):
            continue
        compared += 1
        wrong += describe_disagreements(one, evaluate(one, given), run_reference(one, given))
    assert wrong == []
    assert compared > 150, compared


@needs_encoder
def test_the_oracle_equals_the_reference_on_real_sentences() -> None:
    """Oracle and reference agree on cases with the parameters and hidden states of each sentence encoder layer."""
    wrong = []
    for one in list_core_cases(encoded=True):
        given = draw_inputs(one)
        wrong += describe_disagreements(one, evaluate(one, given), run_reference(one, given))
    assert wrong == []


def test_the_comparison_can_fail() -> None:
    """If the query projection is scaled by 1 + 1e-6, the comparison reports every quantity that depends on it."""
    one = case(need_weights=True, mask="bool2d")
    given = draw_inputs(one)
    expected = run_reference(one, given)
    with torch.no_grad():
        given.parameters["in_proj_weight"][:24] *= 1 + 1e-6
    wrong = " ".join(describe_disagreements(one, evaluate(one, given), expected))
    for name in ("output", "weights", "grad.query", "grad.key", "grad.value", "grad.in_proj_weight"):
        assert f"{name} is off by" in wrong


@pytest.mark.parametrize("dropout", [0.1, 0.5])
@pytest.mark.parametrize("mask", ["none", "bool3d", "pad"])
def test_under_the_dropout_mask_of_the_reference_the_oracle_equals_it(mask: str, dropout: float) -> None:
    """All quantities agree if the oracle drops the attention weights that the reference returns as 0."""
    one = case(mode="train", need_weights=True, mask=mask, dropout=dropout)
    given = draw_inputs(one)
    torch.manual_seed(0)
    expected = run_reference(one, given)
    assert describe_disagreements(one, evaluate(one, given, keep=expected["weights"] != 0), expected) == []
    assert describe_disagreements(one, evaluate(one, given), expected) != []


@pytest.mark.parametrize(
    ("changes", "hidden"),
    [({"mask": "empty2d"}, (2, 1)), ({"mask": "padempty"}, (5, 1)), ({"mask": "empty3d"}, (1, 0))],
)
def test_fully_masked_rows_get_zero_attention(changes: dict[str, Any], hidden: tuple[int, int]) -> None:
    """In fully masked rows, the attention weights are 0 and the output is out_proj.bias; all gradients are finite."""
    one = case(need_weights=True, **changes)
    given = draw_inputs(one)
    found = evaluate(one, given)
    empty = found["weights"].sum(dim=-1) == 0
    rows, bias = find_hidden_rows(one, given), given.parameters["out_proj.bias"]
    assert torch.equal(empty, rows["weights"][..., 0].expand_as(empty))
    assert not found["weights"][empty].any()
    whole = empty.all(dim=1)
    assert torch.equal(found["output"][whole], bias.expand(int(whole.sum()), -1))
    assert bool(empty.any())
    assert all(bool(value.isfinite().all()) for value in found.values())


# Against the formula


def move_batch_first(problem: MultiheadProblem, tokens: Tensor) -> Tensor:
    """Return tokens of the problem's layout in the layout (batch, length, width)."""
    if problem.batch is None:
        return tokens[None]
    return tokens if problem.batch_first else tokens.transpose(0, 1)


def read_projections(given: Inputs) -> tuple[list[Tensor], list[Tensor]]:
    """Return the projection weights of query, key and value, and their biases."""
    parameters = given.parameters
    packed = parameters.get("in_proj_weight")
    weights = [parameters[f"{x}_proj_weight"] for x in "qkv"] if packed is None else list(packed.chunk(3))
    zero_bias = torch.zeros(3 * len(weights[0]), dtype=torch.float64)
    return weights, list(parameters.get("in_proj_bias", zero_bias).chunk(3))


def add_masks(problem: MultiheadProblem, given: Inputs, b: int, h: int, i: int, j: int) -> float:
    """Return the number that the masks add to the logit of batch element b, head h, query i and key j."""
    total = 0.0
    attention, padding = (given.tensors.get(name) for name in ("attn_mask", "key_padding_mask"))
    elements = []
    if attention is not None:
        elements.append(attention[i, j] if attention.dim() == 2 else attention[b * problem.num_heads + h, i, j])
    if padding is not None:
        elements.append(padding[j] if padding.dim() == 1 else padding[b, j])
    for element in elements:
        total += (-math.inf if element else 0.0) if element.dtype == torch.bool else float(element)
    return total


def attend_by_loops(problem: MultiheadProblem, given: Inputs) -> Tensor:
    """Return the output (batch, queries, embed_dim), computed by a loop over batch elements, heads and queries."""
    parameters, width = given.parameters, problem.head_dim
    weights, biases = read_projections(given)
    q, k, v = (
        move_batch_first(problem, given.tensors[name]) @ weight.T + bias
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True)
    )
    joined = torch.zeros(problem.sequences, problem.queries, problem.embed_dim, dtype=torch.float64)
    for b, h, i in product(range(problem.sequences), range(problem.num_heads), range(problem.queries)):
        part = slice(h * width, (h + 1) * width)
        columns = [(k[b, j, part], v[b, j, part], add_masks(problem, given, b, h, i, j)) for j in range(problem.keys)]
        if problem.add_bias_kv:
            columns.append((parameters["bias_k"][0, 0, part], parameters["bias_v"][0, 0, part], 0.0))
        if problem.add_zero_attn:
            columns.append((torch.zeros(width).double(), torch.zeros(width).double(), 0.0))
        logits = [float(q[b, i, part] @ key) / math.sqrt(width) + mask for key, _, mask in columns]
        largest = max(logits, default=-math.inf)
        if largest == -math.inf:
            continue
        exponentials = [math.exp(logit - largest) for logit in logits]
        for exponential, (_, value, _) in zip(exponentials, columns, strict=True):
            joined[b, i, part] += exponential / sum(exponentials) * value
    return joined @ parameters["out_proj.weight"].T + parameters.get("out_proj.bias", 0.0)


@pytest.mark.extended
def test_the_oracle_equals_the_formula_written_as_loops() -> None:
    """The outputs of oracle and loops agree on all small cases of core, fully masked rows included."""
    compared = 0
    for one in list_core_cases(encoded=False):
        problem = one.problem
        if problem.sequences * problem.num_heads * problem.queries * problem.columns > 2000:
            continue
        compared += 1
        given = draw_inputs(one)
        found = move_batch_first(problem, evaluate(one.with_fields(mode="inference"), given)["output"])
        allowed = FAR if "lowest" in problem.mask else CLOSE
        assert relative_error(found, attend_by_loops(problem, given)) <= allowed, one.id
    assert compared > 90, compared


# Against extended precision


def evaluate_in_long_double(one: Case, given: Inputs) -> dict[str, Any]:
    """Return output, attention weights, and gradients of query, key and value, in np.longdouble (64-bit mantissa)."""
    problem = one.problem

    def wide(tensor: Tensor) -> Any:
        return tensor.numpy().astype(np.longdouble)

    def heads(features: Any) -> Any:
        return features.reshape(len(features), -1, problem.num_heads, problem.head_dim).transpose(0, 2, 1, 3)

    def joined(values: Any) -> Any:
        return values.transpose(0, 2, 1, 3).reshape(len(values), values.shape[2], -1)

    weights, biases = ([wide(t) for t in ts] for ts in read_projections(given))
    tokens = [wide(move_batch_first(problem, given.tensors[name])) for name in ("query", "key", "value")]
    q, k, v = (heads(x @ w.T + b) for x, w, b in zip(tokens, weights, biases, strict=True))
    if problem.add_bias_kv:
        learned = [wide(given.parameters[name]).repeat(len(k), 0) for name in ("bias_k", "bias_v")]
        k, v = (np.concatenate([t, heads(column)], axis=2) for t, column in zip((k, v), learned, strict=True))
    if problem.add_zero_attn:
        k, v = (np.concatenate([t, 0 * q[:, :, :1]], axis=2) for t in (k, v))
    root = np.sqrt(np.longdouble(problem.head_dim))
    logits = q @ k.transpose(0, 1, 3, 2) / root
    mask = compute_logits_mask(problem, given)
    if mask is not None:
        logits = logits + wide(mask)
    largest = logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(logits - np.where(np.isinf(largest), 0, largest))
    total = exponentials.sum(axis=-1, keepdims=True)
    shares = exponentials / np.where(total == 0, 1, total)
    w_out = wide(given.parameters["out_proj.weight"])
    output = joined(shares @ v) @ w_out.T
    if problem.bias:
        output = output + wide(given.parameters["out_proj.bias"])
    # Backward of the softmax by hand, with logits S and attention weights P: dS = P (dP − Σ P dP).
    above = heads(wide(move_batch_first(problem, given.cotangents["output"])) @ w_out)
    d_shares = above @ v.transpose(0, 1, 3, 2)
    d_logits = shares * (d_shares - (shares * d_shares).sum(axis=-1, keepdims=True)) / root
    back = {
        "query": d_logits @ k,
        "key": d_logits.transpose(0, 1, 3, 2) @ q,
        "value": shares.transpose(0, 1, 3, 2) @ above,
    }
    gradients = {
        f"grad.{name}": joined(value[:, :, : problem.keys] if name != "query" else value) @ weight
        for (name, value), weight in zip(back.items(), weights, strict=True)
    }
    return {"output": output, "weights": shares.mean(axis=1) if problem.average_attn_weights else shares} | gradients


@pytest.mark.extended
@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="this machine has no number wider than a double")
def test_the_error_of_the_oracle_is_well_within_the_budget_of_float64() -> None:
    """On every second case, the oracle's error against np.longdouble is at most half of what float64 is allowed."""
    shares: dict[str, list[float]] = {}
    for one in list(list_core_cases(encoded=False))[::2]:
        problem = one.problem
        if min(problem.sequences, problem.queries, problem.keys) == 0:
            continue
        given = draw_inputs(one)
        case_oracle = CaseOracle(one, OPERATOR, "float64", lambda given=given: given)
        wide = evaluate_in_long_double(one, given)
        shared = problem.self_attention or problem.key_is_value or problem.query_is_key
        for name, value in case_oracle.expected.quantities.items():
            if name not in wide or (name.startswith("grad.") and (shared or problem.need_weights)):
                continue
            ours = value if name == "weights" and problem.batch is not None else move_batch_first(problem, value)
            error = float(np.abs(ours.numpy().astype(np.longdouble) - wide[name]).max())
            shares.setdefault(name, []).append(error / case_oracle.expected.allowances[name].allowed)
    assert shares.keys() == {"output", "weights", "grad.query", "grad.key", "grad.value"}
    assert {name: round(max(found), 2) for name, found in shares.items() if not max(found) <= 0.5} == {}
    assert len(shares["output"]) > 150
    assert len(shares["grad.query"]) > 20


@pytest.mark.parametrize(
    "changes",
    [
        {"mask": "float3d+padfloat", "add_bias_kv": True, "add_zero_attn": True, "need_weights": True},
        {"mask": "empty2d", "kdim": 3, "vdim": 2},
        {"mask": "padempty", "batch_first": False, "need_weights": True, "average_attn_weights": True},
    ],
)
def test_gradients_are_those_of_finite_differences(changes: dict[str, Any]) -> None:
    """``gradcheck`` passes for the oracle's formula, also with fully masked rows."""
    one = case(batch=2, queries=3, keys=4, embed_dim=4, num_heads=2, **changes)
    given = draw_inputs(one)
    names = [*given.parameters, *(name for name, t in given.tensors.items() if t.is_floating_point())]

    def outputs(*leaves: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(names, leaves, strict=True))
        changed = Inputs(
            parameters={name: named[name] for name in given.parameters},
            tensors={name: named.get(name, tensor) for name, tensor in given.tensors.items()},
        )
        return _attend(one.problem, changed, None, None)

    # Additive masks have -3 in place of minus infinity, for which there is no finite difference.
    leaves = [(given.parameters | given.tensors)[name].nan_to_num(neginf=-3.0).requires_grad_() for name in names]
    assert torch.autograd.gradcheck(outputs, leaves)


def test_one_tensor_as_query_key_and_value_has_one_gradient() -> None:
    """The gradient of the shared tensor is ``grad.query``, the sum of the gradients of query, key and value."""
    one = case(SELF)
    given = draw_inputs(one)
    found = evaluate(one, given)
    apart = evaluate(one, Inputs(
        parameters=given.parameters,
        tensors={name: tensor.clone() for name, tensor in given.tensors.items()},
        cotangents=given.cotangents,
    ))  # fmt: skip
    assert {"grad.key", "grad.value"}.isdisjoint(found)
    total = apart["grad.query"] + apart["grad.key"] + apart["grad.value"]
    assert relative_error(found["grad.query"], total) <= CLOSE


@pytest.mark.parametrize(
    ("changes", "mode", "names"),
    [
        ({}, "inference", {"output"}),
        ({"need_weights": True}, "inference", {"output", "weights"}),
        (
            {"mask": "float2d+pad", "bias": False},
            "train",
            {"output", "grad.query", "grad.key", "grad.value", "grad.attn_mask", "grad.in_proj_weight"}
            | {"grad.out_proj.weight"},
        ),
    ],
)
def test_quantities_are_those_that_the_case_requests(changes: dict[str, Any], mode: str, names: set[str]) -> None:
    """Attention weights are computed if the case requests them.

    Gradients of all floating-point tensors are computed, except in mode inference.
    """
    one = case(mode=mode, **changes)
    assert evaluate(one, draw_inputs(one)).keys() == names


def test_inputs_are_unchanged() -> None:
    """``evaluate`` leaves the case's tensors bit for bit as they were, and none of them requires gradients."""
    one = case(mask="float2d+padfloat", need_weights=True)
    given, again = draw_inputs(one), draw_inputs(one)
    evaluate(one, given, noise=Noise(2.0**-8, 0))
    for name, tensor in (given.parameters | given.tensors).items():
        assert not tensor.requires_grad
        assert torch.equal(tensor, (again.parameters | again.tensors)[name])


# The rounding model

NOISY = {"mask": "float3d+pad", "need_weights": True, "add_bias_kv": True}


def test_noise_of_size_zero_changes_nothing() -> None:
    """With noise of size 0, output and attention weights are those without noise, bit for bit.

    Gradients agree to rounding only, because with noise the backward of softmax is computed by another formula.
    """
    one = case(**NOISY)
    given = draw_inputs(one)
    exact, noisy = evaluate(one, given), evaluate(one, given, noise=Noise(0.0, 1))
    assert torch.equal(noisy["output"], exact["output"])
    assert torch.equal(noisy["weights"], exact["weights"])
    assert describe_disagreements(one, noisy, exact) == []


def test_noise_reaches_every_quantity_and_grows_with_the_roundoff() -> None:
    """The relative error of every quantity is ½ to 128 times the roundoff of the noise.

    If the roundoff is divided by 256, the error is divided by about 256.
    """
    one = case(**NOISY)
    given = draw_inputs(one)
    exact = evaluate(one, given)
    coarse, fine = (evaluate(one, given, noise=Noise(2.0**-exponent, 1)) for exponent in (24, 32))
    for name, value in exact.items():
        errors = [relative_error(noisy[name], value) for noisy in (coarse, fine)]
        assert 2.0**-25 < errors[0] < 2.0**-17, name
        assert errors[0] / errors[1] == pytest.approx(256, rel=0.2), name


def test_noise_follows_its_seed() -> None:
    """Equal seeds give equal noise, and different seeds different noise.

    Noise changes a number by at most the roundoff, relative to the number.
    """
    ones = torch.ones(1000, dtype=torch.float64)
    first, same, other = (Noise(0.125, seed).perturb(ones) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert 0.12 < float((first - 1).abs().max()) <= 0.125


# Fully masked rows


def list_rows(rows: dict[str, Tensor]) -> dict[str, Any]:
    """Return boolean tensors as nested lists of 0 and 1, without their last dimension (of size 1)."""
    return {name: value.squeeze(-1).int().tolist() for name, value in rows.items()}


FIRST, LAST, NONE = [0, 0, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"mask": "bool3d+pad"}, {}),
        ({"mask": "causal"}, {}),
        # The middle row, in every head of both sequences.
        ({"mask": "empty2d"}, {"output": [FIRST, FIRST], "weights": [[FIRST] * 3] * 2}),
        # The middle row of the last head of the last sequence; the output mixes heads.
        ({"mask": "empty3d"}, {"output": [NONE, FIRST], "weights": [[NONE] * 3, [NONE, NONE, FIRST]]}),
        ({"mask": "empty3d", "average_attn_weights": True}, {"output": [NONE, FIRST], "weights": [NONE, FIRST]}),
        # Every row of the last sequence.
        ({"mask": "padempty"}, {"output": [NONE, LAST], "weights": [[NONE] * 3, [LAST] * 3]}),
        ({"mask": "empty2d+padempty"}, {"output": [FIRST, LAST], "weights": [[FIRST] * 3, [LAST] * 3]}),
        # With batch_first=False the output's rows are (queries, batch).
        (
            {"mask": "padempty", "batch_first": False, "average_attn_weights": True},
            {"output": [[0, 1]] * 5, "weights": [NONE, LAST]},
        ),
        ({"mask": "empty3d", "batch": None}, {"output": FIRST, "weights": [NONE, NONE, FIRST]}),
        # The extra key of add_zero_attn or add_bias_kv is never hidden, so no row is fully masked.
        ({"mask": "empty2d+padempty", "add_zero_attn": True}, {}),
        ({"mask": "empty2d+padempty", "add_bias_kv": True}, {}),
    ],
)
def test_fully_masked_rows_are_found(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    """``find_hidden_rows`` marks the fully masked rows of output and attention weights, in the problem's layout."""
    one = case(need_weights=True, **changes)
    given = draw_inputs(one)
    rows = find_hidden_rows(one, given)
    assert list_rows(rows) == expected
    quantities = evaluate(one, given)
    for name, value in rows.items():
        assert value.dtype == torch.bool
        assert torch.broadcast_shapes(value.shape, quantities[name].shape) == quantities[name].shape


def test_fully_masked_rows_are_the_same_in_every_dtype() -> None:
    """Masks with minus infinity, rounded to float32, bfloat16 or float16, still have the same fully masked rows."""
    one = case(mask="empty3d+padfloat", need_weights=True)
    expected = list_rows(find_hidden_rows(one, draw_inputs(one)))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert list_rows(find_hidden_rows(one, round_inputs(draw_inputs(one), dtype))) == expected
