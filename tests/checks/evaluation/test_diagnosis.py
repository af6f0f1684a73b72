"""Tests of diagnoses: a failure that a fault model explains gets the name of that fault model, and no wrong name."""

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from attnbench.analysis.deviations import find_remedy
from attnbench.analysis.diagnoses import find_diagnosis, find_fact
from attnbench.candidate.global_state import read_settings, restore_settings
from attnbench.cases import DTYPES, Case, Dtype
from attnbench.checks.evaluation import diagnosis as module
from attnbench.checks.evaluation.chance import log_chance_of_fit
from attnbench.checks.evaluation.diagnosis import diagnose, find_fitting_scales
from attnbench.checks.evaluation.places import COINCIDENCE
from attnbench.checks.observations import Agree, Average, Exact, Match, Observation
from attnbench.interface import FaultModel, Implementation, Policies
from attnbench.mutants.multihead import MUTANTS
from attnbench.mutants.mutant import Mutant
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.operators.multihead.suites import CROSS, LISTS, SELF
from attnbench.oracle.expected import CaseOracle
from attnbench.records.types import Finding
from attnbench.records.value_facts import LooksLike, NotDiagnosed, PolicyDeviation, StridesMisread

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from conftest import Conformance

# The diagnosis if more than 128 keys at the beginning are hidden: each of these tiles gives the same rows of NaN.
TILES_NAN = " or ".join(f"late_rows_nan tile={tile}" for tile in (16, 32, 64, 128))
# The diagnosis of each mutant that has a fault model, as ``name_diagnosis`` gives it; every other mutant must get none.
DIAGNOSES = {
    "scale_missing": "scale_missing",
    "scale_of_the_model": "scale_of_width",
    "exponent_negative": "logits_negated",
    "exponent_of_two": "softmax_base_two",
    "softmax_over_queries": "softmax_over_queries",
    "softmax_over_heads": "softmax_over_heads",
    "heads_merged_by_view": "heads_merged_by_view",
    "heads_split_by_view": "heads_split_by_view",
    "heads_interleaved": "features_split_interleaved",
    "heads_of_another_sequence": "heads_merged_before_batch",
    "value_bias_missing": "value_bias_missing",
    "output_bias_missing": "output_bias_missing",
    # Without keys, the output projection multiplies zeros.
    "no_keys_no_bias": "output_bias_missing or output_projection_missing",
    "training_without_output_bias": "output_bias_missing",
    "separate_without_bias": "input_bias_missing",
    "same_object_without_bias": "value_bias_missing",
    "key_bias_missing": "key_bias_missing",
    "mask_inverted": "mask_inverted mask=attn_mask",
    "padding_inverted": "mask_inverted mask=key_padding_mask",
    "mask_as_boolean": "mask_read_as_boolean mask=attn_mask",
    "padding_as_boolean": "mask_read_as_boolean mask=key_padding_mask",
    "mask_ignored": "mask_ignored mask=attn_mask",
    "shares_without_mask": "both_masks_ignored",
    "mask_ignored_beside_padding": "mask_ignored mask=attn_mask",
    "single_query_sees_all": "mask_ignored mask=attn_mask",
    "hint_dropped_for_weights": "mask_ignored mask=attn_mask",
    # The mutant ignores the mask in backward alone; its gradients get the diagnosis.
    "mask_forgotten_in_backward": "mask_ignored mask=attn_mask backward_alone",
    "padding_ignored_beside_mask": "mask_ignored mask=key_padding_mask",
    "hint_drops_padding": "mask_ignored mask=key_padding_mask",
    "mask_lost_under_autocast": "mask_ignored mask=key_padding_mask",
    # The mutant applies the first sequence's padding to all sequences, and that sequence has no padding.
    "padding_of_first_sequence": "mask_ignored mask=key_padding_mask",
    "masks_intersected": "masks_intersected",
    "padding_tiled_over_heads": "padding_heads_first",
    "mask_head_major": "mask_heads_first",
    "mask_of_first_head": "mask_of_first_head",
    "causal_off_by_one": "causal_mask_sees_next",
    "hint_bottom_right": "causal_mask_at_bottom_right",
    "mask_padded_in_front": "masks_shifted",
    "columns_hidden": "bias_key_dropped",
    "hint_hides_columns": "bias_key_dropped",
    "empty_by_union_uniform": "masked_rows_unmasked",
    "aligned_keys_one_short": "last_key_dropped_after_softmax",
    "tail_of16_dropped": "last_key_tile_dropped_after_softmax tiles=16",
    "tail_of32_dropped": "last_key_tile_dropped_after_softmax tiles=16, 32",
    "tail_of64_dropped": "last_key_tile_dropped_after_softmax tiles=16, 32, 64",
    "weights_always_averaged": "weights_averaged",
    "mask_scaled": "mask_scaled mask=attn_mask",
    "mask_scaled_in_decoding": "mask_scaled mask=attn_mask",
    "scale_twice": "scale_of_reciprocal",
    "padding_ignored_in_decoding": "mask_ignored mask=key_padding_mask",
    # With as many sequences as heads, reading the batch as heads gives the same mask.
    "mask_batch_read_as_heads": "padding_heads_first",
    # All that these two mutants find of the padding of their cases hides nothing.
    "padding_between_tokens_ignored": "mask_ignored mask=key_padding_mask",
    "padding_of_head_only": "mask_ignored mask=key_padding_mask",
    "padding_of_the_first_sequence_asked": "mask_ignored mask=key_padding_mask",
    "autocast_fast_path_loses_padding": "mask_ignored mask=key_padding_mask",
    "fused_padding_lost": "mask_ignored mask=key_padding_mask",
    "fused_hint_loses_padding": "mask_ignored mask=key_padding_mask",
    "fused_attn_mask_lost": "mask_ignored mask=attn_mask",
    "fused_mask_of_first_head": "mask_of_first_head",
    # A single query at the last key sees all keys.
    "hidden_first128_nan": TILES_NAN,
    "padded_first64_nan": TILES_NAN,
    "single_query_at_last_key": "mask_ignored mask=attn_mask or causal_mask_at_bottom_right",
    "dropout_not_rescaled": "dropout_undivided",
    "mask_multiplied": "logits_multiplied_by_mask",
    # The bias key is the only key after the first 128.
    "key_blocks_counted_by_queries": "bias_key_tile_dropped tiles=16, 32, 64, 128",
    "empty_batch_weights_of_heads": "weights_not_averaged",
    "softmax_missing": "softmax_missing",
    "exponentials_undivided": "softmax_undivided exponentials=exp(x)",
    "stable_exponentials_undivided": "softmax_undivided exponentials=exp(x − max)",
    "scaled_after_softmax": "scaled_after_softmax",
    "weights_hidden_after_softmax": "mask_after_softmax mask=attn_mask",
    "float_mask_after_softmax": "mask_after_softmax mask=attn_mask",
    "value_weight_for_keys": "key_and_value_swapped",
    "keys_and_values_swapped": "keys_and_values_swapped",
    "packed_keys_first": "projections_exchanged first=queries second=keys",
    "packed_values_second": "projections_exchanged first=keys second=values",
    "output_projection_missing": "output_projection_missing",
    "query_added": "query_added",
    "output_normalised": "output_normalised",
    "query_added_and_normalised": "query_added_and_normalised",
}
# The mutants of which the same call with contiguous tensors is right, and the checks that say so.
STRIDES = {
    "rows_assumed": {"strided_inputs", "expanded_inputs"},
    "expanded_misread": {"expanded_inputs"},
    "offset_ignored": {"strided_inputs", "packed_inputs"},
    "mask_rows_assumed": {"strided_inputs", "expanded_inputs"},
    "expanded_padding_misread": {"expanded_inputs"},
    "cotangent_strides_ignored": {"cotangent_layout_is_free"},
}
LAYOUTS = ("strided_inputs", "expanded_inputs", "packed_inputs", "cotangent_layout_is_free")
# Number of elements that give no diagnosis in a coarse dtype.
FEW = 2
# One of this many mutants that get no diagnosis is tried in the tests that are not extended.
SAMPLED = 8
# Checks whose observations are compared with the oracle's quantities.
COMPARING = (
    "forward_parity", "weights_parity", "input_gradients", "parameter_gradients", "mask_gradients", "autocast_parity",
    "exact_uniform_mean", "exact_selection", "exact_zero_leak", "dropout_is_told_by_weights", "dropout_is_unbiased",
)  # fmt: skip
EAGER = [
    mutant
    for mutant in MUTANTS.mutants
    if Case.parse(mutant.shown_by, {"multihead": MultiheadProblem}).compiler is None
]


