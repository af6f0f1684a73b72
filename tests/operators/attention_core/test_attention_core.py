"""Tests of the operator attention_core: its formula against loops over single numbers, and its cases."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench.cases import NESTED, Case
from attnbench.interface import Inputs
from attnbench.operators.attention_core import OPERATOR, AttentionCoreProblem, case_transforms, generate_cases
from attnbench.operators.attention_core.suites import GROUPED, PLAIN
from attnbench.operators.covering_array import build_covering_array, generate_combinations
from attnbench.oracle.error_budget import ROUNDOFF
from attnbench.oracle.inputs import round_inputs

EVERYTHING = replace(GROUPED, head_dim_v=5, mask="causal_br+window+bias4d+ragged", window=2, softcap=1.5, scale=0.2)
PROBLEMS = [
    PLAIN,
    replace(PLAIN, mask="causal_tl"),
    replace(PLAIN, mask="causal_br"),
    replace(PLAIN, queries=7, keys=4, mask="causal_br"),
    replace(PLAIN, mask="window", window=1),
    replace(PLAIN, mask="causal_tl+window+alibi", window=3),
    replace(PLAIN, mask="alibi+ragged"),
    replace(GROUPED, kv_heads=1, mask="bias2d"),
    replace(GROUPED, queries=1, keys=9, mask="causal_br+alibi+ragged"),
    replace(PLAIN, sequences=6, mask="causal_br+window+ragged", window=2),
    replace(PLAIN, sequences=3, mask="causal_br+ragged", int32_lengths=True),
    replace(PLAIN, mask="bias2d", bias_hides=True),
    replace(GROUPED, mask="causal_br+bias4d", bias_hides=True, softcap=3.0),
    EVERYTHING,
]


def build_case(problem: AttentionCoreProblem, **fields: str) -> Case:
    """Return a case, by default in float64."""
    return Case(operator="attention_core", problem=problem, **{"dtype": "float64", "mode": "inference"} | fields)  # type: ignore[arg-type]


def draw_case(problem: AttentionCoreProblem) -> tuple[Case, Inputs]:
    """Return a case with its inputs, in float64."""
    case = build_case(problem)
    return case, round_inputs(OPERATOR.inputs(case), torch.float64)


def is_visible(problem: AttentionCoreProblem, length: int, i: int, j: int) -> bool:
    """Whether key j is visible to query i in a sequence of ``length`` keys."""
    if j >= length:
        return False
    position = i if "causal_tl" in problem.mask else i + length - problem.queries
    if "causal" in problem.mask and j > position:
        return False
    return problem.window is None or abs(position - j) <= problem.window


def attend_by_loops(problem: AttentionCoreProblem, inputs: Inputs) -> Tensor:
    """Compute the output of the contract one number at a time."""
    q, k, v = (inputs.tensors[name].tolist() for name in ("query", "key", "value"))
    lengths = inputs.tensors.get("key_lengths", torch.full((problem.sequences,), problem.keys)).tolist()
    share = problem.num_heads // problem.key_heads
    output = torch.zeros(problem.sequences, problem.num_heads, problem.queries, problem.value_dim, dtype=torch.float64)
    for b, h, i in product(range(problem.sequences), range(problem.num_heads), range(problem.queries)):
        keys, values = k[b][h // share], v[b][h // share]
        logits = {}
        for j in range(problem.keys):
            if not is_visible(problem, lengths[b], i, j):
                continue
            x = sum(a * c for a, c in zip(q[b][h][i], keys[j], strict=True))
            x *= problem.scale or 1 / math.sqrt(problem.head_dim)
            if problem.softcap:
                x = problem.softcap * math.tanh(x / problem.softcap)
            if problem.bias:
                bias = inputs.tensors["bias"]
                x += float(bias[i, j] if problem.bias == "bias2d" else bias[b, h, i, j])
            if "alibi" in problem.mask:
                position = i if "causal_tl" in problem.mask else i + lengths[b] - problem.queries
                x -= 2 ** (-8 * (h + 1) / problem.num_heads) * abs(position - j)
            if x > -math.inf:
                logits[j] = x
        total = sum(math.exp(x) for x in logits.values())
        for j, x in logits.items():
            output[b, h, i] += math.exp(x) / total * torch.tensor(values[j], dtype=torch.float64)
    return output


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_the_oracle_equals_loops_over_numbers(problem: AttentionCoreProblem) -> None:
    """The formula and the loops agree to rounding in float64."""
    case, inputs = draw_case(problem)
    found = OPERATOR.evaluate(case, inputs)["output"]
    assert torch.allclose(found, attend_by_loops(problem, inputs), rtol=0, atol=1e-13)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_every_yardstick_equals_the_oracle_in_float64(problem: AttentionCoreProblem) -> None:
    """The yardsticks are the reference and, without a soft-cap, torch's fused function; gradients are compared too."""
    case = build_case(problem, mode="train")
    inputs = OPERATOR.inputs(case)
    right, paths = OPERATOR.evaluate(case, inputs), list(OPERATOR.yardsticks(case, inputs))
    assert len(paths) == (1 if problem.softcap else 2)
    for path in paths:
        assert path.keys() == right.keys()
        assert all(torch.allclose(path[name], right[name], rtol=0, atol=1e-12) for name in right)


