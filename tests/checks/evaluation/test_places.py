"""Tests of places: where an element is, and which positions wrong elements share."""

from typing import Any

import pytest
import torch

from attnbench.cases import Case
from attnbench.checks.evaluation.places import find_place, find_shared_positions, unravel_index
from attnbench.interface import Axis
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.operators.multihead.suites import CROSS, LISTS, SELF
from attnbench.records.value_facts import Coordinate
from attnbench.words.places import describe_place, describe_shared

TOKENS = (
    Axis(dimension=0, word="batch", positions=range(4)),
    Axis(dimension=1, word="query", positions=range(6)),
    Axis(dimension=2, word="feature", positions=range(8)),
    Axis(dimension=2, word="head", positions=[0, 0, 0, 0, 1, 1, 1, 1], belongs=True),
)


def case(problem: MultiheadProblem = CROSS, **changes: Any) -> Case:
    """Return a case with gradients."""
    return Case(operator="multihead", problem=problem, mode="train").with_problem(**changes)


def describe_element(one: Case, quantity: str, index: tuple[int, ...]) -> str:
    """Return the place of an element of a quantity, in words."""
    return describe_place(find_place(index, OPERATOR.axes(one, quantity)))


@pytest.mark.parametrize(
    ("changes", "quantity", "index", "expected"),
    [
        ({}, "output", (1, 4, 7), "batch 1, query 4, feature 7"),
        ({"batch_first": False}, "output", (4, 1, 7), "query 4, batch 1, feature 7"),
        ({"batch": None}, "output", (4, 7), "query 4, feature 7"),
        # Without projections, a feature of output or key belongs to one head. Features of values are permuted, so
        # no head is named for them.
        ({"bias": False, "regime": "identity"}, "output", (1, 4, 7), "batch 1, query 4, feature 7 (head 0)"),
        ({"bias": False, "regime": "identity"}, "grad.key", (1, 6, 8), "batch 1, key 6, feature 8 (head 1)"),
        ({"bias": False, "regime": "identity"}, "grad.value", (1, 6, 8), "batch 1, key 6, feature 8"),
        ({}, "weights", (1, 2, 4, 3), "batch 1, head 2, query 4, key 3"),
        ({"average_attn_weights": True}, "weights", (1, 4, 3), "batch 1, query 4, key 3"),
        ({"batch": None}, "weights", (2, 4, 3), "head 2, query 4, key 3"),
        (
            {"add_bias_kv": True, "add_zero_attn": True}, "weights", (0, 0, 0, 7),
            "batch 0, head 0, query 0, the bias_k key",
        ),
        (
            {"add_bias_kv": True, "add_zero_attn": True}, "weights", (0, 0, 0, 8),
            "batch 0, head 0, query 0, the add_zero_attn key",
        ),
        ({}, "grad.query", (1, 4, 7), "batch 1, query 4, feature 7"),
        ({}, "grad.key", (1, 6, 7), "batch 1, key 6, feature 7"),
        ({"vdim": 14, "kdim": 10}, "grad.value", (1, 6, 13), "batch 1, key 6, feature 13"),
        ({"mask": "float2d"}, "grad.attn_mask", (4, 6), "query 4, key 6"),
        ({"mask": "float3d"}, "grad.attn_mask", (4, 3, 6), "batch 1, head 1, query 3, key 6"),
        ({"mask": "padfloat"}, "grad.key_padding_mask", (1, 6), "batch 1, key 6"),
        ({}, "grad.in_proj_weight", (33, 5), "row 33 (key weights of head 1), column 5"),
        ({}, "grad.in_proj_bias", (64,), "row 64 (value bias of head 2)"),
        ({"kdim": 10, "vdim": 14}, "grad.k_proj_weight", (23, 9), "row 23 (head 2), column 9"),
        ({}, "grad.out_proj.weight", (3, 9), "row 3, column 9 (head 1)"),
        ({}, "grad.out_proj.bias", (3,), "row 3"),
        ({"add_bias_kv": True}, "grad.bias_k", (0, 0, 9), "feature 9 (head 1)"),
    ],
)  # fmt: skip
def test_a_place_is_described_in_words(
    changes: dict[str, Any], quantity: str, index: tuple[int, ...], expected: str
) -> None:
    """A place is named by the quantity's dimensions: batch, head, query, key, feature, row or column."""
    assert describe_element(case(**changes), quantity, index) == expected