# For each mutant with a deviation that a policy declares: the policies that its failures name.
DEVIATIONS = {
    "empty_rows_uniform": {"hidden_rows"},
    "empty_rows_nan": {"hidden_rows", "hidden_row_gradients"},
    "empty_rows_nan_with_weights": {"hidden_rows"},
    "empty_rows_poison_gradients": {"hidden_row_gradients"},
    "half_fill_overflows": {"hidden_rows"},
    "weights_detached": {"detached_weights"},
    # The mean of weights over keys is constant, so it passes on no gradient.
    "weights_averaged_over_keys": {"detached_weights"},
    "weights_before_dropout": {"returned_weights"},
    "dropout_of_sum": {"returned_weights"},
    "declared_before_dropout": {"returned_weights"},
    "detached": {"detached_weights"},
    "mean_by_fill": {"hidden_rows"},
    "declared_mean": {"hidden_rows"},
    "declared_constant_mean": {"hidden_row_gradients"},
    "nan_gradients": {"hidden_row_gradients"},
    "declared_nan_gradients": {"hidden_row_gradients"},
    # Both ignore the padding of a sequence of one token, so its row is fully masked and is the mean of one value.
    "dummy_mask_one_key": {"hidden_rows"},
    "token_of_sequence_of_one": {"hidden_rows"},
    # Rows so peaked give the wrong weights gradients that are as good as none within the allowed error.
    "axis_of_heads_found_by_size": {"detached_weights"},
}


