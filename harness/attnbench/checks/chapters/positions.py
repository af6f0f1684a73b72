"""Chapter *positions*: masks by position (causal alignment, windows, lengths) and biases by distance."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.chapters.masks import MODERATE, POISON
from attnbench.checks.observations import Agree, Equal, Holds, Observation
from attnbench.checks.requirement import check, get_case_transforms, has_tokens, is_eager
from attnbench.checks.runs import compare_bitwise, compare_runs
from attnbench.interface import Inputs
from attnbench.operators.attention_core.positions import compute_distances, get_lengths
from attnbench.operators.attention_core.problem import ALIGNED
from attnbench.oracle.inputs import select_positions
from attnbench.records.value_facts import phrase

_REGIMES = ("flat", "plain", "peaked")
_WIDE = ("float32", "float64")
# Constants added to the rows of a bias: row i gets constant i mod 3. Powers of two keep rounding small.
ROW_CONSTANTS = (0.5, -1.0, 0.25)


def _is_ordinary(case: Case) -> bool:
    """Whether a case is eager, has tokens, and has logits of moderate size."""
    return is_eager(case) and has_tokens(case) and case.problem.regime in _REGIMES


def _hides_keys(case: Case) -> bool:
    """Whether a case may hide keys by position or length.

    False also for cases in which the checks must not overwrite hidden keys with large numbers.
    """
    problem = case.problem
    hides = problem.causal is not None or problem.window is not None or "ragged" in problem.parts
    return hides and has_tokens(case) and case.compiler is None and problem.regime in MODERATE


def _shows_every_key(case: Case) -> bool:
    """Whether every visible key has a weight large enough to change the last bit of an output."""
    moderate = case.problem.regime in ("flat", "plain") and case.dtype in _WIDE
    return moderate and "alibi" not in case.problem.parts


@check(when=_hides_keys)
def unseen_keys_cannot_leak(candidate: Candidate) -> Iterator[Observation]:
    """Changing the keys that a query does not see, and their values, changes no bit of that query's output."""
    visible = _compute_visible(candidate)
    most = int((~visible).sum(dim=(0, 2)).argmax())  # the query from which most keys are hidden
    before = candidate.run()["output"].detach().clone()
    for row in dict.fromkeys((most, visible.shape[1] - 1)):
        hidden = ~visible[:, row]
        changed = {name: _poison(candidate, name, hidden) for name in ("key", "value")}
        with candidate.overwrite(changed):
            after = candidate.run()["output"].detach()
        yield Equal(
            value=after[:, :, row],
            expected=before[:, :, row],
            quantity="output",
            how=phrase("unseen_keys_changed", query=row),
        )


@check(when=lambda case: _hides_keys(case) and _is_ordinary(case) and _shows_every_key(case))
def furthest_keys_count(candidate: Candidate) -> Iterator[Observation]:
    """The values of the first and the last key that a query sees contribute to its output."""
    visible = _compute_visible(candidate)
    for sequence, seen in enumerate(visible):
        if not bool(seen.any()):
            continue
        row = int(seen.sum(dim=1).argmax())  # the query that sees most keys
        places = seen[row].nonzero().flatten().tolist()
        for place in dict.fromkeys((places[0], places[-1])):
            one = torch.zeros_like(visible[:, 0])
            one[sequence, place] = True
            before = candidate.run()["output"].detach().clone()
            with candidate.overwrite({"value": _poison(candidate, "value", one)}):
                after = candidate.run()["output"].detach()
            differs = (after[sequence, :, row] != before[sequence, :, row]).flatten(1).any(dim=1)
            yield Holds(
                holds=bool(differs.all()),
                violation=phrase("key_without_effect", key=place, sequence=sequence, query=row),
            )


@check(when=lambda case: _is_ordinary(case) and case.problem.ordered and case.problem.queries > 1, case_transforms=True)
def queries_alone_at_their_corner(candidate: Candidate) -> Iterator[Observation]:
    """Half of the queries (the first under top_left alignment, else the last) get the same output without the rest."""
    case, queries = candidate.case, candidate.case.problem.queries
    half = queries // 2
    few = list(range(half)) if case.problem.causal == "top_left" else list(range(half, queries))
    outputs = candidate.run_on(*get_case_transforms(candidate).select(case, candidate.inputs, queries=few))
    expected = {name: select_positions(value.detach(), {2: few}) for name, value in candidate.outputs.items()}
    yield from compare_runs(outputs, expected, phrase("queries_alone", first=few[0], last=few[-1]))


