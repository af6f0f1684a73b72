"""Chapter *numerics*: what is off by little everywhere, what overflows, and what is mixed."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.checks.observations import Agree, Holds, Observation, Scale
from attnbench.checks.requirement import check, eager
from attnbench.interface import Refusal

# All tokens alike and large: logits are near the square of it, far beyond where exp overflows.
LARGE = {"float64": 1e3, "float32": 1e3, "bfloat16": 1e3}


@check(when=lambda case: case.problem.probed and eager(case))
def effective_scale(candidate: Candidate) -> Iterator[Observation]:
    """The output as a whole shows the right softmax scale and amplitude, to less than one element's rounding."""
    yield Scale(quantity="output", value=candidate.outputs["output"])


@check(when=lambda case: case.problem.probed and eager(case) and case.tracks_inputs)
def effective_gradient_scale(candidate: Candidate) -> Iterator[Observation]:
    """Gradients of query, key and value show the right softmax scale and amplitude."""
    for name in ("grad.query", "grad.key", "grad.value"):
        if name in candidate.gradients:
            yield Scale(quantity=name, value=candidate.gradients[name])


@check(when=lambda case: case.problem.regime == "flat" and eager(case) and case.dtype in LARGE)
def stays_finite(candidate: Candidate) -> Iterator[Observation]:
    """Large tokens, all alike, give finite outputs and gradients."""
    tensors = candidate.inputs.tensors
    large = {name: torch.full_like(tensors[name], LARGE[candidate.case.dtype]) for name in ("query", "key", "value")}
    declared_nan = candidate.implementation.policies.hidden_rows == "nan"
    if declared_nan and candidate.operator.hidden_rows(candidate.case, candidate.inputs):
        raise Refusal("rows without any key are declared NaN")
    with candidate.overwritten(large):
        outputs = candidate.run()
        found = dict(outputs)
        if candidate.case.differentiates:
            found |= candidate.gradients_of(outputs)
    strange = [name for name, value in found.items() if not bool(value.isfinite().all())]
    yield Holds(holds=not strange, what=f"{', '.join(strange)} held NaN or infinity")


@check(
    when=lambda case: (
        case.dtype in ("bfloat16", "float16") and eager(case) and "attn_mask" in case.problem.additive_masks
    )
)
def wider_mask(candidate: Candidate) -> Iterator[Observation]:
    """A float32 mask beside half-precision tokens is taken for what it says, or refused."""
    tensors = candidate.inputs.tensors
    wide = replace(candidate.inputs, tensors=tensors | {"attn_mask": tensors["attn_mask"].detach().float()})
    try:
        output = candidate.on(candidate.case, wide)["output"]
    except Malformed:
        raise
    except Exception as error:  # noqa: BLE001  # whatever refuses, refuses
        yield Holds(holds=True, what=f"refused: {error}")
        return
    yield Agree(
        value=output.to(candidate.outputs["output"].dtype), expected=candidate.outputs["output"], quantity="output",
        what="the output under a float32 mask, against that under the same mask in half precision",
    )  # fmt: skip
