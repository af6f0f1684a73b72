"""Tests of diagnoses: a failure that a fault model explains gets the name of that fault model, and no wrong name."""

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from attnbench.candidate.global_state import read_settings, restore_settings
from attnbench.cases import DTYPES, Case, Dtype
from attnbench.checks.evaluation import diagnosis as module
from attnbench.checks.evaluation.diagnosis import diagnose
from attnbench.checks.observations import Agree, Exact, Match, Observation
from attnbench.interface import Implementation, Policies
from attnbench.mutants.multihead import MUTANTS
from attnbench.mutants.mutant import Mutant
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.operators.multihead.suites import CROSS, SELF, load_suite
from attnbench.oracle.expected import CaseOracle

if TYPE_CHECKING:
    from conftest import Conformance

# The diagnosis of each mutant that has a fault model; every other mutant must get none.
DIAGNOSES = {
    "scale_missing": "the scale 1/√D missing",
    "scale_of_the_model": "the scale 1/√E of the whole width in place of 1/√D",
    "exponent_negative": "logits of the wrong sign",
    "exponent_of_two": "softmax with powers of 2 in place of powers of e",
    "softmax_over_queries": "softmax over queries in place of keys",
    "softmax_over_heads": "softmax over heads in place of keys",
    "heads_merged_by_view": "heads merged by a view, without the transpose",
    "heads_split_by_view": "heads split by a view, without the transpose",
    "heads_interleaved": "features split as (head_dim, heads) in place of (heads, head_dim)",
    "heads_of_another_sequence": "(batch, heads) merged as (heads, batch)",
    "value_bias_missing": "the value bias missing",
    "output_bias_missing": "the output bias missing",
    "no_keys_no_bias": "the output bias missing",
    "training_without_output_bias": "the output bias missing",
    "separate_without_bias": "the query, key and value bias missing",
    "same_object_without_bias": "the value bias missing",
    "key_bias_missing": "the key bias missing",
    "mask_inverted": "the attn_mask inverted",
    "padding_inverted": "the key_padding_mask inverted",
    "mask_as_boolean": "the attn_mask read as a boolean mask",
    "padding_as_boolean": "the key_padding_mask read as a boolean mask",
    "mask_ignored": "the attn_mask ignored",
    "mask_ignored_beside_padding": "the attn_mask ignored",
    "single_query_sees_all": "the attn_mask ignored",
    "hint_dropped_for_weights": "the attn_mask ignored",
    # The mutant ignores the mask in backward alone; its gradients get the diagnosis.
    "mask_forgotten_in_backward": "the attn_mask ignored",
    "padding_ignored_beside_mask": "the key_padding_mask ignored",
    "hint_drops_padding": "the key_padding_mask ignored",
    "mask_lost_under_autocast": "the key_padding_mask ignored",
    # The mutant applies the first sequence's padding to all sequences, and that sequence has no padding.
    "padding_of_first_sequence": "the key_padding_mask ignored",
    "masks_intersected": "keys hidden only where both masks hide them",
    "padding_tiled_over_heads": "the key_padding_mask repeated as (heads, batch) in place of (batch, heads)",
    "mask_head_major": "the attn_mask read as (heads, batch) in place of (batch, heads)",
    "mask_of_first_head": "the attn_mask of the first head used for all heads",
    "causal_off_by_one": "the causal mask off by one (a query sees the next key)",
    "hint_bottom_right": "the causal mask aligned at the bottom right",
    "mask_padded_in_front": "masks shifted by the number of extra keys (bias_k, add_zero_attn)",
    "columns_hidden": "the bias_k key dropped",
    "hint_hides_columns": "the bias_k key dropped",
    "empty_rows_uniform": "fully masked rows with uniform weights",
    "empty_by_union_uniform": "fully masked rows left unmasked",
    "empty_rows_nan": "fully masked rows NaN",
    "aligned_keys_one_short": "the last key dropped after the softmax",
    "tail_of16_dropped": "the last key (the last tile at tile size 16) dropped after the softmax",
    "tail_of32_dropped": "the last key (the last tile at tile size 16, 32) dropped after the softmax",
    "tail_of64_dropped": "the last key (the last tile at tile size 16, 32, 64) dropped after the softmax",
    "weights_always_averaged": "attention weights averaged over heads in place of those of each head",
    "scale_twice": "the scale 1/D in place of 1/√D",
    "padding_ignored_in_decoding": "the key_padding_mask ignored",
    # With as many sequences as heads, reading the batch as heads gives the same mask.
    "mask_batch_read_as_heads": "the key_padding_mask repeated as (heads, batch) in place of (batch, heads)",
    "empty_rows_nan_with_weights": "fully masked rows NaN",
    # All that these two mutants find of the padding of their cases hides nothing.
    "padding_between_tokens_ignored": "the key_padding_mask ignored",
    "padding_of_head_only": "the key_padding_mask ignored",
    "fused_padding_lost": "the key_padding_mask ignored",
    "fused_hint_loses_padding": "the key_padding_mask ignored",
    "fused_attn_mask_lost": "the attn_mask ignored",
    "fused_mask_of_first_head": "the attn_mask of the first head used for all heads",
    # A single query at the last key sees all keys.
    "single_query_at_last_key": "the attn_mask ignored or the causal mask aligned at the bottom right",
    "dropout_not_rescaled": "the attention weights kept by dropout not divided by 1 − p",
}
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


