"""Tests of the lists of cases: which combinations of values they cover, and that a generator's output equals them."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest
import torch

from attnbench.cases import DTYPES, Case, Level
from attnbench.operators.covering_array import build_covering_array, generate_combinations
from attnbench.operators.multihead import OPERATOR
from attnbench.operators.multihead.generate_cases import FACTORS, case_to_row, is_allowed, row_to_case
from attnbench.operators.multihead.problem import ATTENTION_MASKS

SMALL = {"a": (1, 2, 3), "b": (1, 2), "c": (1, 2), "d": (1, 2, 3)}


def list_uncovered(level: Level, strength: int) -> list[Any]:
    """Return the allowed combinations of the values of ``strength`` arguments that occur in no case of a level."""
    seen = set()
    for case in OPERATOR.suite(level):
        seen |= set(combinations(sorted(case_to_row(case).items(), key=lambda item: item[0]), strength))
    return [found for found in generate_combinations(FACTORS, is_allowed, strength) if found not in seen]


@pytest.mark.parametrize(("level", "strength"), [("core", 2), ("full", 3)])
def test_a_level_covers_every_combination_of_values(level: Level, strength: int) -> None:
    """Every possible pair of argument values is in core, and every possible triple in full."""
    assert list_uncovered(level, strength) == []


def test_a_missing_combination_would_be_found() -> None:
    """The previous test can fail: quick leaves out most pairs."""
    assert len(list_uncovered("quick", 2)) > 1000


@pytest.mark.parametrize(("level", "strength"), [("core", 2)])
def test_the_pairs_are_counted_in_the_tensors_of_a_call(level: Level, strength: int) -> None:
    """Every allowed pair of lengths with shared tensors, masks or the hint occurs in what a case passes to a call."""
    seen = set()
    for case in OPERATOR.suite(level):
        # The large cases repeat values that others have.
        if case.problem.encoder_layer is None and case.problem.queries * case.problem.keys < 10_000:
            seen |= set(combinations(sorted(describe_call(case).items()), strength))
    names = describe_call(OPERATOR.suite(level)[0]).keys()
    factors = {name: values for name, values in FACTORS.items() if name in names}
    wanted = set(generate_combinations(factors, is_allowed, strength))
    assert len(wanted) > 300
    assert wanted - seen == set()


def describe_call(case: Case) -> dict[str, Any]:
    """Return what the arguments of a call show of a case: the values of some factors, by the factor's name."""
    given = OPERATOR.inputs(case)
    query, key, value = (given.tensors[name] for name in ("query", "key", "value"))
    axis = 0 if case.problem.batch is None or not case.problem.batch_first else 1
    aliases = {
        "self_attention": query is key and key is value,
        "key_is_value": key is value,
        "query_is_key": query is key,
    }
    masks = case.problem.mask.split("+")
    return {
        "dtype": str(query.dtype).removeprefix("torch.") if not case.autocast else case.dtype,
        "sharing": next((name for name, holds in aliases.items() if holds), ""),
        "lengths": (query.shape[axis], key.shape[axis]),
        "attention": "hint" if given.options["is_causal"] else masks[0] if "attn_mask" in given.tensors else "",
        "padding": masks[-1] if "key_padding_mask" in given.tensors else "",
    }


def test_a_row_is_restored_from_its_case() -> None:
    """Converting any row of the covering arrays to a case and back gives the same row, with its lengths."""
    rows = build_covering_array(FACTORS, is_allowed, 2)
    assert len(rows) > 100
    for row in rows:
        assert case_to_row(row_to_case(row)) == row


@pytest.mark.parametrize("sharing", ["self_attention", "query_is_key"])
def test_one_tensor_as_query_and_key_has_one_length(sharing: str) -> None:
    """Where query and key are one tensor, only equal lengths are allowed: one, several, and more than 64 tokens."""
    lengths = [one for one in FACTORS["lengths"] if is_allowed({"sharing": sharing, "lengths": one})]
    assert all(queries == keys for queries, keys in lengths)
    assert len(lengths) >= 4
    assert {1} < {keys for _, keys in lengths}
    assert max(keys for _, keys in lengths) > 64


