"""Tests of attention on split heads: the formula against loops over single numbers, and what its cases are."""

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
from attnbench.operators.covering_array import generate_combinations
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


def case_of(problem: AttentionCoreProblem, **fields: str) -> Case:
    """A case in float64."""
    return Case(operator="attention_core", problem=problem, **{"dtype": "float64", "mode": "inference"} | fields)  # type: ignore[arg-type]


def drawn(problem: AttentionCoreProblem) -> tuple[Case, Inputs]:
    """A case with its inputs, in float64."""
    case = case_of(problem)
    return case, round_inputs(OPERATOR.inputs(case), torch.float64)


def seen(problem: AttentionCoreProblem, length: int, i: int, j: int) -> bool:
    """Whether query i sees key j in a sequence of so many keys: told number by number."""
    if j >= length:
        return False
    position = i if "causal_tl" in problem.mask else i + length - problem.queries
    if "causal" in problem.mask and j > position:
        return False
    return problem.window is None or abs(position - j) <= problem.window


def by_loops(problem: AttentionCoreProblem, inputs: Inputs) -> Tensor:
    """The contract, one number at a time."""
    q, k, v = (inputs.tensors[name].tolist() for name in ("query", "key", "value"))
    lengths = inputs.tensors.get("key_lengths", torch.full((problem.sequences,), problem.keys)).tolist()
    share = problem.num_heads // problem.key_heads
    output = torch.zeros(problem.sequences, problem.num_heads, problem.queries, problem.value_dim, dtype=torch.float64)
    for b, h, i in product(range(problem.sequences), range(problem.num_heads), range(problem.queries)):
        keys, values = k[b][h // share], v[b][h // share]
        logits = {}
        for j in range(problem.keys):
            if not seen(problem, lengths[b], i, j):
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
def test_the_oracle_is_what_loops_over_numbers_give(problem: AttentionCoreProblem) -> None:
    """The formula and the contract spelled out agree to the rounding of float64."""
    case, inputs = drawn(problem)
    found = OPERATOR.evaluate(case, inputs)["output"]
    assert torch.allclose(found, by_loops(problem, inputs), rtol=0, atol=1e-13)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_every_yardstick_is_the_oracle_in_float64(problem: AttentionCoreProblem) -> None:
    """Outputs and gradients of the reference, and of torch's fused function where there is no soft-cap."""
    case = case_of(problem, mode="train")
    inputs = OPERATOR.inputs(case)
    right, paths = OPERATOR.evaluate(case, inputs), list(OPERATOR.yardsticks(case, inputs))
    assert len(paths) == (1 if problem.softcap else 2)
    for path in paths:
        assert path.keys() == right.keys()
        assert all(torch.allclose(path[name], right[name], rtol=0, atol=1e-12) for name in right)


def test_torch_agrees_where_it_knows_the_same() -> None:
    """The shared heads and the corner of the causal flag are torch's."""
    case, inputs = drawn(replace(GROUPED, mask="causal_tl"))
    q, k, v = (inputs.tensors[name] for name in ("query", "key", "value"))
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert torch.allclose(OPERATOR.evaluate(case, inputs)["output"], expected, rtol=0, atol=1e-13)


def test_queries_without_any_key_attend_to_nothing() -> None:
    """More queries than keys at the bottom right: the first ones get zero, and finite gradients."""
    case = case_of(replace(PLAIN, queries=7, keys=4, mask="causal_br"), mode="train")
    inputs = OPERATOR.inputs(case)
    (rows,) = OPERATOR.hidden_rows(case, inputs).values()
    assert rows[0, 0, :, 0].tolist() == [True] * 3 + [False] * 4
    found = OPERATOR.evaluate(case, inputs)
    assert bool((found["output"].masked_select(rows) == 0).all())
    assert all(bool(value.isfinite().all()) for value in found.values())


def test_a_scale_that_is_not_given_is_none() -> None:
    """So that the call's own default is asked for; the other options are none where a case has none, too."""
    assert set(OPERATOR.inputs(case_of(PLAIN)).options.values()) == {None}
    assert OPERATOR.inputs(case_of(replace(PLAIN, scale=1.0))).options["scale"] == 1


@pytest.mark.parametrize("regime", ["plain", "uniform", "zeroleak"])
def test_the_last_of_many_sequences_is_empty(regime: str) -> None:
    """From four on, in every regime; the first one has every key, and each other some."""
    for sequences in (2, 3, 4, 6):
        ragged = replace(PLAIN, sequences=sequences, keys=8, mask="ragged", regime=regime)
        lengths = OPERATOR.inputs(case_of(ragged)).tensors["key_lengths"].tolist()
        assert lengths[0] == 8
        assert [length > 0 for length in lengths] == [True] * (sequences - 1) + [sequences < 4]


def test_lengths_are_the_same_in_32_bits() -> None:
    """Their dtype is the only thing that the flag changes, but for the seed."""
    case, inputs = drawn(replace(PLAIN, mask="ragged", int32_lengths=True))
    assert inputs.tensors["key_lengths"].dtype == torch.int32
    wide = replace(inputs, tensors=inputs.tensors | {"key_lengths": inputs.tensors["key_lengths"].long()})
    assert torch.equal(OPERATOR.evaluate(case, inputs)["output"], OPERATOR.evaluate(case, wide)["output"])


@pytest.mark.parametrize("bias", ["bias2d", "bias4d"])
def test_a_bias_that_hides_hides_one_row_and_some_keys(bias: str) -> None:
    """The query in the middle sees nothing; the others miss some keys, in every head the same."""
    case, inputs = drawn(replace(PLAIN, mask=bias, bias_hides=True))
    (rows,) = OPERATOR.hidden_rows(case, inputs).values()
    assert rows[0, 0, :, 0].tolist() == [False, False, True, False, False]
    seen = OPERATOR.visible(case, inputs)
    assert bool((seen == seen[:1, :1]).all())
    assert 7 < int((~seen[0, 0]).sum()) < 28


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_exact_cases_are_held_by_every_dtype(dtype: str) -> None:
    """Their outputs round to themselves."""
    exact = [case for case in OPERATOR.suite("core") if case.problem.regime in ("uniform", "selection", "zeroleak")]
    assert {case.problem.regime for case in exact} == {"uniform", "selection", "zeroleak"}
    for case in exact[::5]:
        found = OPERATOR.evaluate(case.with_fields(mode="inference"), drawn(case.problem)[1])["output"]
        assert torch.equal(found.to(getattr(torch, dtype)).double(), found)


def test_rounding_is_modelled_at_every_stage() -> None:
    """Noise is of the size of a roundoff, in outputs and in gradients, and none changes nothing."""
    case = case_of(EVERYTHING, mode="train")
    inputs = OPERATOR.inputs(case)
    right = OPERATOR.evaluate(case, inputs)
    for name, value in OPERATOR.evaluate(case, inputs, noise=OPERATOR.noise(0.0, 0)).items():
        assert torch.allclose(value, right[name], rtol=0, atol=1e-14)
    noisy = OPERATOR.evaluate(case, inputs, noise=OPERATOR.noise(ROUNDOFF["bfloat16"], 0))
    for name, value in noisy.items():
        off = float((value - right[name]).abs().max() / right[name].abs().max())
        assert 1e-4 < off < 0.2, name


def test_work_counts_the_pairs_that_masks_leave() -> None:
    """The closed form is the number of pairs in the oracle's mask, but for what a bias hides."""
    for problem in (replace(problem, bias_hides=False) for problem in PROBLEMS):
        case, inputs = drawn(problem)
        pairs = int(OPERATOR.visible(case, inputs).sum())
        assert OPERATOR.work(case).flop == 2 * pairs * (problem.head_dim + problem.value_dim)
        assert OPERATOR.work(case.with_fields(mode="train")).flop == 3 * OPERATOR.work(case).flop
    ragged = replace(PLAIN, mask="ragged")
    wide, narrow = (OPERATOR.work(case_of(replace(ragged, int32_lengths=flag))).bytes for flag in (False, True))
    assert wide - narrow == 2 * 4


@pytest.mark.parametrize("level", NESTED)
def test_every_listed_case_reads_back(level: str) -> None:
    """An id says everything: the case that it rebuilds has the same id, and no case is there twice."""
    cases = OPERATOR.suite(level)  # type: ignore[arg-type]
    assert [Case.parse(case.id, {"attention_core": AttentionCoreProblem}) for case in cases] == list(cases)
    assert len({case.id for case in cases}) == len(cases)


def test_levels_hold_one_another() -> None:
    """Each holds the one before, and more."""
    ids = [{case.id for case in OPERATOR.suite(level)} for level in NESTED]
    assert all(less < more for less, more in pairwise(ids))


def test_core_covers_every_pair_of_values() -> None:
    """Whatever two values of two arguments are named, some case has both."""
    rows = [row for row in map(generate_cases.case_to_row, OPERATOR.suite("core")) if _listed(row)]
    covered = {((one, row[one]), (other, row[other])) for row in rows for one, other in combinations(sorted(row), 2)}
    assert set(generate_combinations(generate_cases.FACTORS, generate_cases.is_allowed, 2)) <= covered


def _listed(row: dict[str, object]) -> bool:
    return all(value in generate_cases.FACTORS[name] for name, value in row.items())


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"kv_heads": 2}, "H must be a multiple of K, got H3 and K2"),
        ({"mask": "causal"}, "unknown mask 'causal'; available: none, causal_tl"),
        ({"mask": "alibi+causal_tl"}, "each at most once and in this order, got 'alibi\\+causal_tl'"),
        ({"mask": "causal_tl+causal_br"}, "each at most once and in this order"),
        ({"mask": "window"}, "a window needs a mask with window and a width W, got 'window' and None"),
        ({"window": 3}, "a window needs a mask with window and a width W, got 'none' and 3"),
        ({"regime": "selection"}, "regime selection needs one of the masks window, "),
        ({"regime": "selection", "mask": "window", "window": 1}, "needs a window of width 0, got W1"),
        ({"regime": "uniform"}, "a power of two of keys, or mask=ragged, got S7"),
        ({"regime": "identity"}, "unknown regime 'identity'; available: flat, plain"),
        ({"softcap": -1.0}, "softcap and scale must be finite and not negative, got -1.0 and 0.0"),
        ({"bias_hides": True}, "bias_hides needs a mask with bias2d or bias4d, got 'none'"),
        ({"int32_lengths": True}, "int32_lengths needs a mask with ragged, got 'none'"),
        ({"head_dim": 0}, "heads and their widths must be at least 1, got H3, K3, D0"),
    ],
)
def test_what_is_no_problem_is_refused(changes: dict[str, object], fault: str) -> None:
    """The error names what was needed and what came."""
    with pytest.raises(ValueError, match=fault):
        replace(PLAIN, **changes)  # type: ignore[arg-type]