@check(when=lambda case: _is_ordinary(case) and "alibi" in case.problem.parts and case.dtype in _WIDE)
def alibi_is_a_bias(candidate: Candidate) -> Iterator[Observation]:
    """ALiBi gives the same output as a bias of minus slope times distance."""
    case, inputs, problem = candidate.case, candidate.inputs, candidate.case.problem
    query = inputs.tensors["query"]
    slopes = torch.tensor(inputs.options["alibi_slopes"], dtype=torch.float64, device=query.device)[:, None, None]
    numbers = (-slopes * compute_distances(problem, inputs).abs()).to(query.dtype)
    mask = problem.mask.replace("alibi", "bias4d")
    biased = replace(
        inputs, tensors=inputs.tensors | {"bias": numbers}, options=inputs.options | {"alibi_slopes": None}
    )
    yield from compare_runs(
        candidate.run_on(case.with_problem(mask=mask), biased),
        candidate.outputs,
        phrase("alibi_as_bias"),
    )


@check(when=lambda case: _is_ordinary(case) and "ragged" in case.problem.parts, case_transforms=True)
def a_sequence_ends_at_its_length(candidate: Candidate) -> Iterator[Observation]:
    """A sequence of a ragged batch gives the same output as the same sequence alone, cut to its own length."""
    case, own = candidate.case, get_lengths(candidate.case.problem, candidate.inputs).tolist()
    one = min(range(len(own)), key=own.__getitem__)
    alone, inputs = get_case_transforms(candidate).select(case, candidate.inputs, sequences=[one], keys=range(own[one]))
    mask = "+".join(part for part in case.problem.mask.split("+") if part != "ragged") or "none"
    tensors = {name: tensor for name, tensor in inputs.tensors.items() if name != "key_lengths"}
    outputs = candidate.run_on(alone.with_problem(mask=mask, int32_lengths=False), replace(inputs, tensors=tensors))
    expected = {name: value.detach()[one : one + 1] for name, value in candidate.outputs.items()}
    yield from compare_runs(outputs, expected, phrase("sequence_cut", sequence=one))


@check(when=lambda case: _is_ordinary(case) and bool(case.problem.bias) and case.dtype in _WIDE)
def a_row_of_the_bias_may_shift(candidate: Candidate) -> Iterator[Observation]:
    """Adding a constant to each row of the bias does not change the output, since it is added after any soft-cap."""
    bias = candidate.inputs.tensors["bias"].detach()
    constants = bias.new_tensor(ROW_CONSTANTS)[torch.arange(bias.shape[-2]) % len(ROW_CONSTANTS)]
    shifted = replace(candidate.inputs, tensors=candidate.inputs.tensors | {"bias": bias + constants[:, None]})
    yield Agree(
        value=candidate.run_on(candidate.case, shifted)["output"], expected=candidate.outputs["output"],
        quantity="output",
        how=phrase("constants_added_to_bias"),
    )  # fmt: skip


@check(when=_is_ordinary)
def other_options_between_calls(candidate: Candidate) -> Iterator[Observation]:
    """After a call with other options, a module gives the same output as a newly built module."""
    candidate.run()
    other = _change_options(candidate)
    used, fresh = (
        candidate.run_on(*other, module=module)["output"] for module in (candidate.module, candidate.build()[0])
    )
    yield compare_bitwise(candidate, used, fresh, phrase("other_options"))
    fresh = candidate.run(candidate.build()[1])["output"]
    yield compare_bitwise(
        candidate,
        candidate.run()["output"],
        fresh,
        phrase("after_other_options"),
    )


def _change_options(candidate: Candidate) -> tuple[Case, Inputs]:
    """Return the case without causal mask, and with other scale, soft-cap, window and ALiBi slopes.

    No option is added that the case does not have, so an implementation that supports the case supports the new case.
    """
    case, problem, options = candidate.case, candidate.case.problem, candidate.inputs.options
    numbers: dict[str, Any] = {"softcap": 2 * problem.softcap, "scale": problem.logit_scale / 2}
    if problem.window is not None:
        numbers["window"] = problem.window // 2 if problem.window else 1
    mask = "+".join(part for part in problem.mask.split("+") if part not in ALIGNED) or "none"
    slopes = options["alibi_slopes"]
    changed = numbers | {"softcap": numbers["softcap"] or None, "causal": None}
    changed["alibi_slopes"] = slopes and [slope / 2 for slope in slopes]
    return case.with_problem(mask=mask, **numbers), replace(candidate.inputs, options=options | changed)


def _compute_visible(candidate: Candidate) -> Tensor:
    """Return a boolean tensor that is true where a query sees a key. All heads have the same mask.

    Shape: (batch, queries, keys).
    """
    seen: Tensor = candidate.operator.visible(candidate.case, candidate.inputs)[:, 0]
    return seen


def _poison(candidate: Candidate, name: str, keys: Tensor) -> Tensor:
    """Return a copy of the input ``name``, overwritten at the positions where ``keys`` is true.

    All features of these positions get the large number in POISON, with alternating sign. Shape of
    ``keys``: (batch, keys).
    """
    tensor = candidate.inputs.tensors[name].detach()
    poison = torch.full_like(tensor, POISON[candidate.case.dtype])
    poison[..., ::2] *= -1
    return torch.where(keys[:, None, :, None], poison, tensor)