def test_a_single_query_with_the_hint_is_called() -> None:
    """Core has the causal hint with one query and several keys, with and without weights and padding."""
    cases = [one for one in OPERATOR.suite("core") if one.problem.is_causal and one.problem.queries == 1]
    decoding = [one for one in cases if one.problem.keys > 1]
    assert {one.problem.padding_mask is None for one in decoding} == {True, False}
    assert {one.problem.need_weights for one in decoding} == {True, False}


def test_core_has_the_sizes_at_which_kernels_change() -> None:
    """Core has dropout in training beyond 128 keys, masks beyond 1024, and wide heads with gradients in every dtype."""
    cases = OPERATOR.suite("core")
    dropped = [one for one in cases if one.training and one.problem.dropout and one.problem.keys > 128]
    assert {one.problem.need_weights for one in dropped} == {True, False}
    assert all(one.problem.num_heads > 1 for one in dropped)
    masked = [one for one in cases if one.problem.keys > 1024]
    assert {one.problem.attention_mask is not None for one in masked} == {True, False}
    assert {one.problem.padding_mask is not None for one in masked} == {True, False}
    wide = [one for one in cases if one.problem.head_dim >= 64 and one.training and one.tracks_inputs]
    assert {one.dtype for one in wide} == set(DTYPES)
    assert {one.problem.head_dim for one in wide} >= {64, 72, 80, 104, 128, 256}
    assert any(one.problem.sequences > 65_535 and one.differentiates for one in cases)


@pytest.mark.filterwarnings("ignore:.*mismatched key_padding_mask and attn_mask.*")
def test_core_takes_the_fused_path_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every boolean attn_mask, alone and with a boolean padding mask, a case of core takes the fused path.

    The reference takes other paths for float masks; the same calls with float masks are in core for implementations
    that do not.
    """
    calls, fused = [], torch._native_multi_head_attention

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return fused(*arguments, **options)

    monkeypatch.setattr(torch, "_native_multi_head_attention", call)
    taken, tried = set(), set()
    for case in OPERATOR.suite("core"):
        problem = case.problem
        if (
            case.mode not in ("inference", "inference_mode")
            or not problem.self_attention
            or problem.encoder_layer is not None
        ):
            continue
        inputs = OPERATOR.inputs(case)
        calls.clear()
        with torch.no_grad():
            OPERATOR.reference(case, inputs)(**inputs.arguments())
        masks = (problem.attention_mask, problem.padding_mask)
        taken |= {masks} if calls else set()
        if problem.num_heads % 2 == 0 and problem.batch_first and problem.bias and problem.columns == problem.keys:
            tried |= {masks}
    kinds = [kind for kind in ATTENTION_MASKS if "float" not in kind and "lowest" not in kind]
    assert {(kind, padding) for kind in kinds for padding in (None, "pad")} <= taken
    assert {kind for kind, padding in tried if padding == "padfloat"} >= {"bool3d", "causal", "lowestrows2d"}
    assert {kind for kind, padding in tried if padding is None} >= set(ATTENTION_MASKS)


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_a_covering_array_has_exactly_the_allowed_combinations(strength: int) -> None:
    """No allowed combination is missing, and no forbidden combination occurs."""

    def are_different(row: Mapping[str, Any]) -> bool:
        return not ("a" in row and row.get("a") == row.get("d"))

    rows = build_covering_array(SMALL, are_different, strength)
    assert all(row.keys() == SMALL.keys() and are_different(row) for row in rows)
    seen = {found for row in rows for found in combinations(sorted(row.items()), strength)}
    assert seen == set(generate_combinations(SMALL, are_different, strength))


def test_combinations_that_given_rows_cover_get_no_new_rows() -> None:
    """If the given rows cover all combinations, no row is added."""
    rows = build_covering_array(SMALL, lambda _: True, 2)
    assert len(rows) <= 12
    assert build_covering_array(SMALL, lambda _: True, 2, given=rows) == []
