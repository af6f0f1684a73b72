"""Chapter *invariants*: what must not matter, does not: neighbours, order, and keys that nobody sees."""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.checks.claims import Claim
from attnbench.checks.requirement import check, eager, siblings_of
from attnbench.checks.runs import agree, same
from attnbench.subject import Subject

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


@check(when=lambda case: _ordinary(case) and case.problem.sequences > 1, siblings=True)
def batch_independence(subject: Subject) -> Iterator[Claim]:
    """A sequence gives the same output alone, and wherever it stands in the batch."""
    case, siblings, whole = subject.case, siblings_of(subject), _detached(subject.outputs)
    sequences = range(case.problem.sequences)
    for alone in (0, len(sequences) - 1):
        outputs = subject.on(*siblings.selected(case, subject.inputs, sequences=[alone]))
        yield from agree(
            outputs, _of_sequences(subject, whole, [alone]), f"of sequence {alone} alone, against that in the batch"
        )
    backwards = list(reversed(sequences))
    outputs = subject.on(*siblings.selected(case, subject.inputs, sequences=backwards))
    yield from agree(
        outputs, _of_sequences(subject, whole, backwards), "of the batch in reverse order, against that in order"
    )


@check(when=lambda case: _ordinary(case) and not case.problem.is_causal, siblings=True)
def padding_invariance(subject: Subject) -> Iterator[Claim]:
    """Further keys that key_padding_mask hides change nothing."""
    case, keys = subject.case, subject.case.problem.keys
    outputs = subject.on(*siblings_of(subject).padded(case, subject.inputs, FURTHER_KEYS))
    outputs = _of_queries(subject, outputs, range(case.problem.queries))
    if "weights" in outputs:
        weights = outputs["weights"]
        outputs["weights"] = torch.cat([weights[..., :keys], weights[..., keys + FURTHER_KEYS :]], dim=-1)
    yield from agree(outputs, subject.outputs, f"beside {FURTHER_KEYS} further padded keys, against that without them")


@check(
    when=lambda case: _ordinary(case) and case.problem.queries > 1 and not case.problem.shares_queries, siblings=True
)
def query_independence(subject: Subject) -> Iterator[Claim]:
    """Another value of one query changes no bit of the other queries' output."""
    case, query = subject.case, subject.inputs.tensors["query"].detach()
    axis, one = siblings_of(subject).length_axis(case), case.problem.queries // 2
    others = torch.tensor([i for i in range(case.problem.queries) if i != one], device=query.device)
    disturbed = query.clone()
    disturbed.select(axis, one).mul_(DISTURBANCE)
    before = subject.run()["output"].detach().clone()
    with subject.overwritten({"query": disturbed}):
        after = subject.run()["output"]
    yield same(
        subject, after.index_select(axis, others), before.index_select(axis, others),
        f"of the other queries after query {one} changed",
    )  # fmt: skip


@check(when=lambda case: _ordinary(case) and case.problem.keys > 1 and not case.problem.ordered, siblings=True)
def key_permutation(subject: Subject) -> Iterator[Claim]:
    """Keys, values and mask columns in another order give the same output, and weights in that order."""
    case, keys = subject.case, subject.case.problem.keys
    order = [*range(1, keys, 2), *range(0, keys, 2)]
    outputs = subject.on(*siblings_of(subject).selected(case, subject.inputs, keys=order))
    expected = _of_columns(_detached(subject.outputs), [*order, *range(keys, case.problem.columns)])
    if case.problem.shares_queries:
        expected = _of_queries(subject, expected, order)
    yield from agree(outputs, expected, "of keys in another order, against that in order")


@check(when=lambda case: _ordinary(case) and case.problem.head_groups > 1, siblings=True)
def head_permutation(subject: Subject) -> Iterator[Claim]:
    """Heads in another order in the parameters give the same output, and weights in that order."""
    case, siblings = subject.case, siblings_of(subject)
    order = [*range(1, case.problem.head_groups), 0]
    inputs = siblings.reordered_heads(case, subject.inputs, order)
    other = Subject(subject.implementation, subject.operator, case, inputs)
    expected = siblings.outputs_of_heads(case, _detached(subject.outputs), order)
    yield from agree(other.outputs, expected, "of heads in another order, against that in order")


@check(when=lambda case: _ordinary(case) and _splits_evenly(case), siblings=True)
def duplicated_keys(subject: Subject) -> Iterator[Claim]:
    """Every key given twice leaves the output as it is and halves the weights."""
    case, keys = subject.case, subject.case.problem.keys
    outputs = subject.on(*siblings_of(subject).selected(case, subject.inputs, keys=[*range(keys), *range(keys)]))
    outputs = _of_queries(subject, outputs, range(case.problem.queries))
    expected = _detached(subject.outputs)
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


def _of_sequences(subject: Subject, outputs: dict[str, Tensor], sequences: list[int]) -> dict[str, Tensor]:
    axes = {"output": siblings_of(subject).sequence_axis(subject.case), "weights": 0}
    return {name: _picked(value, axes[name], sequences) for name, value in outputs.items()}


def _of_queries(subject: Subject, outputs: dict[str, Tensor], queries: range | list[int]) -> dict[str, Tensor]:
    axes = {"output": siblings_of(subject).length_axis(subject.case), "weights": -2}
    return {name: _picked(value.detach(), axes[name], list(queries)) for name, value in outputs.items()}


def _of_columns(outputs: dict[str, Tensor], columns: list[int]) -> dict[str, Tensor]:
    return {name: _picked(value, -1, columns) if name == "weights" else value for name, value in outputs.items()}


def _picked(value: Tensor, axis: int, index: list[int]) -> Tensor:
    return value.index_select(axis, torch.tensor(index, device=value.device))
