"""What the checks compare with: the reference of an operator, run on a setting."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.interface import Implementation, Inputs
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.plugins.registry import load_operator
from research.other_checks import problems
from research.other_checks.problems import Setting

__all__ = [
    "REFERENCES",
    "build",
    "compute_references",
    "make_reference",
    "measure",
    "recall",
    "run_precise_and_eager",
    "run_reference",
    "upcast",
]

Tensors = dict[str, Tensor]
# What the reference gives on a setting, if a study kept it; it is the same for every implementation.
REFERENCES: dict[Setting, Any] = {}


def make_reference(operator: str) -> ModuleImplementation:
    """Return the correct implementation: the operator's reference, called as an implementation is."""
    return ModuleImplementation(lambda reference: reference, name="reference", operator=operator)


def build(implementation: Implementation, setting: Setting, inputs: Inputs, **changes: Any) -> Candidate:
    """Build an implementation for a setting; ``changes`` are changed fields of its case."""
    case = setting.case.with_fields(**changes)
    return Candidate(implementation, load_operator(case.operator), case, inputs)


def upcast(inputs: Inputs) -> Inputs:
    """Return inputs whose floating-point tensors are in float32."""
    return inputs.map_tensors(lambda tensor: tensor.float() if tensor.is_floating_point() else tensor)


def recall(setting: Setting, compute: Callable[[Setting], Any]) -> Any:
    """Return what the reference gives on a setting: what is kept, or what ``compute`` returns."""
    return REFERENCES[setting] if setting in REFERENCES else compute(setting)


def compute_references(operator: str) -> dict[Setting, Any]:
    """Return what the reference gives on each setting with gradients, whatever the implementation."""
    close = {one: run_reference(one) for one in problems.usual(operator, dtypes=("float32", "bfloat16", "float16"))}
    return close | {one: run_precise_and_eager(one) for one in problems.flash_settings(operator)}


def run_reference(setting: Setting) -> Tensors:
    """Return the reference's outputs and gradients in the setting's dtype."""
    reference = build(make_reference(setting.case.operator), setting, setting.draw(0))
    return {name: value.detach() for name, value in (dict(reference.outputs) | reference.gradients).items()}


def run_precise_and_eager(setting: Setting) -> tuple[Tensors, Tensors]:
    """Return the reference's output and gradients in float32, and in the setting's dtype by plain matrix products."""
    reference = make_reference(setting.case.operator)
    right = measure(build(reference, setting, upcast(setting.draw(0)), dtype="float32"))
    shown = {"need_weights": True} if setting.case.operator == "multihead" else {}
    return right, measure(build(reference, setting, setting.draw(0)), **shown)


def measure(candidate: Candidate, **changed: Any) -> Tensors:
    """Return the output, and the gradients of the inputs from the output's cotangent alone."""
    output = {"output": candidate.run(**changed)["output"]}
    return {"output": output["output"].detach()} | candidate.compute_gradients(output)