def extend_unnamed(named: Collection[str]) -> list[Any]:
    """Return all mutants as values of a parameter; of those that get no name, all but a sample are extended."""
    unnamed = [mutant.name for mutant in EAGER if mutant.name not in named]
    extended = set(unnamed) - set(unnamed[::SAMPLED])
    return [
        pytest.param(mutant, id=mutant.name, marks=[pytest.mark.extended] if mutant.name in extended else [])
        for mutant in EAGER
    ]


def name_model(model: FaultModel) -> str:
    """Return the identity of a fault model as one text."""
    return " ".join((model.name, *(f"{name}={value}" for name, value in model.values.items())))


def name_diagnosis(found: LooksLike | StridesMisread | NotDiagnosed | None) -> str:
    """Return the identities of the fault models of a diagnosis, or what else was found."""
    if not isinstance(found, LooksLike):
        return type(found).__name__ if found else ""
    return " or ".join(
        " ".join(
            (
                fault.model.key,
                *(f"{name}={value}" for name, value in fault.model.values.items()),
                *((fault.acts,) if fault.acts != "pass" else ()),
            )
        )
        for fault in found.faults
    )


def collect_findings(
    conformance: "Conformance", implementation: Implementation, case: Case, checks: Sequence[str] = COMPARING
) -> list[Finding]:
    """Return the findings of an implementation on a case."""
    found, before = [], read_settings()
    for check in checks:
        if check not in conformance.applicable(case):
            continue
        try:
            found.append(conformance.finding(implementation, case, check))
        except RuntimeError:  # an output of a wrong shape has no loss; a worker would report the error
            continue
        finally:  # a mutant may change torch's global state
            restore_settings(before)
    return found