def collect_diagnoses(conformance: "Conformance", implementation: Implementation, case: Case) -> set[str]:
    """Return the diagnoses of all failures of an implementation on a case."""
    found, before = set(), read_settings()
    for check in COMPARING:
        if check not in conformance.applicable(case):
            continue
        try:
            finding = conformance.finding(implementation, case, check)
        except RuntimeError:  # an output of a wrong shape has no loss; a worker would report the error
            continue
        finally:  # a mutant may change torch's global state
            restore_settings(before)
        reason, _, words = finding.reason.partition(" Diagnosis: looks like ")
        assert reason or not words
        found |= {words.removesuffix(".")} if words else set()
    return found


@pytest.mark.parametrize("mutant", EAGER, ids=lambda mutant: mutant.name)
def test_the_mistake_of_a_mutant_is_named_and_no_other(conformance: "Conformance", mutant: Mutant) -> None:
    """Each diagnosis names the mutant's fault model; a mutant without a fault model gets no diagnosis.

    If a gradient is equal under several fault models, all of them are named, the right one included.
    """
    case = Case.parse(mutant.shown_by, {"multihead": MultiheadProblem})
    found = collect_diagnoses(conformance, mutant.implementation, case)
    expected = DIAGNOSES.get(mutant.name)
    if expected is None:
        assert found == set()
    else:
        assert expected in found
        assert all(set(expected.split(" or ")) <= set(words.split(" or ")) for words in found)


def test_every_diagnosis_of_the_table_belongs_to_a_mutant() -> None:
    """Every mutant in ``DIAGNOSES`` exists, and more than 30 fault models are the diagnosis of a mutant."""
    assert DIAGNOSES.keys() <= {mutant.name for mutant in EAGER}
    named = {words for one in load_suite("core") for words in OPERATOR.fault_models(one, {"weights"})}
    assert len(named & set(DIAGNOSES.values())) > 30


# Observations that are built here


def build_oracle(
    dtype: Dtype = "float32", mode: Any = "inference", problem: MultiheadProblem = CROSS, **changes: Any
) -> CaseOracle:
    """Return the case oracle of a case."""
    case = Case(operator="multihead", problem=problem, dtype=dtype, mode=mode).with_problem(**changes)
    return CaseOracle(case, OPERATOR, dtype, lambda: OPERATOR.inputs(case))


def apply_fault(oracle: CaseOracle, words: str, *names: str) -> dict[str, Tensor]:
    """Return the quantities that a fault model gives, rounded once to the case's dtype."""
    fault = OPERATOR.fault_models(oracle.case, names or ("output",))[words]
    found = oracle.evaluate_fault_model(words, fault, oracle.case)
    return {name: found[name].to(oracle.dtype) for name in names or ("output",)}


def explain(oracle: CaseOracle, observation: Observation, **policies: Any) -> str:
    """Return the diagnosis of a failed observation."""
    return diagnose(observation, oracle.expected, oracle, Policies(**policies))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_fault_model_is_recognised_in_every_dtype(dtype: Dtype) -> None:
    """The quantities that a fault model gives are diagnosed as this fault model, or as several that include it."""
    oracle = build_oracle(
        dtype, mask="bool3d+pad", add_bias_kv=True, add_zero_attn=True, need_weights=True, dropout=0.25, keys=33
    )
    for words in OPERATOR.fault_models(oracle.case, ("output", "weights")):
        found = explain(oracle, Match(quantities=apply_fault(oracle, words, "output", "weights"), any_dtype=True))
        assert words in found, f"{words}: {found!r}"


