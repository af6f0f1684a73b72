"""Tests of the mechanisms as operators: loop and matrix products pass every check, and every check has a mutant."""

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.catalogue import read_checks
from attnbench.interface import Implementation, Precision, Refusal
from attnbench.plugins.registry import IMPLEMENTATIONS, load, load_operator, load_problem_types
from attnbench.refusals import NeedsDtype
from attnmechanisms import mutants as mutant_sets
from attnmechanisms import operators
from attnmechanisms.mutants.formula import Dot, replace_steps
from attnmechanisms.operators import Mechanism
from attnmechanisms.operators.problem import BlockProblem, MaskedProblem, MechanismProblem

if TYPE_CHECKING:
    from conftest import Conformance

OPERATORS = tuple(operators.MECHANISMS.values())
MUTANT_SETS = {name: getattr(mutant_sets, name.upper()) for name in operators.MECHANISMS}
VARIANTS = [variant for mutants in MUTANT_SETS.values() for variant in mutants.variants]
SIZES: dict[str, Any] = {"sequences": 2, "length": 5, "width": 6}
# Checks of the chapter ``mechanisms`` that apply to every unmasked case of several sequences.
OWN = {
    "shares_parity", "shares_sum_to_one", "further_padding_changes_nothing", "order_of_tokens_is_free",
    "sequences_do_not_mix", "gradients_are_slopes",
}  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize("form", ["", "_loop"])
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_both_forms_pass_every_check(conformance: "Conformance", operator: Mechanism, form: str) -> None:
    """Matrix products pass on every case of the suite quick, and loops, which take long, on every third one.

    Only a loop in half precision is unsupported.
    """
    implementation = load(operator.name + form, IMPLEMENTATIONS)
    assert implementation.operator == operator.name
    cases = list(operator.suite("quick"))[:: 3 if form else 1]
    found = [(case.id, finding) for case in cases for finding in conformance.findings(implementation, case)]
    assert [(case, f.check, f.facts) for case, f in found if f.status not in ("passed", "unsupported")] == []
    passed = {f.check for _, f in found if f.status == "passed"}
    assert passed >= OWN | {"forward_parity", "padded_tokens_cannot_leak", "inputs_untouched", "input_gradients"}


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_matrix_products_support_every_dtype_and_loops_refuse_half_precision(
    conformance: "Conformance", operator: Mechanism
) -> None:
    """In each dtype, the error of the matrix products on rounded inputs is within the error budget of that dtype."""
    matrix, loop = (load(operator.name + form, IMPLEMENTATIONS) for form in ("", "_loop"))
    plain, *_ = operator.suite("quick")
    cases = {
        case.dtype: case
        for case in operator.suite("core")
        if case.problem == replace(plain.problem, mask="pad") and case.mode == plain.mode
    }
    assert set(cases) == {"float64", "float32", "bfloat16", "float16"}
    for dtype, case in cases.items():
        for check in ("forward_parity", "shares_parity"):
            finding = conformance.finding(matrix, case, check)
            assert finding.status == "passed", (case.id, finding)
        assert (loop.unsupported(case) is None) == (dtype in ("float32", "float64"))
        candidate = Candidate(loop, operator, case, operator.inputs(case))
        if dtype in ("float32", "float64"):
            candidate.run()
            continue
        with pytest.raises(Refusal) as refused:
            candidate.run()
        assert refused.value.args == (NeedsDtype(dtypes=("float32", "float64")),)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_correct_variant_passes_every_check(conformance: "Conformance", variant: Implementation) -> None:
    """A variant rounds differently and passes on every case of the suite quick: checks fail only for mistakes."""
    cases = load_operator(variant.operator).suite("quick")
    found = [(case.id, finding) for case in cases for finding in conformance.findings(variant, case)]
    assert [(case, f.check, f.facts) for case, f in found if f.status != "passed"] == []


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_every_mechanism_has_a_mutant_for_every_check_of_the_chapter(operator: Mechanism) -> None:
    """A check that no mutant fails proves nothing."""
    chapter = {check.name for check in read_checks().values() if check.chapter == "mechanisms"}
    mutants = MUTANT_SETS[operator.name].mutants
    if not operator.suite("quick")[0].tracks_parameters:
        chapter -= {"parameters_need_no_company"}
    assert chapter <= {mutant.caught_by for mutant in mutants}
    assert len(mutants) >= 20


