"""Tests of the oracle: it is the reference, wherever the reference agrees with itself, and the formula elsewhere."""

import math
import warnings
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench import encoder
from attnbench.cases import Case
from attnbench.checks.requirement import draws_dropout
from attnbench.inputs import rounded
from attnbench.interface import Inputs
from attnbench.operators.multihead.inputs import inputs
from attnbench.operators.multihead.oracle import Noise, _attention, evaluate
from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.operators.multihead.reference import reference
from attnbench.operators.multihead.rows import hidden_rows
from attnbench.operators.multihead.suites import CROSS, SELF, suite

# Largest difference relative to the largest element, or to 1: float64 keeps 1e-16, and 30 is the largest logit's std.
CLOSE = 1e-12

needs_encoder = pytest.mark.skipif(encoder.missing() is not None, reason=str(encoder.missing()))


def case(problem: MultiheadProblem = CROSS, mode: Any = "eval", **changes: Any) -> Case:
    """Case in float64."""
    return Case(operator="multihead", problem=problem, dtype="float64", mode=mode).with_problem(**changes)


def core(*, encoded: bool) -> list[Case]:
    """Cases of the suite core in float64, each once."""
    cases = {one.id: one for one in (one.with_fields(dtype="float64") for one in suite("core"))}
    return [one for one in cases.values() if (one.problem.encoder_layer is not None) == encoded]