def test_the_oracle_equals_scaled_dot_product_attention() -> None:
    """The oracle and torch agree on heads that share keys, and on the alignment of the mask of ``is_causal``."""
    case, inputs = draw_case(replace(GROUPED, mask="causal_tl"))
    q, k, v = (inputs.tensors[name] for name in ("query", "key", "value"))
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert torch.allclose(OPERATOR.evaluate(case, inputs)["output"], expected, rtol=0, atol=1e-13)


def test_fully_masked_queries_get_zero_output() -> None:
    """With more queries than keys and a bottom-right causal mask, the first queries get zeros and finite gradients."""
    case = build_case(replace(PLAIN, queries=7, keys=4, mask="causal_br"), mode="train")
    inputs = OPERATOR.inputs(case)
    (rows,) = OPERATOR.hidden_rows(case, inputs).values()
    assert rows[0, 0, :, 0].tolist() == [True] * 3 + [False] * 4
    found = OPERATOR.evaluate(case, inputs)
    assert bool((found["output"].masked_select(rows) == 0).all())
    assert all(bool(value.isfinite().all()) for value in found.values())


def test_options_that_a_case_does_not_set_are_none() -> None:
    """None makes the call use its default value, for the scale and for every other option."""
    assert set(OPERATOR.inputs(build_case(PLAIN)).options.values()) == {None}
    assert OPERATOR.inputs(build_case(replace(PLAIN, scale=1.0))).options["scale"] == 1


@pytest.mark.parametrize("regime", ["plain", "uniform", "zeroleak"])
def test_the_last_of_four_or_more_sequences_is_empty(regime: str) -> None:
    """In every regime, the first sequence has every key, and the sequences between have at least one."""
    for sequences in (2, 3, 4, 6):
        ragged = replace(PLAIN, sequences=sequences, keys=8, mask="ragged", regime=regime)
        lengths = OPERATOR.inputs(build_case(ragged)).tensors["key_lengths"].tolist()
        assert lengths[0] == 8
        assert [length > 0 for length in lengths] == [True] * (sequences - 1) + [sequences < 4]


def test_lengths_in_32_bits_give_the_same_output() -> None:
    """The flag ``int32_lengths`` changes the dtype of the lengths, but no element of the output."""
    case, inputs = draw_case(replace(PLAIN, mask="ragged", int32_lengths=True))
    assert inputs.tensors["key_lengths"].dtype == torch.int32
    wide = replace(inputs, tensors=inputs.tensors | {"key_lengths": inputs.tensors["key_lengths"].long()})
    assert torch.equal(OPERATOR.evaluate(case, inputs)["output"], OPERATOR.evaluate(case, wide)["output"])