def test_calling_a_parameter_like_a_function_raises(conformance: "Conformance") -> None:
    """The call raises TypeError, and the check lets the error propagate."""

    class Called(Dot):
        def score(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.query(tokens)

    (case, *_) = operators.DOT_PRODUCT_POOLING.suite("quick")
    with pytest.raises(TypeError, match="'Parameter' object is not callable"):
        conformance.finding(replace_steps(case.operator, Called), case, "forward_parity")


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_suites_are_nested_and_every_case_is_restored_from_its_id(operator: Mechanism) -> None:
    """``core`` contains ``quick``, ``full`` contains ``core``, and no case is listed twice."""
    assert load_operator(operator.name) is operator
    levels = [operator.suite(level) for level in ("quick", "core", "full")]
    for smaller, larger in pairwise(levels):
        assert set(smaller) < set(larger)
    assert len(set(levels[-1])) == len(levels[-1])
    problem_types = load_problem_types()
    assert all(Case.parse(case.id, problem_types) == case for case in levels[-1])
    assert {case.problem.mask for case in levels[0]} == set(operator.problem.masks)


def test_a_sequence_of_padding_only_has_hidden_rows() -> None:
    """All rows of that sequence are fully masked; a padded batch without such a sequence has no hidden rows."""
    operator = operators.SINGLE_HEAD
    for mask, rows in (("padempty", 5), ("pad", 0)):
        case = Case(operator=operator.name, problem=MaskedProblem(**SIZES, mask=mask), dtype="float64")
        hidden = operator.hidden_rows(case, operator.inputs(case))
        assert (hidden["output"].sum() if hidden else 0) == rows


def test_the_residual_block_equals_torchs_modules() -> None:
    """The formula is LayerNorm(x + attention(x)) with torch's LayerNorm and MultiheadAttention."""
    operator = operators.RESIDUAL_BLOCK
    case = Case(operator=operator.name, problem=BlockProblem(**SIZES, heads=3, mask="causal+pad"), dtype="float64")
    inputs = operator.inputs(case)
    attention, norm = nn.MultiheadAttention(6, 3, batch_first=True).double(), nn.LayerNorm(6).double()
    parameters = inputs.parameters
    attention.load_state_dict(
        {name.replace("out_proj_", "out_proj."): parameters[name] for name in list(parameters)[:4]}
    )
    norm.load_state_dict({"weight": parameters["norm_weight"], "bias": parameters["norm_bias"]})
    tokens, masks = inputs.tensors["tokens"], {k: v for k, v in inputs.tensors.items() if k != "tokens"}
    attended, weights = attention(tokens, tokens, tokens, **masks)
    found = operator.evaluate(case, inputs)
    torch.testing.assert_close(found["output"], norm(tokens + attended).detach())
    torch.testing.assert_close(found["weights"], weights.detach())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_rounding_of_torchs_layer_norm_is_allowed(conformance: "Conformance", dtype: Precision) -> None:
    """Torch sums the gradients of LayerNorm's parameters in their dtype: the error grows with the number of tokens."""
    problem = BlockProblem(sequences=2, length=500, width=6, heads=2, mask="pad", regime="peaked")
    case = Case(operator="residual_block", problem=problem, dtype=dtype, mode="eval")
    found = conformance.finding(load("residual_block", IMPLEMENTATIONS), case, "parameter_gradients")
    assert found.status == "passed", found


def test_every_yardstick_of_a_mechanism_equals_its_formula_in_float64() -> None:
    """If a yardstick differed from the formula, its error would come from a mistake and not from rounding."""
    operator = operators.RESIDUAL_BLOCK
    case = Case(operator=operator.name, problem=BlockProblem(**SIZES, heads=3, mask="causal+pad"), dtype="float64")
    inputs = operator.inputs(case)
    formula, torch_modules = operator.yardsticks(case, inputs)
    torch.testing.assert_close(torch_modules, formula, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 0}, "B, L and E must be at least 1, got 2, 0 and 6"),
        ({"mask": "causal"}, "unknown mask 'causal'; available: none, pad, padleft, padholes, padempty"),
        ({"regime": "vast"}, "unknown regime 'vast'; available: flat, plain, peaked, huge"),
    ],
)
def test_an_invalid_problem_is_refused(wrong: dict[str, Any], message: str) -> None:
    """The message is one line, and lists what is available."""
    with pytest.raises(ValueError, match=message):
        MechanismProblem(**SIZES | wrong)
    with pytest.raises(ValueError, match="E must be divisible by H, got E6 and H4"):
        BlockProblem(**SIZES, heads=4)