@pytest.mark.parametrize("words", ["the key_padding_mask ignored", "the scale 1/√D missing", "the value bias missing"])
def test_gradients_and_weights_are_diagnosed_too(words: str) -> None:
    """Only a fault model that explains every quantity of the observation is named."""
    oracle = build_oracle(mode="train", mask="bool2d+pad", need_weights=True)
    names = tuple(oracle.expected.quantities)
    assert explain(oracle, Match(quantities=apply_fault(oracle, words, *names))) == f"Diagnosis: looks like {words}."
    mixed = apply_fault(oracle, words, *names) | {"grad.key": oracle.expected.quantities["grad.key"].float() + 1}
    assert explain(oracle, Match(quantities=mixed)) == ""


def test_two_fault_models_with_the_same_result_are_both_named() -> None:
    """With as many heads as head_dim, 1/√E and 1/D are equal."""
    oracle = build_oracle(embed_dim=16, num_heads=4)
    assert explain(oracle, Match(quantities=apply_fault(oracle, "the scale 1/D in place of 1/√D"))) == (
        "Diagnosis: looks like the scale 1/√E of the whole width in place of 1/√D or the scale 1/D in place of 1/√D."
    )


def test_a_fault_model_that_changes_nothing_on_the_case_is_never_named() -> None:
    """With a single query, for example, merging heads by a view changes nothing."""
    oracle = build_oracle(queries=1)
    right = oracle.expected.quantities["output"].float()
    for observation in (right + 1.0, right + 1e-5, right * 1.01):
        assert explain(oracle, Match(quantities={"output": observation})) == ""
    assert "heads split by a view, without the transpose" in oracle.operator.fault_models(oracle.case, ("output",))


def test_errors_that_no_fault_model_explains_get_no_diagnosis() -> None:
    """No fault model is named for noise, one wrong element, a mistake in part of the output, zeros or NaN."""
    oracle = build_oracle(mask="bool2d")
    right = oracle.expected.quantities["output"].float()
    wrong = apply_fault(oracle, "the attn_mask ignored")["output"]
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
    wrong = apply_fault(oracle, "the key_padding_mask ignored")
    assert explain(oracle, Exact(quantities=wrong)) == "Diagnosis: looks like the key_padding_mask ignored."


def test_rows_that_are_declared_nan_do_not_prevent_a_diagnosis() -> None:
    """If a policy declares NaN rows, a mistake in other rows is recognised; without the policy, nothing is."""
    oracle = build_oracle(mask="empty2d")
    wrong = apply_fault(oracle, "the scale 1/√D missing")
    wrong["output"][:, 2] = float("nan")
    assert (
        explain(oracle, Match(quantities=wrong), hidden_rows="nan") == "Diagnosis: looks like the scale 1/√D missing."
    )
    assert explain(oracle, Match(quantities=wrong)) == ""


def test_a_wrong_shape_may_be_diagnosed() -> None:
    """Attention weights of a wrong shape are compared with the attention weights of fault models of that shape."""
    oracle = build_oracle(need_weights=True)
    averaged = apply_fault(oracle, "attention weights averaged over heads in place of those of each head", "weights")
    assert (
        explain(oracle, Match(quantities=averaged))
        == "Diagnosis: looks like attention weights averaged over heads in place of those of each head."
    )


def test_two_runs_and_large_cases_are_not_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of two runs of a candidate uses no oracle; with many query-key pairs, diagnoses take too long."""
    oracle = build_oracle(mask="bool2d")
    wrong = apply_fault(oracle, "the attn_mask ignored")
    right = oracle.expected.quantities["output"].float()
    assert explain(oracle, Agree(value=wrong["output"], expected=right, quantity="output", what="x")) == ""
    assert explain(oracle, Match(quantities=wrong)) != ""
    monkeypatch.setattr(module, "PAIRS", 10)
    assert explain(oracle, Match(quantities=wrong)) == ""


@pytest.mark.parametrize("variant", MUTANTS.variants, ids=lambda variant: variant.name)
def test_a_correct_variant_matches_no_fault_model(variant: Implementation) -> None:
    """The output of a correct variant, although rounded differently, is far from every fault model."""
    oracle = build_oracle("bfloat16", problem=SELF, mask="bool2d")
    reference = OPERATOR.reference(oracle.case, oracle.inputs)
    output = variant.build(reference).eval()(**oracle.inputs.arguments())[0].detach()
    assert explain(oracle, Match(quantities={"output": output})) == ""