@pytest.mark.parametrize("bias", ["bias2d", "bias4d"])
def test_a_hiding_bias_hides_one_row_and_some_other_keys(bias: str) -> None:
    """The middle row is fully masked; in other rows some keys are hidden, and these are equal in all heads."""
    case, inputs = draw_case(replace(PLAIN, mask=bias, bias_hides=True))
    (rows,) = OPERATOR.hidden_rows(case, inputs).values()
    assert rows[0, 0, :, 0].tolist() == [False, False, True, False, False]
    visible = OPERATOR.visible(case, inputs)
    assert bool((visible == visible[:1, :1]).all())
    assert 7 < int((~visible[0, 0]).sum()) < 28


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_outputs_of_exact_cases_are_exact_in_every_dtype(dtype: str) -> None:
    """Rounding the oracle's outputs to the dtype changes no element."""
    exact = [case for case in OPERATOR.suite("core") if case.problem.regime in ("uniform", "selection", "zeroleak")]
    assert {case.problem.regime for case in exact} == {"uniform", "selection", "zeroleak"}
    for case in exact[::5]:
        found = OPERATOR.evaluate(case.with_fields(mode="inference"), draw_case(case.problem)[1])["output"]
        assert torch.equal(found.to(getattr(torch, dtype)).double(), found)


def test_rounding_is_modelled_at_every_stage() -> None:
    """Noise of one roundoff changes outputs and gradients by about a roundoff; noise of size 0 changes nothing."""
    case = build_case(EVERYTHING, mode="train")
    inputs = OPERATOR.inputs(case)
    right = OPERATOR.evaluate(case, inputs)
    for name, value in OPERATOR.evaluate(case, inputs, noise=OPERATOR.noise(0.0, 0)).items():
        assert torch.allclose(value, right[name], rtol=0, atol=1e-14)
    noisy = OPERATOR.evaluate(case, inputs, noise=OPERATOR.noise(ROUNDOFF["bfloat16"], 0))
    for name, value in noisy.items():
        off = float((value - right[name]).abs().max() / right[name].abs().max())
        assert 1e-4 < off < 0.2, name


def test_work_counts_the_visible_pairs() -> None:
    """If no bias hides keys, the closed form of ``work`` counts the query-key pairs that are visible to the oracle."""
    for problem in (replace(problem, bias_hides=False) for problem in PROBLEMS):
        case, inputs = draw_case(problem)
        pairs = int(OPERATOR.visible(case, inputs).sum())
        assert OPERATOR.work(case).flop == 2 * pairs * (problem.head_dim + problem.value_dim)
        assert OPERATOR.work(case.with_fields(mode="train")).flop == 3 * OPERATOR.work(case).flop
    ragged = replace(PLAIN, mask="ragged")
    wide, narrow = (OPERATOR.work(build_case(replace(ragged, int32_lengths=flag))).bytes for flag in (False, True))
    assert wide - narrow == 2 * 4


@pytest.mark.parametrize("level", NESTED)
def test_every_listed_case_is_restored_from_its_id(level: str) -> None:
    """Parsing an id gives the same case, and no case is listed twice."""
    cases = OPERATOR.suite(level)  # type: ignore[arg-type]
    assert [Case.parse(case.id, {"attention_core": AttentionCoreProblem}) for case in cases] == list(cases)
    assert len({case.id for case in cases}) == len(cases)


def test_levels_are_nested() -> None:
    """Each level has all cases of the level before it, and more."""
    ids = [{case.id for case in OPERATOR.suite(level)} for level in NESTED]
    assert all(less < more for less, more in pairwise(ids))


def test_core_covers_every_pair_of_values() -> None:
    """For each allowed pair of values of two different arguments, some case has both values."""
    rows = [row for row in map(generate_cases.case_to_row, OPERATOR.suite("core")) if _listed(row)]
    covered = {((one, row[one]), (other, row[other])) for row in rows for one, other in combinations(sorted(row), 2)}
    assert set(generate_combinations(generate_cases.FACTORS, generate_cases.is_allowed, 2)) <= covered


def test_a_row_is_restored_from_its_case() -> None:
    """The case of a row has the values of the row, so the covering array counts what is called."""
    for row in build_covering_array(generate_cases.FACTORS, generate_cases.is_allowed, 2):
        assert generate_cases.case_to_row(generate_cases.row_to_case(row)) == row


