"""Chapter *invariants*: what must not matter, does not: neighbours, order, and keys that nobody sees."""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Observation
from attnbench.checks.requirement import case_transforms_of, check, eager
from attnbench.checks.runs import agree, same

# Keys added behind the last one: from one tile of 4 into the next, whatever the length.
FURTHER_KEYS = 5
# Regimes whose outputs are ordinary numbers; ``huge`` logits turn a last bit into another winner.
_ORDINARY = ("flat", "plain", "peaked", "onehot", "identity")
# What a query is multiplied by that must not disturb the others: exact, and far outside the data.
DISTURBANCE = -8.0


def _ordinary(case: Case) -> bool:
    problem = case.problem
    sizes = (problem.sequences, problem.queries, problem.keys)
    return eager(case) and problem.regime in _ORDINARY and min(sizes) > 0


@check(when=lambda case: _ordinary(case) and case.problem.sequences > 1, case_transforms=True)
def batch_independence(candidate: Candidate) -> Iterator[Observation]:
    """A sequence gives the same output alone, and wherever it stands in the batch."""
    case, case_transforms, whole = candidate.case, case_transforms_of(candidate), _detached(candidate.outputs)
    sequences = range(case.problem.sequences)
    for alone in (0, len(sequences) - 1):
        outputs = candidate.on(*case_transforms.selected(case, candidate.inputs, sequences=[alone]))
        yield from agree(
            outputs, _of_sequences(candidate, whole, [alone]), f"of sequence {alone} alone, against that in the batch"
        )
    backwards = list(reversed(sequences))
    outputs = candidate.on(*case_transforms.selected(case, candidate.inputs, sequences=backwards))
    yield from agree(
        outputs, _of_sequences(candidate, whole, backwards), "of the batch in reverse order, against that in order"
    )


@check(when=lambda case: _ordinary(case) and not case.problem.is_causal, case_transforms=True)
def padding_invariance(candidate: Candidate) -> Iterator[Observation]:
    """Further keys that key_padding_mask hides change nothing."""
    case, keys = candidate.case, candidate.case.problem.keys
    outputs = candidate.on(*case_transforms_of(candidate).padded(case, candidate.inputs, FURTHER_KEYS))
    outputs = _of_queries(candidate, outputs, range(case.problem.queries))
    if "weights" in outputs:
        weights = outputs["weights"]
        outputs["weights"] = torch.cat([weights[..., :keys], weights[..., keys + FURTHER_KEYS :]], dim=-1)
    yield from agree(
        outputs, candidate.outputs, f"beside {FURTHER_KEYS} further padded keys, against that without them"
    )


@check(
    when=lambda case: _ordinary(case) and case.problem.queries > 1 and not case.problem.shares_queries,
    case_transforms=True,
)
def query_independence(candidate: Candidate) -> Iterator[Observation]:
    """Another value of one query changes no bit of the other queries' output."""
    case, query = candidate.case, candidate.inputs.tensors["query"].detach()
    axis, one = case_transforms_of(candidate).length_axis(case), case.problem.queries // 2
    others = torch.tensor([i for i in range(case.problem.queries) if i != one], device=query.device)
    disturbed = query.clone()
    disturbed.select(axis, one).mul_(DISTURBANCE)
    before = candidate.run()["output"].detach().clone()
    with candidate.overwritten({"query": disturbed}):
        after = candidate.run()["output"]
    yield same(
        candidate, after.index_select(axis, others), before.index_select(axis, others),
        f"of the other queries after query {one} changed",
    )  # fmt: skip


@check(when=lambda case: _ordinary(case) and case.problem.keys > 1 and not case.problem.ordered, case_transforms=True)
def key_permutation(candidate: Candidate) -> Iterator[Observation]:
    """Keys, values and mask columns in another order give the same output, and weights in that order."""
    case, keys = candidate.case, candidate.case.problem.keys
    order = [*range(1, keys, 2), *range(0, keys, 2)]
    outputs = candidate.on(*case_transforms_of(candidate).selected(case, candidate.inputs, keys=order))
    expected = _of_columns(_detached(candidate.outputs), [*order, *range(keys, case.problem.columns)])
    if case.problem.shares_queries:
        expected = _of_queries(candidate, expected, order)
    yield from agree(outputs, expected, "of keys in another order, against that in order")


@check(when=lambda case: _ordinary(case) and case.problem.head_groups > 1, case_transforms=True)
def head_permutation(candidate: Candidate) -> Iterator[Observation]:
    """Heads in another order in the parameters give the same output, and weights in that order."""
    case, case_transforms = candidate.case, case_transforms_of(candidate)
    order = [*range(1, case.problem.head_groups), 0]
    inputs = case_transforms.reordered_heads(case, candidate.inputs, order)
    other = Candidate(candidate.implementation, candidate.operator, case, inputs)
    expected = case_transforms.outputs_of_heads(case, _detached(candidate.outputs), order)
    yield from agree(other.outputs, expected, "of heads in another order, against that in order")


@check(when=lambda case: _ordinary(case) and _splits_evenly(case), case_transforms=True)
def duplicated_keys(candidate: Candidate) -> Iterator[Observation]:
    """Every key given twice leaves the output as it is and halves the weights."""
    case, keys = candidate.case, candidate.case.problem.keys
    outputs = candidate.on(
        *case_transforms_of(candidate).selected(case, candidate.inputs, keys=[*range(keys), *range(keys)])
    )
    outputs = _of_queries(candidate, outputs, range(case.problem.queries))
    expected = _detached(candidate.outputs)
    if "weights" in expected and "weights" in outputs:
        expected["weights"] = torch.cat([expected["weights"] / 2] * 2, dim=-1)
    yield from agree(outputs, expected, "of every key twice, against that of every key once")


def _splits_evenly(case: Case) -> bool:
    """Whether two copies of a key share its weight to within the rounding that the case without copies shows.

    Copies of a key that has a row nearly for itself are a tie; in it the last bit of a large logit makes a difference
    of weights that the row without copies does not know.
    """
    problem = case.problem
    moderate = problem.regime in ("flat", "plain", "identity") and "lowest" not in problem.mask
    return moderate and problem.columns == problem.keys and not problem.ordered


def _detached(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in outputs.items()}


def _of_sequences(candidate: Candidate, outputs: dict[str, Tensor], sequences: list[int]) -> dict[str, Tensor]:
    axes = {"output": case_transforms_of(candidate).sequence_axis(candidate.case), "weights": 0}
    return {name: _picked(value, axes[name], sequences) for name, value in outputs.items()}


def _of_queries(candidate: Candidate, outputs: dict[str, Tensor], queries: range | list[int]) -> dict[str, Tensor]:
    axes = {"output": case_transforms_of(candidate).length_axis(candidate.case), "weights": -2}
    return {name: _picked(value.detach(), axes[name], list(queries)) for name, value in outputs.items()}


def _of_columns(outputs: dict[str, Tensor], columns: list[int]) -> dict[str, Tensor]:
    return {name: _picked(value, -1, columns) if name == "weights" else value for name, value in outputs.items()}


def _picked(value: Tensor, axis: int, index: list[int]) -> Tensor:
    return value.index_select(axis, torch.tensor(index, device=value.device))
