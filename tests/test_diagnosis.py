"""Tests of what a failure is put down to: known mistakes by their name, and nothing by a wrong one."""

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

# What each mutant that makes a known mistake is told to make; every other one must be told nothing.
DIAGNOSES = {
    "scale_missing": "the scale 1/√D missing",
    "scale_of_the_model": "the scale 1/√E of the whole width in place of 1/√D",
    "exponent_negative": "logits of the wrong sign",
    "exponent_of_two": "powers of 2 in place of e",
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
    # In backward alone, and the gradients say so.
    "mask_forgotten_in_backward": "the attn_mask ignored",
    "padding_ignored_beside_mask": "the key_padding_mask ignored",
    "hint_drops_padding": "the key_padding_mask ignored",
    "mask_lost_under_autocast": "the key_padding_mask ignored",
    # The first sequence has no padding.
    "padding_of_first_sequence": "the key_padding_mask ignored",
    "masks_intersected": "keys hidden only where both masks hide them",
    "padding_tiled_over_heads": "the key_padding_mask repeated as (heads, batch) in place of (batch, heads)",
    "mask_head_major": "the attn_mask read as (heads, batch) in place of (batch, heads)",
    "mask_of_first_head": "the attn_mask of the first head for all heads",
    "causal_off_by_one": "the causal mask off by one (a query sees the next key)",
    "hint_bottom_right": "the causal mask aligned at the bottom right",
    "mask_padded_in_front": "masks shifted by the extra columns",
    "columns_hidden": "the learned column dropped",
    "hint_hides_columns": "the learned column dropped",
    "empty_rows_uniform": "fully masked rows with uniform weights",
    "empty_by_union_uniform": "fully masked rows left unmasked",
    "empty_rows_nan": "fully masked rows NaN",
    "aligned_keys_one_short": "the last key dropped after the softmax",
    "tail_of16_dropped": "the last key (the last tile of 16) dropped after the softmax",
    "tail_of32_dropped": "the last key (the last tile of 16, 32) dropped after the softmax",
    "tail_of64_dropped": "the last key (the last tile of 16, 32, 64) dropped after the softmax",
    "weights_always_averaged": "weights averaged over heads",
    "dropout_not_rescaled": "the weights that dropout keeps not divided by 1 − p",
}
# Checks whose claims are compared with the oracle's quantities.
COMPARING = (
    "forward_parity", "weights_parity", "input_gradients", "parameter_gradients", "mask_gradients", "autocast_parity",
    "exact_uniform_mean", "exact_selection", "exact_zero_leak", "dropout_is_told_by_weights", "dropout_is_unbiased",
)  # fmt: skip
EAGER = [
    mutant
    for mutant in MUTANTS.mutants
    if Case.parse(mutant.shown_by, {"multihead": MultiheadProblem}).compiler is None
]


def told(conformance: "Conformance", implementation: Implementation, case: Case) -> set[str]:
    """What the failures of an implementation on a case are put down to."""
    found, before = set(), read_settings()
    for check in COMPARING:
        if check not in conformance.applicable(case):
            continue
        try:
            finding = conformance.finding(implementation, case, check)
        except RuntimeError:  # of a wrong shape no loss can be made; a worker would say so
            continue
        finally:  # a mutant may leave torch itself changed
            restore_settings(before)
        reason, _, words = finding.reason.partition(" Diagnosis: looks like ")
        assert reason or not words
        found |= {words.removesuffix(".")} if words else set()
    return found


@pytest.mark.parametrize("mutant", EAGER, ids=lambda mutant: mutant.name)
def test_a_known_mistake_is_named_and_no_other(conformance: "Conformance", mutant: Mutant) -> None:
    """On the case that shows a mutant, what fails is put down to its mistake, or to nothing where it is no known one.

    A gradient may depend on less than all of a mistake: several are named then, the right one among them.
    """
    case = Case.parse(mutant.shown_by, {"multihead": MultiheadProblem})
    found = told(conformance, mutant.implementation, case)
    expected = DIAGNOSES.get(mutant.name)
    if expected is None:
        assert found == set()
    else:
        assert expected in found
        assert all(expected in words.split(" or ") for words in found)


def test_every_diagnosis_of_the_table_is_of_a_mutant() -> None:
    """The table names no mutant that there is not, and most known mistakes are some mutant's."""
    assert DIAGNOSES.keys() <= {mutant.name for mutant in EAGER}
    named = {words for one in load_suite("core") for words in OPERATOR.fault_models(one, {"weights"})}
    assert len(named & set(DIAGNOSES.values())) > 30


# What a claim looks like


def known(
    dtype: Dtype = "float32", mode: Any = "inference", problem: MultiheadProblem = CROSS, **changes: Any
) -> CaseOracle:
    """What is known of a case."""
    case = Case(operator="multihead", problem=problem, dtype=dtype, mode=mode).with_problem(**changes)
    return CaseOracle(case, OPERATOR, dtype, lambda: OPERATOR.inputs(case))


def made(of: CaseOracle, words: str, *names: str) -> dict[str, Tensor]:
    """Quantities of an implementation that makes a mistake, and rounds once."""
    fault = OPERATOR.fault_models(of.case, names or ("output",))[words]
    found = of.evaluate_fault_model(words, fault, of.case)
    return {name: found[name].to(of.dtype) for name in names or ("output",)}