def _listed(row: dict[str, object]) -> bool:
    return all(value in generate_cases.FACTORS[name] for name, value in row.items())


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"kv_heads": 2}, "num_heads must be a multiple of kv_heads, got H3 and K2"),
        ({"mask": "causal"}, "unknown mask 'causal'; available: none, causal_tl"),
        ({"mask": "alibi+causal_tl"}, "or bias4d or alibi, ragged; got 'alibi\\+causal_tl'"),
        ({"mask": "causal_tl+causal_br"}, "each at most once and in this order"),
        ({"mask": "window"}, "and a size W needs this mask part; got mask 'window' and W=None"),
        ({"window": 3}, "and a size W needs this mask part; got mask 'none' and W=3"),
        ({"regime": "selection"}, "regime selection needs one of the masks window, "),
        ({"regime": "selection", "mask": "window", "window": 1}, "needs a window of width 0, got W1"),
        ({"regime": "uniform"}, "a number of keys that is a power of two, or mask=ragged; got S7"),
        ({"regime": "identity"}, "unknown regime 'identity'; available: flat, plain"),
        ({"softcap": -1.0}, "softcap and scale must be finite and not negative, got -1.0 and 0.0"),
        ({"bias_hides": True}, "bias_hides needs a mask whose name contains 'bias2d' or 'bias4d', got 'none'"),
        ({"int32_lengths": True}, "int32_lengths needs a mask whose name contains 'ragged', got 'none'"),
        ({"head_dim": 0}, "num_heads, kv_heads, head_dim and head_dim_v must be at least 1, got H3, K3, D0"),
    ],
)
def test_an_invalid_problem_is_refused(changes: dict[str, object], fault: str) -> None:
    """The error names what was needed and what came."""
    with pytest.raises(ValueError, match=fault):
        replace(PLAIN, **changes)  # type: ignore[arg-type]


# Case transforms


def evaluate(problem: AttentionCoreProblem) -> Iterator[tuple[Case, Inputs, Tensor]]:
    """Yield the case, its inputs and the oracle's output."""
    case, inputs = draw_case(problem)
    yield case, inputs, OPERATOR.evaluate(case, inputs)["output"]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_additional_hidden_keys_change_nothing(problem: AttentionCoreProblem) -> None:
    """Added keys beyond the length of each sequence do not change the output; the positions of tokens stay."""
    for case, inputs, output in evaluate(problem):
        found = OPERATOR.evaluate(*case_transforms.pad(case, inputs, 5))["output"]
        assert torch.allclose(found, output, rtol=0, atol=1e-13)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_reordered_heads_give_reordered_outputs(problem: AttentionCoreProblem) -> None:
    """A key head is reordered together with the query heads that use it, and with their biases and ALiBi slopes."""
    order = [*range(1, problem.key_heads), 0]
    for case, inputs, output in evaluate(problem):
        found = OPERATOR.evaluate(case, case_transforms.reorder_heads(case, inputs, order))["output"]
        expected = case_transforms.reorder_outputs(case, {"output": output}, order)["output"]
        assert torch.allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_selected_sequences_have_the_outputs_that_they_have_in_the_batch(problem: AttentionCoreProblem) -> None:
    """Sequences may be selected in any order, and repeatedly; each sequence keeps its bias and its length."""
    for case, inputs, output in evaluate(problem):
        found = OPERATOR.evaluate(*case_transforms.select(case, inputs, sequences=[1, 0, 1]))["output"]
        assert torch.allclose(found, output[[1, 0, 1]], rtol=0, atol=1e-13)


# Fault models


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_fault_models_change_the_output(problem: AttentionCoreProblem) -> None:
    """A fault model may keep the output only if its rows, keys or masks have no effect on the case's output."""
    case, inputs = draw_case(problem)
    right = OPERATOR.evaluate(case, inputs)["output"]
    fault_models = OPERATOR.fault_models(case, ["output"])
    differ = {
        model.name
        for model in fault_models
        if not torch.allclose(OPERATOR.evaluate(case, inputs, fault=model.fault)["output"], right, rtol=0, atol=1e-9)
    }
    silent = {"masked_rows_uniform", "last_key_dropped", "last_key_dropped_after_softmax"}
    names = {model.name for model in fault_models}
    alike = {name for name in names if name.startswith(("causal_mask", "key_lengths_too_long"))}
    assert names - differ <= silent | alike
    assert len(differ) >= 3


def test_a_scale_that_is_right_is_no_fault_model() -> None:
    """The scale 1/√S is a fault model, but not where the keys are as many as head_dim."""
    few, same = (
        OPERATOR.fault_models(build_case(one), ["output"]) for one in (PLAIN, replace(PLAIN, keys=PLAIN.head_dim))
    )
    assert "scale_of_keys" in {model.name for model in few}
    assert "scale_of_keys" not in {model.name for model in same}
