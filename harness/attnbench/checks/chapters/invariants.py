"""Chapter *invariants*: metamorphic relations between the outputs of a case and of a changed case.

For example, the other sequences of the batch and additional hidden keys change no output.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.hidden_rows import split_hidden_rows
from attnbench.checks.observations import Observation
from attnbench.checks.requirement import check, get_case_transforms, is_eager
from attnbench.checks.runs import compare_bitwise, compare_runs
from attnbench.records.value_facts import phrase

# Number of padded keys that ``padding_invariance`` appends. Whatever the length, five more keys
# need at least one more tile of 4 keys.
FURTHER_KEYS = 5
# Input regimes with logits of moderate size. With the logits of the regime ``huge``, a change in
# the last bit of a logit can select another key.
_ORDINARY = ("flat", "plain", "peaked", "onehot", "identity")
# Factor by which ``query_independence`` multiplies one query. The product is exact, because 8 is a
# power of two, and far outside the range of the data.
DISTURBANCE = -8.0


def _is_ordinary(case: Case) -> bool:
    """Whether a case is eager, has sequences, queries and keys, and has logits of moderate size."""
    problem = case.problem
    sizes = (problem.sequences, problem.queries, problem.keys)
    return is_eager(case) and problem.regime in _ORDINARY and min(sizes) > 0


@check(when=lambda case: _is_ordinary(case) and case.problem.sequences > 1, case_transforms=True)
def batch_independence(candidate: Candidate) -> Iterator[Observation]:
    """A sequence gives the same outputs alone and at any position in the batch."""
    case, case_transforms, whole = candidate.case, get_case_transforms(candidate), _detach(candidate.outputs)
    sequences = range(case.problem.sequences)
    for alone in (0, len(sequences) - 1):
        outputs = candidate.run_on(*case_transforms.select(case, candidate.inputs, sequences=[alone]))
        yield from compare_runs(
            outputs,
            _select_sequences(candidate, whole, [alone]),
            phrase("sequence_alone", sequence=alone),
        )
    backwards = list(reversed(sequences))
    outputs = candidate.run_on(*case_transforms.select(case, candidate.inputs, sequences=backwards))
    yield from compare_runs(
        outputs,
        _select_sequences(candidate, whole, backwards),
        phrase("reversed_batch"),
    )


@check(when=lambda case: _is_ordinary(case) and not case.problem.is_causal, case_transforms=True)
def padding_invariance(candidate: Candidate) -> Iterator[Observation]:
    """Additional keys that key_padding_mask hides do not change the outputs."""
    case, keys = candidate.case, candidate.case.problem.keys
    outputs = candidate.run_on(*get_case_transforms(candidate).pad(case, candidate.inputs, FURTHER_KEYS))
    outputs = _select_queries(candidate, outputs, range(case.problem.queries))
    if "weights" in outputs:
        weights = outputs["weights"]
        outputs["weights"] = torch.cat([weights[..., :keys], weights[..., keys + FURTHER_KEYS :]], dim=-1)
    how = phrase("further_padded_keys", count=FURTHER_KEYS)
    parts = zip(split_hidden_rows(candidate, outputs), split_hidden_rows(candidate, candidate.outputs), strict=True)
    for (found, rows), (expected, _) in parts:
        yield from compare_runs(found, expected, how, rows=rows)


@check(
    when=lambda case: _is_ordinary(case) and case.problem.queries > 1 and not case.problem.shares_queries,
    case_transforms=True,
)
def query_independence(candidate: Candidate) -> Iterator[Observation]:
    """Changing one query changes no bit of the output of the other queries."""
    case, query = candidate.case, candidate.inputs.tensors["query"].detach()
    axis, one = get_case_transforms(candidate).length_axis(case), case.problem.queries // 2
    others = torch.tensor([i for i in range(case.problem.queries) if i != one], device=query.device)
    disturbed = query.clone()
    disturbed.select(axis, one).mul_(DISTURBANCE)
    before = candidate.run()["output"].detach().clone()
    with candidate.overwrite({"query": disturbed}):
        after = candidate.run()["output"]
    yield compare_bitwise(
        candidate, after.index_select(axis, others), before.index_select(axis, others),
        phrase("one_query_changed", query=one),
    )  # fmt: skip


@check(
    when=lambda case: _is_ordinary(case) and case.problem.keys > 1 and not case.problem.ordered, case_transforms=True
)
def key_permutation(candidate: Candidate) -> Iterator[Observation]:
    """Permuting keys, values and mask columns gives the same output, and weights in the same permutation."""
    case, keys = candidate.case, candidate.case.problem.keys
    order = [*range(1, keys, 2), *range(0, keys, 2)]
    outputs = candidate.run_on(*get_case_transforms(candidate).select(case, candidate.inputs, keys=order))
    expected = _select_columns(_detach(candidate.outputs), [*order, *range(keys, case.problem.columns)])
    if case.problem.shares_queries:
        expected = _select_queries(candidate, expected, order)
    yield from compare_runs(outputs, expected, phrase("permuted_keys"))


@check(when=lambda case: _is_ordinary(case) and case.problem.head_groups > 1, case_transforms=True)
def head_permutation(candidate: Candidate) -> Iterator[Observation]:
    """Permuting the heads in the parameters gives the same output, and weights in the same permutation."""
    case, case_transforms = candidate.case, get_case_transforms(candidate)
    order = [*range(1, case.problem.head_groups), 0]
    inputs = case_transforms.reorder_heads(case, candidate.inputs, order)
    other = Candidate(candidate.implementation, candidate.operator, case, inputs)
    expected = case_transforms.reorder_outputs(case, _detach(candidate.outputs), order)
    yield from compare_runs(other.outputs, expected, phrase("permuted_heads"))


@check(when=lambda case: _is_ordinary(case) and _splits_evenly(case), case_transforms=True)
def duplicated_keys(candidate: Candidate) -> Iterator[Observation]:
    """Duplicating every key does not change the output and halves the weights."""
    case, keys = candidate.case, candidate.case.problem.keys
    outputs = candidate.run_on(
        *get_case_transforms(candidate).select(case, candidate.inputs, keys=[*range(keys), *range(keys)])
    )
    outputs = _select_queries(candidate, outputs, range(case.problem.queries))
    expected = _detach(candidate.outputs)
    if "weights" in expected and "weights" in outputs:
        expected["weights"] = torch.cat([expected["weights"] / 2] * 2, dim=-1)
    yield from compare_runs(outputs, expected, phrase("duplicated_keys"))


def _splits_evenly(case: Case) -> bool:
    """Whether each of two copies of a key gets half of the key's weight, within the allowed error.

    This is false for cases in which one key dominates a row. The logits of such a key are large,
    and rounding may give its two copies logits that differ in the last bit. This difference changes
    the weights of the copies by more than rounding changes the weight of a single key. It is also
    false for cases with the extra keys of add_bias_kv or add_zero_attn, which are not duplicated,
    and for cases with masks by position.
    """
    problem = case.problem
    moderate = problem.regime in ("flat", "plain", "identity") and "lowest" not in problem.mask
    return moderate and problem.columns == problem.keys and not problem.ordered


def _detach(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in outputs.items()}


def _select_sequences(candidate: Candidate, outputs: dict[str, Tensor], sequences: list[int]) -> dict[str, Tensor]:
    axes = {"output": get_case_transforms(candidate).sequence_axis(candidate.case), "weights": 0}
    return {name: _select(value, axes[name], sequences) for name, value in outputs.items()}


def _select_queries(candidate: Candidate, outputs: dict[str, Tensor], queries: range | list[int]) -> dict[str, Tensor]:
    axes = {"output": get_case_transforms(candidate).length_axis(candidate.case), "weights": -2}
    return {name: _select(value.detach(), axes[name], list(queries)) for name, value in outputs.items()}


def _select_columns(outputs: dict[str, Tensor], columns: list[int]) -> dict[str, Tensor]:
    return {name: _select(value, -1, columns) if name == "weights" else value for name, value in outputs.items()}


def _select(value: Tensor, axis: int, index: list[int]) -> Tensor:
    return value.index_select(axis, torch.tensor(index, device=value.device))