def said(of: CaseOracle, observation: Observation, **policies: Any) -> str:
    """What a failed claim is put down to."""
    return diagnose(observation, of.expected, of, Policies(**policies))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_known_mistake_is_recognised_in_every_dtype(dtype: Dtype) -> None:
    """On a case that has everything, each is named, alone or beside another that gives the same."""
    of = known(dtype, mask="bool3d+pad", add_bias_kv=True, add_zero_attn=True, need_weights=True, dropout=0.25, keys=33)
    for words in OPERATOR.fault_models(of.case, ("output", "weights")):
        found = said(of, Match(quantities=made(of, words, "output", "weights"), any_dtype=True))
        assert words in found, f"{words}: {found!r}"


@pytest.mark.parametrize("words", ["the key_padding_mask ignored", "the scale 1/√D missing", "the value bias missing"])
def test_gradients_and_weights_tell_as_much(words: str) -> None:
    """Whatever the claim holds is compared, each quantity with what the mistake makes of it."""
    of = known(mode="train", mask="bool2d+pad", need_weights=True)
    names = tuple(of.expected.quantities)
    assert said(of, Match(quantities=made(of, words, *names))) == f"Diagnosis: looks like {words}."
    mixed = made(of, words, *names) | {"grad.key": of.expected.quantities["grad.key"].float() + 1}
    assert said(of, Match(quantities=mixed)) == ""


def test_two_mistakes_with_one_result_are_both_named() -> None:
    """With as many heads as a head is wide, 1/√E and 1/D are one number."""
    of = known(embed_dim=16, num_heads=4)
    assert said(of, Match(quantities=made(of, "the scale 1/D in place of 1/√D"))) == (
        "Diagnosis: looks like the scale 1/√E of the whole width in place of 1/√D or the scale 1/D in place of 1/√D."
    )


def test_a_mistake_that_changes_nothing_here_is_never_named() -> None:
    """One query has no next one, so that a softmax over all queries differs and an order of rows does not."""
    of = known(queries=1)
    right = of.expected.quantities["output"].float()
    for observation in (right + 1.0, right + 1e-5, right * 1.01):
        assert said(of, Match(quantities={"output": observation})) == ""
    assert of.operator.fault_models(of.case, ("output",)).keys() >= {"heads split by a view, without the transpose"}


def test_what_is_off_by_chance_is_put_down_to_nothing() -> None:
    """Noise, a single wrong element, and half of a mistake fit none."""
    of = known(mask="bool2d")
    right, wrong = of.expected.quantities["output"].float(), made(of, "the attn_mask ignored")["output"]
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
        assert said(of, Match(quantities={"output": observation})) == ""


def test_a_gradient_that_is_cut_is_no_mask_ignored() -> None:
    """Nothing but zeros comes of many a mistake."""
    of = known(mode="train", mask="float2d")
    assert said(of, Match(quantities={"grad.attn_mask": torch.zeros(5, 7)})) == ""


def test_what_must_be_exact_is_diagnosed_within_rounding() -> None:
    """The mean of a number of keys that is no power of two is not exact, and still what it is."""
    of = known(problem=CROSS, bias=False, regime="uniform", mask="pad")
    wrong = made(of, "the key_padding_mask ignored")
    assert said(of, Exact(quantities=wrong)) == "Diagnosis: looks like the key_padding_mask ignored."


def test_rows_that_are_declared_nan_are_no_obstacle() -> None:
    """Beside them, a mistake is recognised as ever; not declared, they are the mistake."""
    of = known(mask="empty2d")
    wrong = made(of, "the scale 1/√D missing")
    wrong["output"][:, 2] = float("nan")
    assert said(of, Match(quantities=wrong), hidden_rows="nan") == "Diagnosis: looks like the scale 1/√D missing."
    assert said(of, Match(quantities=wrong)) == ""


def test_a_shape_may_give_a_mistake_away() -> None:
    """Weights of another shape are compared with those that the mistake has."""
    of = known(need_weights=True)
    averaged = made(of, "weights averaged over heads", "weights")
    assert said(of, Match(quantities=averaged)) == "Diagnosis: looks like weights averaged over heads."


def test_two_runs_and_large_cases_are_not_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared with another run has no oracle; beyond a limit, evaluations cost more than they are worth."""
    of = known(mask="bool2d")
    wrong = made(of, "the attn_mask ignored")
    right = of.expected.quantities["output"].float()
    assert said(of, Agree(value=wrong["output"], expected=right, quantity="output", what="x")) == ""
    assert said(of, Match(quantities=wrong)) != ""
    monkeypatch.setattr(module, "PAIRS", 10)
    assert said(of, Match(quantities=wrong)) == ""


@pytest.mark.parametrize("variant", MUTANTS.variants, ids=lambda variant: variant.name)
def test_what_is_right_makes_no_mistake(variant: Implementation) -> None:
    """Correct variants are far from every known mistake, though they round differently."""
    of = known("bfloat16", problem=SELF, mask="bool2d")
    reference = OPERATOR.reference(of.case, of.inputs)
    output = variant.build(reference).eval()(**of.inputs.arguments())[0].detach()
    assert said(of, Match(quantities={"output": output})) == ""
