"""Chapter *positions*: where queries and keys stand decides what is seen: corners, windows, distances, lengths."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.chapters.masks import MODERATE, POISON
from attnbench.checks.observations import Agree, Equal, Holds, Observation
from attnbench.checks.requirement import case_transforms_of, check, eager, has_tokens
from attnbench.checks.runs import agree, same
from attnbench.interface import Inputs
from attnbench.operators.attention_core.positions import distances, lengths
from attnbench.operators.attention_core.problem import ALIGNED
from attnbench.oracle.inputs import picked

_REGIMES = ("flat", "plain", "peaked")
_WIDE = ("float32", "float64")
# Added to the rows of a bias in turn; powers of two keep the sum's rounding small.
ROW_CONSTANTS = (0.5, -1.0, 0.25)


def _ordinary(case: Case) -> bool:
    return eager(case) and has_tokens(case) and case.problem.regime in _REGIMES


def _hides(case: Case) -> bool:
    problem = case.problem
    hides = problem.causal is not None or problem.window is not None or "ragged" in problem.parts
    return hides and has_tokens(case) and case.compiler is None and problem.regime in MODERATE


def _shows_every_key(case: Case) -> bool:
    """Whether no key that is seen has a weight too small to show in the last bit."""
    moderate = case.problem.regime in ("flat", "plain") and case.dtype in _WIDE
    return moderate and "alibi" not in case.problem.parts


@check(when=_hides)
def unseen_keys_cannot_leak(candidate: Candidate) -> Iterator[Observation]:
    """Keys that a query does not see, and their values, change no bit of its output."""
    visible = _visible(candidate)
    most = int((~visible).sum(dim=(0, 2)).argmax())  # the query that most keys are hidden from
    before = candidate.run()["output"].detach().clone()
    for row in dict.fromkeys((most, visible.shape[1] - 1)):
        hidden = ~visible[:, row]
        changed = {name: _poisoned(candidate, name, hidden) for name in ("key", "value")}
        with candidate.overwritten(changed):
            after = candidate.run()["output"].detach()
        yield Equal(
            value=after[:, :, row], expected=before[:, :, row], what=f"output of query {row} after unseen keys changed"
        )


@check(when=lambda case: _hides(case) and _ordinary(case) and _shows_every_key(case))
def furthest_keys_count(candidate: Candidate) -> Iterator[Observation]:
    """The first and the last key that a query sees have a part in its output."""
    visible = _visible(candidate)
    for sequence, seen in enumerate(visible):
        if not bool(seen.any()):
            continue
        row = int(seen.sum(dim=1).argmax())  # the query that sees most
        places = seen[row].nonzero().flatten().tolist()
        for place in dict.fromkeys((places[0], places[-1])):
            one = torch.zeros_like(visible[:, 0])
            one[sequence, place] = True
            before = candidate.run()["output"].detach().clone()
            with candidate.overwritten({"value": _poisoned(candidate, "value", one)}):
                after = candidate.run()["output"].detach()
            differs = (after[sequence, :, row] != before[sequence, :, row]).flatten(1).any(dim=1)
            yield Holds(
                holds=bool(differs.all()),
                what=f"key {place} of sequence {sequence} has no part in the output of query {row}, which sees it",
            )


@check(when=lambda case: _ordinary(case) and case.problem.ordered and case.problem.queries > 1, case_transforms=True)
def queries_alone_at_their_corner(candidate: Candidate) -> Iterator[Observation]:
    """The queries next to the corner that they are aligned with get alone what they get among all: decoding does so."""
    case, queries = candidate.case, candidate.case.problem.queries
    half = queries // 2
    few = list(range(half)) if case.problem.causal == "top_left" else list(range(half, queries))
    outputs = candidate.on(*case_transforms_of(candidate).selected(case, candidate.inputs, queries=few))
    expected = {name: picked(value.detach(), {2: few}) for name, value in candidate.outputs.items()}
    where = f"queries {few[0]} to {few[-1]}"
    yield from agree(outputs, expected, f"of {where} alone, against that among all")


@check(when=lambda case: _ordinary(case) and "alibi" in case.problem.parts and case.dtype in _WIDE)
def alibi_is_a_bias(candidate: Candidate) -> Iterator[Observation]:
    """ALiBi gives what a bias of minus slope times distance gives."""
    case, inputs, problem = candidate.case, candidate.inputs, candidate.case.problem
    query = inputs.tensors["query"]
    slopes = torch.tensor(inputs.options["alibi_slopes"], dtype=torch.float64, device=query.device)[:, None, None]
    numbers = (-slopes * distances(problem, inputs).abs()).to(query.dtype)
    mask = problem.mask.replace("alibi", "bias4d")
    told = replace(inputs, tensors=inputs.tensors | {"bias": numbers}, options=inputs.options | {"alibi_slopes": None})
    yield from agree(
        candidate.on(case.with_problem(mask=mask), told), candidate.outputs, "under that bias, against that under ALiBi"
    )


@check(when=lambda case: _ordinary(case) and "ragged" in case.problem.parts, case_transforms=True)
def a_sequence_ends_at_its_length(candidate: Candidate) -> Iterator[Observation]:
    """A sequence of a ragged batch gets what it gets alone, cut to its own length."""
    case, own = candidate.case, lengths(candidate.case.problem, candidate.inputs).tolist()
    one = min(range(len(own)), key=own.__getitem__)
    alone, inputs = case_transforms_of(candidate).selected(
        case, candidate.inputs, sequences=[one], keys=range(own[one])
    )
    mask = "+".join(part for part in case.problem.mask.split("+") if part != "ragged") or "none"
    tensors = {name: tensor for name, tensor in inputs.tensors.items() if name != "key_lengths"}
    outputs = candidate.on(alone.with_problem(mask=mask, int32_lengths=False), replace(inputs, tensors=tensors))
    expected = {name: value.detach()[one : one + 1] for name, value in candidate.outputs.items()}
    yield from agree(outputs, expected, f"of sequence {one} cut to its length, against that in the batch")


@check(when=lambda case: _ordinary(case) and bool(case.problem.bias) and case.dtype in _WIDE)
def a_row_of_the_bias_may_shift(candidate: Candidate) -> Iterator[Observation]:
    """A constant added to a row of the bias changes nothing: a soft-cap comes before it."""
    bias = candidate.inputs.tensors["bias"].detach()
    constants = bias.new_tensor(ROW_CONSTANTS)[torch.arange(bias.shape[-2]) % len(ROW_CONSTANTS)]
    shifted = replace(candidate.inputs, tensors=candidate.inputs.tensors | {"bias": bias + constants[:, None]})
    yield Agree(
        value=candidate.on(candidate.case, shifted)["output"], expected=candidate.outputs["output"], quantity="output",
        what="the output with constants added to the rows of the bias",
    )  # fmt: skip


@check(when=_ordinary)
def other_options_between_calls(candidate: Candidate) -> Iterator[Observation]:
    """After a call with other options a module gives what a fresh one gives."""
    candidate.run()
    other = _with_other_options(candidate)
    used, fresh = (candidate.on(*other, module=module)["output"] for module in (candidate.module, candidate.build()[0]))
    yield same(candidate, used, fresh, "of a call with other options, against a fresh module's")
    fresh = candidate.run(candidate.build()[1])["output"]
    yield same(candidate, candidate.run()["output"], fresh, "of the call after it, against a fresh module's")


def _with_other_options(candidate: Candidate) -> tuple[Case, Inputs]:
    """The case without its causal mask, each of its other options another number.

    What it has not, it does not get: who takes the case takes this one.
    """
    case, problem, options = candidate.case, candidate.case.problem, candidate.inputs.options
    numbers: dict[str, Any] = {"softcap": 2 * problem.softcap, "scale": problem.logit_scale / 2}
    if problem.window is not None:
        numbers["window"] = problem.window // 2 if problem.window else 1
    mask = "+".join(part for part in problem.mask.split("+") if part not in ALIGNED) or "none"
    slopes = options["alibi_slopes"]
    told = numbers | {"softcap": numbers["softcap"] or None, "causal": None}
    told["alibi_slopes"] = slopes and [slope / 2 for slope in slopes]
    return case.with_problem(mask=mask, **numbers), replace(candidate.inputs, options=options | told)


def _visible(candidate: Candidate) -> Tensor:
    """Which keys a query sees, in every head alike. Shape: (batch, queries, keys)."""
    seen: Tensor = candidate.operator.visible(candidate.case, candidate.inputs)[:, 0]
    return seen


def _poisoned(candidate: Candidate, name: str, keys: Tensor) -> Tensor:
    """Keys or values of which the chosen ones hold a large number of alternating sign. Shape: keys (batch, keys)."""
    tensor = candidate.inputs.tensors[name].detach()
    poison = torch.full_like(tensor, POISON[candidate.case.dtype])
    poison[..., ::2] *= -1
    return torch.where(keys[:, None, :, None], poison, tensor)
