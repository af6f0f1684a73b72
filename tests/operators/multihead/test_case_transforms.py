"""Tests of case transforms: the oracle's outputs of a transformed case follow from those of the original case."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.multihead import OPERATOR, MultiheadProblem, case_transforms
from attnbench.oracle.inputs import round_inputs

CROSS = MultiheadProblem(
    batch=3, queries=5, keys=7, embed_dim=12, num_heads=3, bias=True, batch_first=True, need_weights=True
)
SELF = replace(CROSS, queries=7, self_attention=True)
COLUMNS = {"add_bias_kv": True, "add_zero_attn": True}
PROBLEMS = [
    CROSS,
    replace(CROSS, batch_first=False, mask="bool3d+pad"),
    replace(CROSS, batch=None, mask="float2d+padfloat"),
    replace(CROSS, kdim=10, vdim=4, mask="float3d", **COLUMNS),
    replace(CROSS, bias=False, mask="causal", add_bias_kv=True),
    replace(SELF, mask="bool2d+pad", average_attn_weights=True),
    replace(SELF, batch_first=False, mask="float3d"),
    replace(SELF, batch=None, mask="causal", is_causal=True),
    replace(CROSS, queries=7, query_is_key=True, vdim=4, mask="padfloat"),
    replace(CROSS, key_is_value=True, kdim=10, vdim=10, mask="floatempty2d+padempty"),
]


def draw_case(problem: MultiheadProblem) -> tuple[Case, Inputs]:
    """Return a case with its inputs, in float64."""
    case = Case(operator="multihead", problem=problem, dtype="float64", mode="inference")
    return case, round_inputs(OPERATOR.inputs(case), torch.float64)


def evaluate(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """Check the shapes of the inputs, and return the oracle's outputs."""
    problem = case.problem
    lengths = {"query": problem.queries, "key": problem.keys, "value": problem.keys}
    assert {n: inputs.tensors[n].shape[case_transforms.length_axis(case)] for n in lengths} == lengths
    assert inputs.arguments()["query"].dim() == (2 if problem.batch is None else 3)
    return OPERATOR.evaluate(case, inputs)