@pytest.mark.parametrize("mutant", extend_unnamed({*DIAGNOSES, *DEVIATIONS}))
def test_the_mistake_of_a_mutant_is_named_and_no_other(conformance: "Conformance", mutant: Mutant) -> None:
    """Each diagnosis names the mutant's fault model; a mutant without a fault model gets no diagnosis.

    If a gradient is equal under several fault models, all of them are named, the right one included.
    """
    case = Case.parse(mutant.shown_by, {"multihead": MultiheadProblem})
    findings = collect_findings(conformance, mutant.implementation, case)
    deviations = filter(None, (find_fact(finding, PolicyDeviation) for finding in findings))
    assert {name for one in deviations for name in find_remedy(one)} == DEVIATIONS.get(mutant.name, set())
    found = {name_diagnosis(find_diagnosis(finding)) for finding in findings} - {""}
    expected = DIAGNOSES.get(mutant.name)
    if expected is None:
        assert found == set()
    else:
        assert expected in found
        assert all(set(expected.split(" or ")) <= set(words.split(" or ")) for words in found)


@pytest.mark.parametrize("mutant", extend_unnamed(STRIDES))
def test_strides_are_named_where_contiguous_tensors_are_right_and_nowhere_else(
    conformance: "Conformance", mutant: Mutant
) -> None:
    """A mutant that misreads strides is said to be right with contiguous tensors; no other mutant is."""
    case = Case.parse(mutant.shown_by, {"multihead": MultiheadProblem})
    findings = collect_findings(conformance, mutant.implementation, case, LAYOUTS)
    named = {finding.check: find_diagnosis(finding) for finding in findings if find_diagnosis(finding)}
    assert set(named.values()) <= {StridesMisread()}
    assert named.keys() == STRIDES.get(mutant.name, set())


def test_every_diagnosis_of_the_table_belongs_to_a_mutant() -> None:
    """Every mutant in ``DIAGNOSES`` exists, and more than 30 fault models are the diagnosis of a mutant."""
    assert DIAGNOSES.keys() <= {mutant.name for mutant in EAGER}
    named = {name_model(model) for one in LISTS.load_suite("core") for model in OPERATOR.fault_models(one, {"weights"})}
    assert len(named & set(DIAGNOSES.values())) > 30


# Observations that are built here


def build_oracle(
    dtype: Dtype = "float32", mode: Any = "inference", problem: MultiheadProblem = CROSS, **changes: Any
) -> CaseOracle:
    """Return the case oracle of a case."""
    case = Case(operator="multihead", problem=problem, dtype=dtype, mode=mode).with_problem(**changes)
    return CaseOracle(case, OPERATOR, dtype, lambda: OPERATOR.inputs(case))


def list_models(oracle: CaseOracle, names: Sequence[str] = ("output",)) -> dict[str, FaultModel]:
    """Return the fault models of a case, by their identities."""
    return {name_model(model): model for model in OPERATOR.fault_models(oracle.case, names)}


def apply_fault(oracle: CaseOracle, words: str, *names: str) -> dict[str, Tensor]:
    """Return the quantities that a fault model gives, rounded once to the case's dtype."""
    found = oracle.evaluate_fault_model(list_models(oracle, names or ("output",))[words], oracle.case)
    return {name: found[name].to(oracle.dtype) for name in names or ("output",)}


def count_changed(oracle: CaseOracle, wrong: dict[str, Tensor]) -> int:
    """Return how many elements of a fault model's quantities are not within the allowance."""
    expected = oracle.expected
    return sum(
        value.numel() if value.shape != expected.quantities[name].shape
        else int((~((value - expected.quantities[name]).abs() <= expected.allowances[name].allowed)).sum())
        for name, value in wrong.items()
    )  # fmt: skip


