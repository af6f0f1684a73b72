"""Chapter *numerics*: small errors in all elements, overflow, and mixed dtypes."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.cases import NARROW_DTYPES, NUMBER_FORMATS
from attnbench.checks.observations import Agree, Holds, Match, Observation, Scale
from attnbench.checks.requirement import check, get_case_transforms, has_tokens, is_eager
from attnbench.checks.runs import has_masked_rows
from attnbench.records.value_facts import phrase

# Value of every element of the tokens. Logits are near its square: exp overflows by far, and float16 cannot hold it.
LARGE = 1e3
# Difference of the logits of neighbouring keys, at least and about. The largest logit of a block of 16 keys is then
# larger by more than 8 than that of the block before it: kernels with running maxima may rescale only beyond 8.
RISE = 1.0
# Smallest number of keys of such a case: more than a tile of 64.
RISING_KEYS = 65


@check(when=lambda case: case.problem.probed and is_eager(case))
def effective_scale(candidate: Candidate) -> Iterator[Observation]:
    """The softmax scale and the amplitude (common factor) of the whole output equal the oracle's."""
    yield Scale(quantity="output", value=candidate.outputs["output"])


@check(when=lambda case: case.problem.probed and is_eager(case) and case.tracks_inputs)
def effective_gradient_scale(candidate: Candidate) -> Iterator[Observation]:
    """The softmax scale and the amplitude of the gradients of query, key and value equal the oracle's."""
    for name in ("grad.query", "grad.key", "grad.value"):
        if name in candidate.gradients:
            yield Scale(quantity=name, value=candidate.gradients[name])


@check(when=lambda case: case.problem.regime == "flat" and is_eager(case) and NUMBER_FORMATS[case.dtype].is_wide)
def stays_finite(candidate: Candidate) -> Iterator[Observation]:
    """Large tokens, all equal, give finite outputs and gradients."""
    tensors = candidate.inputs.tensors
    large = {name: torch.full_like(tensors[name], LARGE) for name in ("query", "key", "value")}
    masked_rows = has_masked_rows(candidate)
    with candidate.overwrite(large):
        outputs = candidate.run()
        found = dict(outputs)
        if candidate.case.differentiates:
            found |= candidate.compute_gradients(outputs)
    strange = [name for name, value in found.items() if not bool(value.isfinite().all())]
    violation = phrase("not_finite", quantities=", ".join(strange))
    yield Holds(holds=not strange, violation=violation, rows="masked_or_other" if masked_rows else "")


@check(
    when=lambda case: (
        case.problem.probed
        and is_eager(case)
        and has_tokens(case)
        and case.problem.keys >= RISING_KEYS
        and not case.problem.shares_queries
    ),
    case_transforms=True,
)
def rising_logits(candidate: Candidate) -> Iterator[Observation]:
    """If the logit of each key is larger than that of the key before it, outputs and gradients equal the oracle's."""
    tensors, case_transforms = candidate.inputs.tensors, get_case_transforms(candidate)
    key, width = tensors["key"], candidate.case.problem.head_dim
    ramp = torch.arange(candidate.case.problem.keys, dtype=torch.float64) * RISE / width**0.5
    axis = case_transforms.length_axis(candidate.case)
    ramp = ramp.view(-1, *(1,) * (key.dim() - 1 - axis)).expand(key.shape)
    changed = {"query": torch.ones_like(tensors["query"]), "key": ramp.to(key)}
    with candidate.overwrite(changed):
        outputs = candidate.run()
        found = dict(outputs)
        if candidate.case.differentiates:
            found |= candidate.compute_gradients(outputs)
        yield Match(quantities={name: value.detach() for name, value in found.items()}, changed=changed)


@check(when=lambda case: case.dtype in NARROW_DTYPES and is_eager(case) and "attn_mask" in case.problem.additive_masks)
def wider_mask(candidate: Candidate) -> Iterator[Observation]:
    """A float32 mask with half-precision tokens gives the output of a half-precision mask, or raises an exception."""
    tensors = candidate.inputs.tensors
    wide = replace(candidate.inputs, tensors=tensors | {"attn_mask": tensors["attn_mask"].detach().float()})
    try:
        output = candidate.run_on(candidate.case, wide)["output"]
    except Malformed:
        raise
    except Exception:  # noqa: BLE001  # any exception is a refusal
        return
    yield Agree(
        value=output.to(candidate.outputs["output"].dtype), expected=candidate.outputs["output"], quantity="output",
        how=phrase("float32_mask"),
    )  # fmt: skip