def is_close(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are equal up to rounding in float64."""
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=0, atol=1e-12, equal_nan=True)


def move_batch_first(case: Case, output: Tensor) -> Tensor:
    """Return an output with the batch axis first."""
    return output if case.problem.batch is None or case.problem.batch_first else output.transpose(0, 1)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_selected_sequences_have_the_outputs_that_they_have_in_the_batch(problem: MultiheadProblem) -> None:
    """``select`` takes sequences in any order, and repeatedly; their outputs and attention weights stay the same."""
    if problem.batch is None:
        return
    whole, some = draw_case(problem), case_transforms.select(*draw_case(problem), sequences=[2, 0, 2, 1])
    expected, found = evaluate(*whole), evaluate(*some)
    assert some[0].problem.batch == 4
    assert is_close(
        move_batch_first(some[0], found["output"]), move_batch_first(whole[0], expected["output"])[[2, 0, 2, 1]]
    )
    assert is_close(found["weights"], expected["weights"][[2, 0, 2, 1]])


@pytest.mark.parametrize("problem", [p for p in PROBLEMS if not p.is_causal], ids=lambda problem: problem.id())
def test_keys_in_another_order_have_the_same_weights_in_that_order(problem: MultiheadProblem) -> None:
    """Reordered keys have reordered attention weights; where keys and queries are the same tokens, queries move too."""
    order = [3, 0, 6, 5, 1, 2, 4]
    columns = [*order, *range(7, problem.columns)]
    rows = order if problem.shares_queries else list(range(problem.queries))
    whole, some = draw_case(problem), case_transforms.select(*draw_case(problem), keys=order)
    expected, found = evaluate(*whole), evaluate(*some)
    assert is_close(found["weights"], expected["weights"][..., rows, :][..., columns])
    assert is_close(
        move_batch_first(some[0], found["output"]), move_batch_first(whole[0], expected["output"])[..., rows, :]
    )


def test_a_reordered_causal_mask_is_named_as_an_ordinary_mask() -> None:
    """The reordered mask has another name in the case id, so that no implementation treats it as a causal mask."""
    case, _ = case_transforms.select(*draw_case(replace(CROSS, mask="causal+pad")), keys=[1, 0, 2])
    assert case.problem.mask == "bool2d+pad"


def test_with_the_causal_hint_selected_queries_and_keys_get_a_causal_mask() -> None:
    """After the selection, the mask is the causal mask of the new lengths, and the hint ``is_causal`` stays true."""
    case, inputs = case_transforms.select(
        *draw_case(replace(CROSS, mask="causal", is_causal=True)), queries=[4, 4, 4], keys=[5, 6]
    )
    assert case.problem.is_causal
    assert inputs.tensors["attn_mask"].tolist() == [[False, True], [False, False], [False, False]]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_padded_keys_change_nothing(problem: MultiheadProblem) -> None:
    """The attention weights of padded keys are zero; other attention weights and the output are unchanged."""
    whole, more = draw_case(problem), case_transforms.pad(*draw_case(problem), 2)
    assert more[0].problem.keys == 9
    assert more[0].problem.padding_mask is not None
    expected, found = evaluate(*whole), evaluate(*more)
    rows, kept = slice(0, problem.queries), [*range(7), *range(9, problem.columns + 2)]
    assert is_close(
        move_batch_first(more[0], found["output"])[..., rows, :], move_batch_first(whole[0], expected["output"])
    )
    assert is_close(found["weights"][..., rows, kept], expected["weights"])
    assert not found["weights"][..., rows, 7:9].any()


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_a_batch_of_one_equals_the_unbatched_case(problem: MultiheadProblem) -> None:
    """Every tensor loses its batch axis; a mask per head keeps its axis of heads."""
    if problem.batch is None:
        return
    one = case_transforms.select(*draw_case(problem), sequences=[1])
    none = case_transforms.remove_batch(*one)
    assert none[0].problem.batch is None
    expected, found = evaluate(*one), evaluate(*none)
    assert is_close(found["output"], move_batch_first(one[0], expected["output"])[0])
    assert is_close(found["weights"], expected["weights"][0])


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.id())
def test_heads_in_another_order_have_their_weights_in_that_order(problem: MultiheadProblem) -> None:
    """Attention weights are reordered with the heads, unless averaged over heads; the output is unchanged."""
    case, inputs = draw_case(problem)
    expected = evaluate(case, inputs)
    found = evaluate(case, case_transforms.reorder_heads(case, inputs, [2, 0, 1]))
    weights = expected["weights"] if problem.average_attn_weights else expected["weights"][..., [2, 0, 1], :, :]
    assert is_close(found["weights"], weights)
    assert is_close(found["output"], expected["output"])


def test_one_tensor_under_several_names_stays_one() -> None:
    """If query, key and value are one tensor, they stay one tensor after a transform, and still require gradients."""
    case, inputs = draw_case(SELF)
    inputs.tensors["query"].requires_grad_()
    for _, transformed in (
        case_transforms.select(case, inputs, sequences=[0], keys=[0, 1]),
        case_transforms.pad(case, inputs, 3),
    ):
        tensors = transformed.tensors
        assert tensors["query"] is tensors["key"] is tensors["value"]
        assert tensors["query"].is_leaf
        assert tensors["query"].requires_grad


def test_transformed_inputs_share_no_memory_with_the_original() -> None:
    """Writing into selected tensors does not change the tensors that they were selected from."""
    case, inputs = draw_case(CROSS)
    before = inputs.tensors["key"].clone()
    _, transformed = case_transforms.select(case, inputs, queries=[0])
    transformed.tensors["key"].zero_()
    assert inputs.tensors["key"].equal(before)