def explain(oracle: CaseOracle, observation: Observation, **policies: Any) -> str:
    """Return the diagnosis of a failed observation, as ``name_diagnosis`` gives it."""
    return name_diagnosis(diagnose(observation, oracle.expected, oracle, Policies(**policies)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_fault_model_is_recognised_in_every_dtype(dtype: Dtype) -> None:
    """The quantities that a fault model gives are diagnosed as this fault model, or as several that include it.

    A fault model that changes at most a few elements is left out: chance may give them.
    """
    oracle = build_oracle(
        dtype, mask="bool3d+pad", add_bias_kv=True, add_zero_attn=True, need_weights=True, dropout=0.25, queries=3,
        keys=33,
    )  # fmt: skip
    for words in list_models(oracle, ("output", "weights")):
        wrong = apply_fault(oracle, words, "output", "weights")
        if count_changed(oracle, wrong) <= FEW:
            continue
        found = explain(oracle, Match(quantities=wrong, any_dtype=True))
        assert words in found, f"{words}: {found!r}"


@pytest.mark.parametrize("words", ["mask_ignored mask=key_padding_mask", "scale_missing", "value_bias_missing"])
def test_gradients_and_weights_are_diagnosed_too(words: str) -> None:
    """Only a fault model that explains every quantity of the observation is named."""
    oracle = build_oracle(mode="train", mask="bool2d+pad", need_weights=True)
    names = tuple(oracle.expected.quantities)
    assert explain(oracle, Match(quantities=apply_fault(oracle, words, *names))) == words
    mixed = apply_fault(oracle, words, *names) | {"grad.key": oracle.expected.quantities["grad.key"].float() + 1}
    assert explain(oracle, Match(quantities=mixed)) == ""


BY_VIEW = "heads_merged_by_view"
STRIDES_OF_GRADIENT = "gradient_strides_ignored"


def test_gradients_beside_right_outputs_are_diagnosed_as_wrong_in_the_backward_pass() -> None:
    """Gradients of a fault model that would change the outputs too get its name for the backward pass alone."""
    oracle = build_oracle(mode="train", mask="bool2d", need_weights=True)
    words = "mask_ignored mask=attn_mask"
    outputs = {name: oracle.expected.quantities[name].float() for name in ("output", "weights")}
    gradients = apply_fault(oracle, words, "grad.query", "grad.key")
    assert explain(oracle, Match(quantities=gradients, outputs=outputs)) == f"{words} backward_alone"
    wrong = apply_fault(oracle, words, "output", "weights")
    assert explain(oracle, Match(quantities=gradients, outputs=wrong)) == words
    other = apply_fault(oracle, "scale_missing", "output", "weights")
    assert explain(oracle, Match(quantities=gradients, outputs=other)) == ""


def test_strides_of_the_heads_gradient_are_not_taken_for_merged_heads() -> None:
    """A backward pass that ignores strides gives the gradients of heads merged by a view, but right outputs."""
    oracle = build_oracle(mode="train")
    names = ("grad.query", "grad.value")
    gradients = apply_fault(oracle, STRIDES_OF_GRADIENT, *names)
    assert all(gradients[name].allclose(apply_fault(oracle, BY_VIEW, *names)[name]) for name in names)
    right, wrong = {"output": oracle.expected.quantities["output"].float()}, apply_fault(oracle, BY_VIEW, "output")
    named = STRIDES_OF_GRADIENT
    assert explain(oracle, Match(quantities=gradients, outputs=right)) == named
    assert explain(oracle, Match(quantities=gradients, outputs=wrong)) == BY_VIEW


@pytest.mark.parametrize("tile", [16, 48])
def test_rows_without_values_are_not_taken_for_a_dropped_key(tile: int) -> None:
    """Rows of zeros fit many faults: where a hidden first tile makes them, the last key is not named alone."""
    oracle = build_oracle(
        problem=CROSS, bias=False, batch=3, queries=4, keys=65, embed_dim=21, regime="selection", mask="bool3d"
    )
    visible = OPERATOR.visible(oracle.case, oracle.exact_inputs)  # (batch, heads, queries, keys)
    late = ~visible[..., :tile].any(dim=-1) & visible.any(dim=-1)
    assert bool(late.any())
    right = oracle.expected.quantities["output"].float()
    wrong = right.masked_fill(late.transpose(1, 2).repeat_interleave(7, dim=-1), 0.0)
    assert not wrong.equal(right)
    assert "last_key" not in explain(oracle, Exact(quantities={"output": wrong}))


def test_a_few_elements_of_coarse_numbers_are_no_evidence() -> None:
    """A fault model that moves one element to about where it was observed is not named; one that moves many is."""
    expected = torch.zeros(4, 6, dtype=torch.float64)
    one, all_of_them = expected.clone(), expected + 1.0
    one[0, 0] = 1.0
    assert log_chance_of_fit(one, one, expected, allowed=0.1, blank=None) > math.log(COINCIDENCE)
    assert log_chance_of_fit(all_of_them, all_of_them, expected, allowed=0.1, blank=None) < math.log(COINCIDENCE)
    assert log_chance_of_fit(all_of_them, all_of_them, expected, allowed=0.1, blank=all_of_them) == 0.0


def test_a_mean_that_is_nan_gets_no_diagnosis() -> None:
    """The mean of draws of which some are NaN is at no distance from a fault model, and nothing is named."""
    oracle = build_oracle(mode="train", mask="bool2d", dropout=0.5)
    mean = oracle.expected.quantities["output"].clone()
    std = torch.ones_like(mean)
    mean[0, 0], std[0, 0] = math.nan, math.nan
    assert explain(oracle, Average(quantity="output", mean=mean, std=std, draws=20)) == ""


def test_only_a_right_contiguous_run_is_told() -> None:
    """A run that differs from a contiguous one gets a diagnosis if the contiguous one equals the oracle's."""
    oracle = build_oracle(mask="bool2d")
    right = oracle.expected.quantities["output"].float()
    wrong = apply_fault(oracle, "mask_ignored mask=attn_mask")["output"]
    changed: dict[str, Tensor] = {}
    for value, expected, contiguous, words in (
        (wrong, right, changed, "StridesMisread"),
        (right, wrong, changed, ""),
        (wrong, right, None, ""),
        (wrong, right, {"query": torch.zeros_like(oracle.inputs.tensors["query"])}, ""),
    ):
        observation = Agree(value=value, expected=expected, quantity="output", how="x", contiguous=contiguous)
        assert explain(oracle, observation) == words


def test_two_fault_models_with_the_same_result_are_both_named() -> None:
    """With as many heads as head_dim, 1/√E and 1/D are equal."""
    oracle = build_oracle(embed_dim=16, num_heads=4)
    assert explain(oracle, Match(quantities=apply_fault(oracle, "scale_of_reciprocal"))) == (
        "scale_of_width or scale_of_reciprocal"
    )


OF_KEYS, OF_QUERIES = (
    "scale_of_keys",
    ("scale_of_queries"),
)


def test_a_scale_from_the_number_of_keys_or_queries_is_named() -> None:
    """Where the numbers of queries and keys are equal, both are named; where it is head_dim, neither is a fault."""
    for words, problem in ((OF_KEYS, CROSS), (OF_QUERIES, CROSS)):
        oracle = build_oracle(problem=problem)
        assert explain(oracle, Match(quantities=apply_fault(oracle, words))) == words
    oracle = build_oracle(queries=9, keys=9)
    both = f"{OF_KEYS} or {OF_QUERIES}"
    assert explain(oracle, Match(quantities=apply_fault(oracle, OF_KEYS))) == both
    oracle = build_oracle(embed_dim=14, num_heads=2)  # head_dim 7, as many as keys
    assert oracle.case.problem.keys == 7
    assert not {OF_KEYS}.intersection(list_models(oracle))


def test_a_fault_model_that_changes_nothing_on_the_case_is_never_named() -> None:
    """With a single query, for example, merging heads by a view changes nothing."""
    oracle = build_oracle(queries=1)
    right = oracle.expected.quantities["output"].float()
    for observation in (right + 1.0, right + 1e-5, right * 1.01):
        assert explain(oracle, Match(quantities={"output": observation})) == ""
    assert "heads_split_by_view" in list_models(oracle)


def test_errors_that_no_fault_model_explains_get_no_diagnosis() -> None:
    """No fault model is named for noise, one wrong element, a mistake in part of the output, zeros or NaN."""
    oracle = build_oracle(mask="bool2d")
    right = oracle.expected.quantities["output"].float()
    wrong = apply_fault(oracle, "mask_ignored mask=attn_mask")["output"]
    noise = torch.randn(right.shape, generator=torch.Generator().manual_seed(0))
    one = right.clone()
    one[0, 0, 0] += 1
    half = wrong.clone()
    half[0] = right[0]
    for observation in (
        right + 0.1 * noise,
        one,
        half,
        (right + wrong) / 2,
        torch.zeros_like(right),
        right * float("nan"),
    ):
        assert explain(oracle, Match(quantities={"output": observation})) == ""


def test_a_zero_gradient_is_not_diagnosed_as_an_ignored_mask() -> None:
    """A zero gradient of the mask gets no diagnosis, because many mistakes give zeros."""
    oracle = build_oracle(mode="train", mask="float2d")
    assert explain(oracle, Match(quantities={"grad.attn_mask": torch.zeros(5, 7)})) == ""


def test_exact_quantities_are_diagnosed_within_rounding() -> None:
    """In a case with exact values, ignored padding is recognised, although its means over 7 keys are rounded."""
    oracle = build_oracle(problem=CROSS, bias=False, regime="uniform", mask="pad")
    wrong = apply_fault(oracle, "mask_ignored mask=key_padding_mask")
    # All logits are 0, so that a product with the mask changes none.
    assert explain(oracle, Exact(quantities=wrong)) == (
        "mask_ignored mask=key_padding_mask or logits_multiplied_by_mask"
    )


def test_rows_that_are_declared_nan_do_not_prevent_a_diagnosis() -> None:
    """If a policy declares NaN rows, a mistake in other rows is recognised; without the policy, nothing is."""
    oracle = build_oracle(mask="empty2d")
    wrong = apply_fault(oracle, "scale_missing")
    wrong["output"][:, 2] = float("nan")
    assert explain(oracle, Match(quantities=wrong), hidden_rows="nan") == "scale_missing"
    assert explain(oracle, Match(quantities=wrong)) == ""


def test_a_wrong_shape_may_be_diagnosed() -> None:
    """Attention weights of a wrong shape are compared with the attention weights of fault models of that shape."""
    oracle = build_oracle(need_weights=True)
    averaged = apply_fault(oracle, "weights_averaged", "weights")
    assert explain(oracle, Match(quantities=averaged)) == "weights_averaged"


def test_two_runs_and_large_cases_are_not_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of two runs of a candidate uses no oracle; with many query-key pairs, diagnoses take too long."""
    oracle = build_oracle(mask="bool2d")
    wrong = apply_fault(oracle, "mask_ignored mask=attn_mask")
    right = oracle.expected.quantities["output"].float()
    assert explain(oracle, Agree(value=wrong["output"], expected=right, quantity="output", how="x")) == ""
    assert explain(oracle, Match(quantities=wrong)) != ""
    monkeypatch.setattr(module, "PAIRS", 10)
    assert explain(oracle, Match(quantities=wrong)) == "NotDiagnosed"


@pytest.mark.parametrize("variant", MUTANTS.variants, ids=lambda variant: variant.name)
def test_a_correct_variant_matches_no_fault_model(variant: Implementation) -> None:
    """The output of a correct variant, although rounded differently, is far from every fault model."""
    oracle = build_oracle("bfloat16", problem=SELF, mask="bool2d")
    reference = OPERATOR.reference(oracle.case, oracle.inputs)
    output = variant.build(reference).eval()(**oracle.inputs.arguments())[0].detach()
    assert explain(oracle, Match(quantities={"output": output})) == ""


def test_a_measured_scale_fits_the_fault_models_with_this_scale() -> None:
    """With three heads, 1/√E is 0.577 of 1/√D: a scale off by -0.445 fits it, one off by -0.2 and NaN fit nothing."""
    oracle = build_oracle(embed_dim=24, num_heads=3)
    assert {one.key for one in find_fitting_scales(-0.445, "output", oracle)} == {"scale_of_width"}
    assert find_fitting_scales(-0.2, "output", oracle) == find_fitting_scales(math.nan, "output", oracle) == ()
