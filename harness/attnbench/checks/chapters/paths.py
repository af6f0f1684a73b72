"""Chapter *paths*: whichever way a call takes inside, it gives the same answer, or refuses alike."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Agree, Holds, Observation
from attnbench.checks.requirement import check, eager, has_tokens
from attnbench.interface import Inputs, Refusal

_ALIASES = ("self_attention", "key_is_value", "query_is_key")


@check(when=lambda case: eager(case) and any(getattr(case.problem, alias) for alias in _ALIASES))
def one_object_or_copies(candidate: Candidate) -> Iterator[Observation]:
    """One tensor given under several names is what as many equal tensors are; its gradient is the sum of theirs."""
    tensors = candidate.inputs.tensors
    own = candidate.implementation.policies.padded_queries == "own"
    if own and candidate.operator.padded_rows(candidate.case, candidate.inputs):
        raise Refusal("rows of padded queries are its own, and copies do not tell which these are")
    names = ("query", "key", "value")
    copies = {name: tensors[name].detach().clone().requires_grad_(tensors[name].requires_grad) for name in names}
    apart = replace(candidate.inputs, tensors=tensors | copies)
    case = candidate.case.with_problem(**dict.fromkeys(_ALIASES, False))
    outputs = candidate.on(case, apart)
    yield Agree(
        value=outputs["output"], expected=candidate.outputs["output"], quantity="output",
        what="the output of copies, against that of one tensor",
    )  # fmt: skip
    if not candidate.case.tracks_inputs:
        return
    found = torch.autograd.grad(
        candidate.loss(outputs), list(copies.values()), materialize_grads=True, allow_unused=True
    )
    by_name = dict(zip(names, found, strict=True))
    for name in [n for n in names if f"grad.{n}" in candidate.gradients]:
        total = torch.stack([by_name[other] for other in names if tensors[other] is tensors[name]]).sum(dim=0)
        yield Agree(
            value=total, expected=candidate.gradients[f"grad.{name}"], quantity=f"grad.{name}",
            what=f"the sum of the copies' gradients, against grad.{name} of one tensor",
        )  # fmt: skip


@check(when=lambda case: eager(case) and case.problem.regime == "plain" and bool(_odd(case)))
def odd_input_treated_alike(candidate: Candidate) -> Iterator[Observation]:
    """What the reference leaves open is answered alike, or refused alike, with weights and without."""
    for what, changed in _odd(candidate.case).items():
        inputs = changed(candidate.inputs)
        answers = [_answer(candidate, inputs, need_weights=asked) for asked in (False, True)]
        tensors = [answer for answer in answers if isinstance(answer, Tensor)]
        told = [answer if isinstance(answer, str) else "an output" for answer in answers]
        if len(tensors) == len(answers):
            yield Agree(
                value=tensors[1], expected=tensors[0], quantity="output",
                what=f"the output for {what} beside weights, against that without",
            )  # fmt: skip
        else:
            yield Holds(
                holds=told[0] == told[1], what=f"{what} gave {told[0]} without weights, and {told[1]} beside them"
            )


@check(
    when=lambda case: (
        eager(case) and has_tokens(case) and case.problem.self_attention and case.problem.regime == "plain"
    )
)
def refusals_are_alike(candidate: Candidate) -> Iterator[Observation]:
    """A mask that does not fit is refused with one kind of exception, for one tensor and for copies of it."""
    tensors = candidate.inputs.tensors
    keys = candidate.case.problem.keys
    batch = () if candidate.case.problem.batch is None else (candidate.case.problem.batch,)
    unfit = {"key_padding_mask": torch.zeros(*batch, keys + 1, dtype=torch.bool)}
    case = candidate.case.with_problem(mask="pad", is_causal=False, self_attention=False)
    options = {**candidate.inputs.options, "is_causal": False}
    told = []
    for names in ((), ("query", "key", "value")):
        copies = {name: tensors[name].detach().clone() for name in names}
        apart = {name: tensors[name] for name in ("query", "key", "value")} | copies | unfit
        told.append(_kind(candidate, case, replace(candidate.inputs, tensors=apart, options=options)))
    yield Holds(holds=told[0] == told[1], what=f"one tensor gave {told[0]}, and copies of it {told[1]}")


def _kind(candidate: Candidate, case: Case, inputs: Inputs) -> str:
    """What a call gave: an output, or which exception."""
    try:
        candidate.on(case, inputs)
    except Refusal:
        raise
    except Exception as error:  # noqa: BLE001  # what a refusal is, is the implementation's to say
        return type(error).__name__
    return "an output"


def _answer(candidate: Candidate, inputs: Inputs, *, need_weights: bool) -> Tensor | str:
    """The output, or the kind of exception."""
    asked = {"need_weights": need_weights, "average_attn_weights": False}
    case = candidate.case.with_problem(**asked)
    try:
        return candidate.on(case, replace(inputs, options=inputs.options | asked))["output"].detach()
    except Refusal:  # one of the two cases is declared unsupported: there is nothing to compare
        raise
    except Exception as error:  # noqa: BLE001  # what a refusal is, is the implementation's to say
        return type(error).__name__


def _odd(case: Case) -> dict[str, Callable[[Inputs], Inputs]]:
    """What is odd about the inputs, and how to make them so."""
    problem = case.problem
    odd: dict[str, Callable[[Inputs], Inputs]] = {}
    if min(problem.sequences, problem.queries, problem.keys - 1) < 1:  # nothing to hide, or nobody to hide it from
        return odd
    if problem.attention_mask in ("bool2d", "float2d") and problem.padding_mask is None:
        odd["a causal hint that the mask contradicts"] = _with_options(is_causal=True)
    if case.dtype in ("bfloat16", "float16") and "attn_mask" in problem.additive_masks:
        odd["a float32 mask beside half-precision tokens"] = _wider
    return odd


def _with_options(**options: Any) -> Callable[[Inputs], Inputs]:
    return lambda inputs: replace(inputs, options=inputs.options | options)


def _wider(inputs: Inputs) -> Inputs:
    return replace(inputs, tensors=inputs.tensors | {"attn_mask": inputs.tensors["attn_mask"].detach().float()})