# The same problem put otherwise


def answers(problem: AttentionCoreProblem) -> Iterator[tuple[Case, Inputs, Tensor]]:
    """The case, its inputs and what the formula says of it."""
    case, inputs = drawn(problem)
    yield case, inputs, OPERATOR.evaluate(case, inputs)["output"]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_further_keys_that_are_hidden_change_nothing(problem: AttentionCoreProblem) -> None:
    """They lie beyond the keys that each sequence has, and positions stay what they were."""
    for case, inputs, output in answers(problem):
        found = OPERATOR.evaluate(*case_transforms.pad(case, inputs, 5))["output"]
        assert torch.allclose(found, output, rtol=0, atol=1e-13)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_heads_change_places_with_all_that_is_theirs(problem: AttentionCoreProblem) -> None:
    """Keys, the queries that share them, biases and slopes move together."""
    order = [*range(1, problem.key_heads), 0]
    for case, inputs, output in answers(problem):
        found = OPERATOR.evaluate(case, case_transforms.reorder_heads(case, inputs, order))["output"]
        expected = case_transforms.reorder_outputs(case, {"output": output}, order)["output"]
        assert torch.allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_sequences_are_alone_what_they_are_in_the_batch(problem: AttentionCoreProblem) -> None:
    """Picked in any order, each brings its own bias and length."""
    for case, inputs, output in answers(problem):
        found = OPERATOR.evaluate(*case_transforms.select(case, inputs, sequences=[1, 0, 1]))["output"]
        assert torch.allclose(found, output[[1, 0, 1]], rtol=0, atol=1e-13)


# Known mistakes


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_known_mistakes_are_wrong_where_they_can_show(problem: AttentionCoreProblem) -> None:
    """Each changes the output, but for those of rows without any key and of masks that hide nothing here."""
    case, inputs = drawn(problem)
    right = OPERATOR.evaluate(case, inputs)["output"]
    fault_models = OPERATOR.fault_models(case, ["output"])
    differ = {
        words
        for words, fault in fault_models.items()
        if not torch.allclose(OPERATOR.evaluate(case, inputs, fault=fault)["output"], right, rtol=0, atol=1e-9)
    }
    silent = {
        "fully masked rows with uniform weights",
        "the last key dropped",
        "the last key dropped after the softmax",
    }
    alike = {words for words in fault_models if words.startswith(("the causal mask", "key_lengths one key too long"))}
    assert fault_models.keys() - differ <= silent | alike
    assert len(differ) >= 3
