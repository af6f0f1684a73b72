"""Tests of the mistakes of learners: each is named, by one fault model, in full and in half precision."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from attnbench.analysis.diagnoses import find_diagnosis
from attnbench.cases import Case, Dtype
from attnbench.mutants.attention_core import MUTANTS as CORE_MUTANTS
from attnbench.mutants.attention_core import steps as core_steps
from attnbench.mutants.multihead import MUTANTS, steps
from attnbench.mutants.multihead.decorator import build_case_id
from attnbench.mutants.mutant import Mutant
from attnbench.plugins.registry import load_problem_types
from attnbench.words.faults import name_diagnosis

if TYPE_CHECKING:
    from conftest import Conformance

TYPES = load_problem_types()
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "float16")
# Mistakes of both operators, by the name that a mutant of multihead has.
SHARED = {
    "softmax_missing": "the softmax missing",
    "exponentials_undivided": "the exponentials exp(x) not divided by their sum",
    "stable_exponentials_undivided": "the exponentials exp(x − max) not divided by their sum",
    "scaled_after_softmax": "the scale applied after the softmax",
    "keys_and_values_swapped": "keys and values swapped",
}
NAMES: Mapping[str, str] = {
    **SHARED,
    "weights_hidden_after_softmax": "the attn_mask applied after the softmax",
    "float_mask_after_softmax": "the attn_mask applied after the softmax",
    "mask_scaled": "the attn_mask multiplied by the scale",
    "value_weight_for_keys": "the arguments key and value swapped",
    "packed_keys_first": "the projections of queries and keys exchanged",
    "packed_values_second": "the projections of keys and values exchanged",
    "output_projection_missing": "the output projection missing",
    "query_added": "the query added to the output (a residual connection)",
    "output_normalised": "a LayerNorm of the output",
    "query_added_and_normalised": "the query added to the output, and a LayerNorm of the sum",
    **{f"core_{name}": words for name, words in SHARED.items()},
    "core_weights_hidden_after_softmax": "the causal mask applied after the softmax",
    "core_bias_after_softmax": "the bias added after the softmax",
    "core_bias_scaled": "the bias multiplied by the scale",
    "core_queries_and_keys_swapped": "queries and keys swapped",
}
WITH_WEIGHTS = {
    dtype: Case.parse(build_case_id(dtype=dtype, dropout=0.25, need_weights=True, mode="train"), TYPES)
    for dtype in DTYPES
}
MISTAKES: dict[str, Mutant] = {one.name: one for one in (*MUTANTS.mutants, *CORE_MUTANTS.mutants)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_is_named_alone_in_full_and_in_half_precision(
    conformance: "Conformance", name: str, dtype: Dtype
) -> None:
    """The output of a mutant on its case, in each dtype, has the diagnosis of its mistake and no other."""
    mutant = MISTAKES[name]
    case = Case.parse(mutant.shown_by, TYPES).with_fields(dtype=dtype)
    found = find_diagnosis(conformance.finding(mutant.implementation, case, "forward_parity"))
    assert found is not None
    assert name_diagnosis(found) == NAMES[name]


def test_every_mistake_has_its_name() -> None:
    """All mutants with mistakes of learners are in the table of this test, except dropout of the logits."""
    assert {one.name for one in (*steps.mutant, *core_steps.mutant)} - NAMES.keys() == {"logits_dropped"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_of_logits_is_found_and_named_where_the_weights_tell_it(
    conformance: "Conformance", dtype: Dtype
) -> None:
    """Logits set to −∞ give the kept weights, divided by their sum; logits set to 0 are found, and not named."""
    for name, words in (
        ("dropped_rows_renormalised", "the weights kept by dropout divided by their sum, as if logits were dropped"),
        ("logits_dropped", None),
    ):
        mutant = MISTAKES[name].implementation
        finding = conformance.finding(mutant, WITH_WEIGHTS[dtype], "dropout_is_told_by_weights")
        found = find_diagnosis(finding)
        assert finding.status == "failed"
        assert (name_diagnosis(found) if found else None) == words
