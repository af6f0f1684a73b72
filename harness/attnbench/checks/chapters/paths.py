"""Chapter *paths*: every code path of an implementation gives the same result, or raises the same exception."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import NARROW_DTYPES, Case
from attnbench.checks.observations import Agree, Holds, Observation
from attnbench.checks.requirement import check, has_tokens, is_eager
from attnbench.interface import Inputs, Refusal
from attnbench.records.value_facts import AN_OUTPUT, phrase

_ALIASES = ("self_attention", "key_is_value", "query_is_key")


@check(when=lambda case: is_eager(case) and any(getattr(case.problem, alias) for alias in _ALIASES))
def one_object_or_copies(candidate: Candidate) -> Iterator[Observation]:
    """One tensor passed as several arguments gives the output of equal copies, and the sum of the copies' gradients."""
    tensors = candidate.inputs.tensors
    own = candidate.implementation.policies.padded_queries == "own"
    if own and candidate.operator.padded_rows(candidate.case, candidate.inputs):
        raise Refusal(phrase("copies_have_no_padded_queries"))
    names = ("query", "key", "value")
    copies = {name: tensors[name].detach().clone().requires_grad_(tensors[name].requires_grad) for name in names}
    apart = replace(candidate.inputs, tensors=tensors | copies)
    case = candidate.case.with_problem(**dict.fromkeys(_ALIASES, False))
    outputs = candidate.run_on(case, apart)
    yield Agree(
        value=outputs["output"], expected=candidate.outputs["output"], quantity="output",
        how=phrase("equal_copies"),
    )  # fmt: skip
    if not candidate.case.tracks_inputs:
        return
    found = torch.autograd.grad(
        candidate.compute_loss(outputs), list(copies.values()), materialize_grads=True, allow_unused=True
    )
    by_name = dict(zip(names, found, strict=True))
    for name in [n for n in names if f"grad.{n}" in candidate.gradients]:
        total = torch.stack([by_name[other] for other in names if tensors[other] is tensors[name]]).sum(dim=0)
        yield Agree(
            value=total, expected=candidate.gradients[f"grad.{name}"], quantity=f"grad.{name}",
            how=phrase("summed_over_equal_copies"),
        )  # fmt: skip


@check(when=lambda case: is_eager(case) and case.problem.regime == "plain" and bool(_list_undefined_inputs(case)))
def odd_input_treated_alike(candidate: Candidate) -> Iterator[Observation]:
    """Inputs that the reference leaves undefined give the same output or exception for both values of need_weights."""
    for name, changed in _list_undefined_inputs(candidate.case).items():
        inputs = changed(candidate.inputs)
        answers = [_call_or_catch(candidate, inputs, need_weights=asked) for asked in (False, True)]
        tensors = [answer for answer in answers if isinstance(answer, Tensor)]
        results = [answer if isinstance(answer, str) else AN_OUTPUT for answer in answers]
        if len(tensors) == len(answers):
            yield Agree(
                value=tensors[1], expected=tensors[0], quantity="output",
                how=phrase(f"{name}_with_weights"),
            )  # fmt: skip
        else:
            yield Holds(
                holds=results[0] == results[1],
                violation=phrase(f"{name}_unlike", without=results[0], requested=results[1]),
            )


@check(
    when=lambda case: (
        is_eager(case) and has_tokens(case) and case.problem.self_attention and case.problem.regime == "plain"
    )
)
def refusals_are_alike(candidate: Candidate) -> Iterator[Observation]:
    """A wrong mask shape raises the same exception type whether query, key and value are one tensor or copies."""
    tensors = candidate.inputs.tensors
    keys = candidate.case.problem.keys
    batch = () if candidate.case.problem.batch is None else (candidate.case.problem.batch,)
    unfit = {"key_padding_mask": tensors["key"].new_zeros(*batch, keys + 1, dtype=torch.bool)}
    case = candidate.case.with_problem(mask="pad", is_causal=False, self_attention=False)
    options = {**candidate.inputs.options, "is_causal": False}
    results = []
    for names in ((), ("query", "key", "value")):
        copies = {name: tensors[name].detach().clone() for name in names}
        apart = {name: tensors[name] for name in ("query", "key", "value")} | copies | unfit
        results.append(_call_and_name_type(candidate, case, replace(candidate.inputs, tensors=apart, options=options)))
    yield Holds(
        holds=results[0] == results[1],
        violation=phrase("wrong_mask_unlike", one=results[0], copies=results[1]),
    )


def _call_and_name_type(candidate: Candidate, case: Case, inputs: Inputs) -> str:
    """Call the implementation; return the type name of the exception that it raised, or ``AN_OUTPUT``."""
    try:
        candidate.run_on(case, inputs)
    except Refusal:
        raise
    except Exception as error:  # noqa: BLE001  # an implementation may refuse with any exception
        return type(error).__name__
    return AN_OUTPUT


def _call_or_catch(candidate: Candidate, inputs: Inputs, *, need_weights: bool) -> Tensor | str:
    """Call the implementation; return the output, or the type name of the exception that it raised."""
    asked = {"need_weights": need_weights, "average_attn_weights": False}
    case = candidate.case.with_problem(**asked)
    try:
        return candidate.run_on(case, replace(inputs, options=inputs.options | asked))["output"].detach()
    except Refusal:  # the implementation declares this value of need_weights unsupported
        raise
    except Exception as error:  # noqa: BLE001  # an implementation may refuse with any exception
        return type(error).__name__


def _list_undefined_inputs(case: Case) -> dict[str, Callable[[Inputs], Inputs]]:
    """Return the undefined inputs of a case: inputs for which the reference defines no result.

    The keys are names. The value of a key is a function that makes such inputs from valid inputs.
    """
    problem = case.problem
    odd: dict[str, Callable[[Inputs], Inputs]] = {}
    if min(problem.sequences, problem.queries, problem.keys - 1) < 1:  # no sequence, no query, or fewer than two keys
        return odd
    if problem.attention_mask in ("bool2d", "float2d") and problem.padding_mask is None:
        odd["hint_without_causal_mask"] = _set_options(is_causal=True)
    if case.dtype in NARROW_DTYPES and "attn_mask" in problem.additive_masks:
        odd["wide_mask"] = _widen_mask
    return odd


def _set_options(**options: Any) -> Callable[[Inputs], Inputs]:
    return lambda inputs: replace(inputs, options=inputs.options | options)


def _widen_mask(inputs: Inputs) -> Inputs:
    return replace(inputs, tensors=inputs.tensors | {"attn_mask": inputs.tensors["attn_mask"].detach().float()})
