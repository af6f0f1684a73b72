"""Chapter *numerics*: what is off by little everywhere, what overflows, and what is mixed."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnbench.checks.claims import Agree, Claim, Holds, Scale
from attnbench.checks.requirement import check, eager
from attnbench.interface import Refusal
from attnbench.subject import Malformed, Subject

# All tokens alike and large: logits are near the square of it, far beyond where exp overflows.
LARGE = {"float64": 1e3, "float32": 1e3, "bfloat16": 1e3}


@check(when=lambda case: case.problem.probed and eager(case))
def effective_scale(subject: Subject) -> Iterator[Claim]:
    """The output as a whole shows the right softmax scale and amplitude, to less than one element's rounding."""
    yield Scale(quantity="output", value=subject.outputs["output"])


@check(when=lambda case: case.problem.probed and eager(case) and case.tracks_inputs)
def effective_gradient_scale(subject: Subject) -> Iterator[Claim]:
    """Gradients of query, key and value show the right softmax scale and amplitude."""
    for name in ("grad.query", "grad.key", "grad.value"):
        if name in subject.gradients:
            yield Scale(quantity=name, value=subject.gradients[name])


@check(when=lambda case: case.problem.regime == "flat" and eager(case) and case.dtype in LARGE)
def stays_finite(subject: Subject) -> Iterator[Claim]:
    """Large tokens, all alike, give finite outputs and gradients."""
    tensors = subject.inputs.tensors
    large = {name: torch.full_like(tensors[name], LARGE[subject.case.dtype]) for name in ("query", "key", "value")}
    declared_nan = subject.implementation.policies.hidden_rows == "nan"
    if declared_nan and subject.operator.hidden_rows(subject.case, subject.inputs):
        raise Refusal("rows without any key are declared NaN")
    with subject.overwritten(large):
        outputs = subject.run()
        found = dict(outputs)
        if subject.case.differentiates:
            found |= subject.gradients_of(outputs)
    strange = [name for name, value in found.items() if not bool(value.isfinite().all())]
    yield Holds(holds=not strange, what=f"{', '.join(strange)} held NaN or infinity")


@check(
    when=lambda case: (
        case.dtype in ("bfloat16", "float16") and eager(case) and "attn_mask" in case.problem.additive_masks
    )
)
def wider_mask(subject: Subject) -> Iterator[Claim]:
    """A float32 mask beside half-precision tokens is taken for what it says, or refused."""
    tensors = subject.inputs.tensors
    wide = replace(subject.inputs, tensors=tensors | {"attn_mask": tensors["attn_mask"].detach().float()})
    try:
        output = subject.on(subject.case, wide)["output"]
    except Malformed:
        raise
    except Exception as error:  # noqa: BLE001  # whatever refuses, refuses
        yield Holds(holds=True, what=f"refused: {error}")
        return
    yield Agree(
        value=output.to(subject.outputs["output"].dtype), expected=subject.outputs["output"], quantity="output",
        what="the output under a float32 mask, against that under the same mask in half precision",
    )  # fmt: skip