def test_a_token_that_is_query_and_key_is_called_a_token() -> None:
    """In self-attention a gradient belongs to a token, which is query and key; a row of the output is still a query."""
    assert describe_element(case(SELF), "grad.query", (2, 4, 7)) == "batch 2, token 4, feature 7"
    assert describe_element(case(SELF), "output", (2, 4, 7)) == "batch 2, query 4, feature 7"


def test_every_quantity_of_every_case_has_axes_of_its_shape() -> None:
    """Every dimension of a quantity with more than one position has an axis that names each position."""
    for one in LISTS.load_suite("core"):
        if one.problem.encoder_layer is not None:
            continue
        for name, value in OPERATOR.evaluate(one, OPERATOR.inputs(one)).items():
            axes = OPERATOR.axes(one, name)
            for axis in axes:
                assert len(axis.positions) == value.shape[axis.dimension], f"{name} of {one.id}"
            described = {axis.dimension for axis in axes if not axis.belongs}
            assert described >= {d for d, extent in enumerate(value.shape) if extent > 1}, f"{name} of {one.id}"


def test_without_axes_a_place_is_an_index() -> None:
    """A tensor that is not one of the oracle's quantities has no axes, so that a place is given by its index."""
    coordinates = find_place((1, 2), ())
    assert coordinates == (Coordinate(dimension=0, axis="", position=1), Coordinate(dimension=1, axis="", position=2))
    assert describe_place(coordinates) == "index (1, 2)"
    assert unravel_index(13, (2, 3, 4)) == (1, 0, 1)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        # All elements are wrong: they share no coordinate.
        ((slice(None), slice(None), slice(None)), ""),
        ((3,), ", all in batch 3"),
        ((slice(2, None),), ", only batches 2 and beyond"),
        ((slice(1, 3),), ", only batches 1 to 2"),
        (([0, 3],), ", only batches 0 and 3"),
        ((slice(None), slice(4, None)), ", only queries 4 and beyond"),
        ((slice(None), [0, 2, 3, 5]), ""),
        ((1, 2), ", all in batch 1, all in query 2"),
        # If all features of one head are wrong, the text names the head; if one feature is wrong, the feature.
        ((slice(None), slice(None), slice(4, 8)), ", all in head 1"),
        ((slice(None), slice(None), 5), ", all in feature 5"),
        ((slice(None), slice(None), slice(2, 6)), ", only features 2 to 5"),
    ],
)
def test_coordinates_that_wrong_elements_share_are_described(where: Any, expected: str) -> None:
    """The text gives the position, the range of positions or the list of positions to which wrong elements are limited.

    It is empty if there are no such positions, for example if every element is wrong.
    """
    wrong = torch.zeros(4, 6, 8, dtype=torch.bool)
    wrong[where] = True
    assert describe_shared(find_shared_positions(wrong, TOKENS)) == expected


def test_coordinates_that_a_few_elements_share_by_chance_are_not_described() -> None:
    """By chance, four wrong elements lie in a given half of the tensor with probability 1/16, twelve hardly ever."""
    wrong = torch.zeros(2, 12, dtype=torch.bool)
    axes = (Axis(dimension=0, word="head", positions=range(2)), Axis(dimension=1, word="key", positions=range(12)))
    wrong[1, ::3] = True
    assert describe_shared(find_shared_positions(wrong, axes)) == ""
    wrong[1] = True
    assert describe_shared(find_shared_positions(wrong, axes)) == ", all in head 1"


def test_positions_with_names_are_described_by_their_names() -> None:
    """The extra key columns (of bias_k and add_zero_attn) have names in place of numbers."""
    axis = Axis(dimension=0, word="key", positions=[*range(10), "the bias_k key", "the add_zero_attn key"])
    wrong = torch.zeros(12, 30, dtype=torch.bool)
    wrong[10] = True
    assert describe_shared(find_shared_positions(wrong, (axis,))) == ", all in the bias_k key"
    wrong[11] = True
    assert describe_shared(find_shared_positions(wrong, (axis,))) == ", only the bias_k key and the add_zero_attn key"