def of_reference(one: Case, given: Inputs) -> dict[str, Tensor]:
    """Outputs and gradients of ``torch.nn.MultiheadAttention``, by name."""
    tracked = given.mapped(
        lambda t: t.detach().clone().requires_grad_(t.is_floating_point() and one.mode != "inference")
    )
    module = reference(one, given)
    with warnings.catch_warnings(), torch.set_grad_enabled(one.mode != "inference"):
        warnings.filterwarnings("ignore", message=".*mismatched key_padding_mask and attn_mask.*")
        output, weights = module(**tracked.arguments())
    found = {"output": output} | ({"weights": weights} if weights is not None else {})
    if one.mode != "inference":
        sum((value * given.cotangents[name]).sum() for name, value in found.items()).backward()
        leaves = tracked.tensors | dict(module.named_parameters())
        found |= {f"grad.{name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return {name: value.detach() for name, value in found.items()}


def disagreements(one: Case, found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """What is too far off, in words."""
    # One tensor that is query, key and value has one gradient: under its first name here, under all three there.
    expected = {name: value for name, value in expected.items() if name in found or not one.problem.self_attention}
    if found.keys() != expected.keys():
        return [f"{one.id}: {sorted(found.keys() ^ expected.keys())} are missing"]
    return [
        f"{one.id}: {name} is off by {error:.3g}"
        for name in found
        if not (error := relative_error(found[name], expected[name])) <= CLOSE
    ]


def relative_error(value: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the largest element, at least 1; NaN where a shape is wrong or an element NaN."""
    if value.shape != expected.shape:
        return math.nan
    return float((value - expected).abs().max() / expected.abs().max().clamp(min=1))


# Against the reference


def test_the_oracle_is_the_reference_in_double_precision() -> None:
    """Outputs, weights and all gradients agree on every drawn problem of core, in every mode.

    Left out are random ones, and those where the reference itself gives NaN with weights and zero without.
    """
    wrong, compared = [], 0
    for one in core(encoded=False):
        given = inputs(one)
        if draws_dropout(one) or (one.problem.need_weights and hidden_rows(one, given)):
            continue
        compared += 1
        wrong += disagreements(one, evaluate(one, given), of_reference(one, given))
    assert wrong == []
    assert compared > 150


@needs_encoder
def test_the_oracle_is_the_reference_on_real_sentences() -> None:
    """They agree on every layer of the encoder too."""
    wrong = []
    for one in core(encoded=True):
        given = inputs(one)
        wrong += disagreements(one, evaluate(one, given), of_reference(one, given))
    assert wrong == []


def test_the_comparison_can_fail() -> None:
    """A scale that is off by one part in a million is seen in every quantity that depends on it."""
    one = case(need_weights=True, mask="bool2d")
    given = inputs(one)
    expected = of_reference(one, given)
    with torch.no_grad():
        given.parameters["in_proj_weight"][:24] *= 1 + 1e-6
    wrong = " ".join(disagreements(one, evaluate(one, given), expected))
    for name in ("output", "weights", "grad.query", "grad.key", "grad.value", "grad.in_proj_weight"):
        assert f"{name} is off by" in wrong


@pytest.mark.parametrize("dropout", [0.1, 0.5])
@pytest.mark.parametrize("mask", ["none", "bool3d", "pad"])
def test_under_dropout_the_oracle_is_the_reference_given_its_mask(mask: str, dropout: float) -> None:
    """With the mask that the reference's weights show, everything else agrees."""
    one = case(mode="train", need_weights=True, mask=mask, dropout=dropout)
    given = inputs(one)
    torch.manual_seed(0)
    expected = of_reference(one, given)
    assert disagreements(one, evaluate(one, given, keep=expected["weights"] != 0), expected) == []
    assert disagreements(one, evaluate(one, given), expected) != []


@pytest.mark.parametrize(
    ("changes", "hidden"),
    [({"mask": "empty2d"}, (2, 1)), ({"mask": "padempty"}, (5, 1)), ({"mask": "empty3d"}, (1, 0))],
)
def test_rows_without_keys_get_zero_attention(changes: dict[str, Any], hidden: tuple[int, int]) -> None:
    """Their weights are zero, their output is the bias of the output projection, and every gradient is finite."""
    one = case(need_weights=True, **changes)
    given = inputs(one)
    found = evaluate(one, given)
    empty = found["weights"].sum(dim=-1) == 0
    rows, bias = hidden_rows(one, given), given.parameters["out_proj.bias"]
    assert torch.equal(empty, rows["weights"][..., 0].expand_as(empty))
    assert not found["weights"][empty].any()
    whole = empty.all(dim=1)
    assert torch.equal(found["output"][whole], bias.expand(int(whole.sum()), -1))
    assert bool(empty.any())
    assert all(bool(value.isfinite().all()) for value in found.values())


# Against the formula


def by_loops(problem: MultiheadProblem, given: Inputs) -> Tensor:
    """Output (batch, queries, embed_dim), one batch element, head and query after another."""
    parameters, tensors = given.parameters, given.tensors
    w_q, w_k, w_v = parameters["in_proj_weight"].chunk(3)
    b_q, b_k, b_v = parameters["in_proj_bias"].chunk(3)
    joined = torch.zeros(problem.batch, problem.queries, problem.embed_dim, dtype=torch.float64)
    for b, h, i in product(range(problem.batch), range(problem.num_heads), range(problem.queries)):
        part = slice(h * problem.head_dim, (h + 1) * problem.head_dim)
        q = (w_q @ tensors["query"][b, i] + b_q)[part]
        keys = [(w_k @ token + b_k)[part] for token in tensors["key"][b]]
        values = [(w_v @ token + b_v)[part] for token in tensors["value"][b]]
        masks = [
            float(tensors["attn_mask"][b * problem.num_heads + h, i, j] + tensors["key_padding_mask"][b, j])
            for j in range(problem.keys)
        ]
        if problem.add_bias_kv:
            keys.append(parameters["bias_k"][0, 0, part])
            values.append(parameters["bias_v"][0, 0, part])
            masks.append(0.0)
        if problem.add_zero_attn:
            keys.append(torch.zeros_like(q))
            values.append(torch.zeros_like(q))
            masks.append(0.0)
        exponentials = [
            math.exp(float(q @ k) / math.sqrt(problem.head_dim) + mask) for k, mask in zip(keys, masks, strict=True)
        ]
        joined[b, i, part] = sum(e / sum(exponentials) * v for e, v in zip(exponentials, values, strict=True))
    return torch.stack(
        [
            torch.stack([parameters["out_proj.weight"] @ row + parameters["out_proj.bias"] for row in rows])
            for rows in joined
        ]
    )


@pytest.mark.parametrize("columns", [{}, {"add_bias_kv": True}, {"add_bias_kv": True, "add_zero_attn": True}])
def test_the_oracle_is_the_formula_written_as_loops(columns: dict[str, bool]) -> None:
    """Head by head and query by query, with additive masks and extra columns, the output is the same."""
    one = case(mask="float3d+padfloat", mode="inference", **columns)
    given = inputs(one)
    assert relative_error(evaluate(one, given)["output"], by_loops(one.problem, given)) <= CLOSE


@pytest.mark.parametrize(
    "changes",
    [
        {"mask": "float3d+padfloat", "add_bias_kv": True, "add_zero_attn": True, "need_weights": True},
        {"mask": "empty2d", "kdim": 3, "vdim": 2},
        {"mask": "padempty", "batch_first": False, "need_weights": True, "average_attn_weights": True},
    ],
)
def test_gradients_are_those_of_finite_differences(changes: dict[str, Any]) -> None:
    """What autograd differentiates is smooth, rows without keys included."""
    one = case(batch=2, queries=3, keys=4, embed_dim=4, num_heads=2, **changes)
    given = inputs(one)
    names = [*given.parameters, *(name for name, t in given.tensors.items() if t.is_floating_point())]

    def outputs(*leaves: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(names, leaves, strict=True))
        changed = Inputs(
            parameters={name: named[name] for name in given.parameters},
            tensors={name: named.get(name, tensor) for name, tensor in given.tensors.items()},
        )
        return _attention(one.problem, changed, None, None)

    # A finite difference of minus infinity is no number: additive masks hide here by -3.
    leaves = [(given.parameters | given.tensors)[name].nan_to_num(neginf=-3.0).requires_grad_() for name in names]
    assert torch.autograd.gradcheck(outputs, leaves)


def test_one_tensor_as_query_key_and_value_has_one_gradient() -> None:
    """It is the sum of the three, under the first name."""
    one = case(SELF)
    given = inputs(one)
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
def test_quantities_are_what_the_case_asks_for(changes: dict[str, Any], mode: str, names: set[str]) -> None:
    """Weights if they are asked for; gradients of what is a number, unless in inference."""
    one = case(mode=mode, **changes)
    assert evaluate(one, inputs(one)).keys() == names


def test_inputs_are_left_as_they_were() -> None:
    """Nothing requires gradients afterwards, and no bit has changed."""
    one = case(mask="float2d+padfloat", need_weights=True)
    given, again = inputs(one), inputs(one)
    evaluate(one, given, noise=Noise(2.0**-8, 0))
    for name, tensor in (given.parameters | given.tensors).items():
        assert not tensor.requires_grad
        assert torch.equal(tensor, (again.parameters | again.tensors)[name])


# The rounding model

NOISY = {"mask": "float3d+pad", "need_weights": True, "add_bias_kv": True}


def test_noise_of_no_size_changes_nothing() -> None:
    """Outputs are the same bits; the gradient of softmax is written otherwise there, and the same number."""
    one = case(**NOISY)
    given = inputs(one)
    exact, noisy = evaluate(one, given), evaluate(one, given, noise=Noise(0.0, 1))
    assert torch.equal(noisy["output"], exact["output"])
    assert torch.equal(noisy["weights"], exact["weights"])
    assert disagreements(one, noisy, exact) == []


def test_noise_reaches_every_quantity_and_grows_with_the_roundoff() -> None:
    """Each is off by some roundoffs; a 256th of the roundoff gives about a 256th of the error."""
    one = case(**NOISY)
    given = inputs(one)
    exact = evaluate(one, given)
    coarse, fine = (evaluate(one, given, noise=Noise(2.0**-exponent, 1)) for exponent in (16, 24))
    for name, value in exact.items():
        errors = [relative_error(noisy[name], value) for noisy in (coarse, fine)]
        assert 2.0**-17 < errors[0] < 2.0**-9, name
        assert errors[0] / errors[1] == pytest.approx(256, rel=0.2), name


def test_noise_follows_its_seed() -> None:
    """The same seed gives the same errors, another seed others; none is larger than the roundoff."""
    ones = torch.ones(1000, dtype=torch.float64)
    first, same, other = (Noise(0.125, seed).on(ones) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert 0.12 < float((first - 1).abs().max()) <= 0.125


# Rows from which every key is hidden


def pattern(rows: dict[str, Tensor]) -> dict[str, Any]:
    """Marks as nested lists of 0 and 1, without the last dimension."""
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
        # Sequence first: queries by batch.
        (
            {"mask": "padempty", "batch_first": False, "average_attn_weights": True},
            {"output": [[0, 1]] * 5, "weights": [NONE, LAST]},
        ),
        ({"mask": "empty3d", "batch": None}, {"output": FIRST, "weights": [NONE, NONE, FIRST]}),
        # An extra column is never hidden.
        ({"mask": "empty2d+padempty", "add_zero_attn": True}, {}),
        ({"mask": "empty2d+padempty", "add_bias_kv": True}, {}),
    ],
)
def test_rows_without_any_key_are_marked(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    """Exactly those, for output and weights, in the problem's own layout."""
    one = case(need_weights=True, **changes)
    given = inputs(one)
    rows = hidden_rows(one, given)
    assert pattern(rows) == expected
    quantities = evaluate(one, given)
    for name, value in rows.items():
        assert value.dtype == torch.bool
        assert torch.broadcast_shapes(value.shape, quantities[name].shape) == quantities[name].shape


def test_rows_are_the_same_in_every_dtype() -> None:
    """A mask of numbers hides where it is minus infinity, however narrow the numbers are."""
    one = case(mask="empty3d+padfloat", need_weights=True)
    expected = pattern(hidden_rows(one, inputs(one)))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert pattern(hidden_rows(one, rounded(inputs(one), dtype))) == expected
