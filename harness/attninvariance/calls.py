"""Calls of one implementation at chosen sizes, and the parts of their results that belong to chosen tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case, Shape
from attnbench.devices import get_device
from attnbench.interface import CaseTransforms, Implementation, Inputs, Operator, Refusal
from attnbench.oracle.inputs import select_positions
from attninvariance.sweep import HEADS, Point
from attninvariance.texts import NO_TRANSFORMS

__all__ = ["Call", "Results", "Subject"]

Index = Sequence[int] | None
# The output of a call, or its gradients, by name.
Results = Mapping[str, Tensor]
# Results that have an axis of queries, and results that have one of keys.
OF_QUERIES, OF_KEYS = ("output", "grad.query"), ("grad.key", "grad.value")


@dataclass(frozen=True, slots=True)
class Call:
    """A case and its inputs, with the cotangent of the output."""

    case: Case
    inputs: Inputs


@dataclass(frozen=True, slots=True)
class Subject:
    """An implementation, and the case that has the dtype, the device and the call mode of its calls."""

    implementation: Implementation
    operator: Operator
    case: Case

    @property
    def transforms(self) -> CaseTransforms:
        """The case transforms of the operator.

        Raises: Refusal if it has none.
        """
        found = self.operator.case_transforms
        if found is None:
            raise Refusal(NO_TRANSFORMS)
        return found

    def draw(self, point: Point, mask: str = "none", **changes: bool) -> Call:
        """Return a call with these sizes; ``changes`` are changes of its problem, where its problem has such fields."""
        shape = Shape(
            queries=point.length, keys=point.length, batch=point.batch, heads=HEADS, head_dim=point.head_dim, mask=mask
        )
        case = next(one for one in self.operator.shape_cases(shape) if one.mode == self.case.mode)
        case = case.with_fields(dtype=self.case.dtype, device=self.case.device)
        case = case.with_problem(**{one.name: changes[one.name] for one in fields(case.problem) if one.name in changes})
        inputs = self.operator.inputs(case)
        place = self.operator.outputs[0]
        return Call(case, replace(inputs, cotangents={place: inputs.cotangents[place]}).map_tensors(self._move))

    def _move(self, tensor: Tensor) -> Tensor:
        return tensor.to(get_device(self.case.device).torch_type)

    def select(self, call: Call, *, sequences: Index = None, queries: Index = None, keys: Index = None) -> Call:
        """Return the call with only these sequences, queries and keys; its cotangent has only their rows."""
        case, inputs = self.transforms.select(
            call.case, call.inputs, sequences=sequences, queries=queries, keys=keys
        )  # fmt: skip
        rows = keys if self.shares_tokens(call) else queries
        (name, cotangent) = next(iter(call.inputs.cotangents.items()))
        return Call(case, replace(inputs, cotangents={name: self._take(call, cotangent, sequences, rows)}))

    def run(self, call: Call, implementation: Implementation | None = None) -> Results:
        """Return the output of a call, or its gradients in a call mode with gradients.

        Raises: Refusal if the implementation does not support the case.
        """
        chosen = implementation or self.implementation
        if reason := chosen.unsupported(call.case):
            raise Refusal(reason)
        # Each call has tensors of its own, at addresses of their own.
        inputs = call.inputs.map_tensors(lambda tensor: tensor.detach().clone())
        candidate = Candidate(chosen, self.operator, call.case, inputs)
        name = self.operator.outputs[0]
        outputs = {name: candidate.run()[name]}
        if call.case.differentiates:
            return candidate.compute_gradients(outputs)
        return {"output": outputs[name].detach().clone()}

    def take(
        self, call: Call, results: Results, *, sequences: Index = None, queries: Index = None, keys: Index = None
    ) -> Results:
        """Return the results of these tokens; gradients of parameters, which are sums over all tokens, are left out."""
        found = {name: self._take(call, results[name], sequences, queries) for name in OF_QUERIES if name in results}
        return found | {name: self._take(call, results[name], sequences, keys) for name in OF_KEYS if name in results}

    def _take(self, call: Call, tensor: Tensor, sequences: Index, tokens: Index) -> Tensor:
        axes = self.transforms.sequence_axis(call.case), self.transforms.length_axis(call.case)
        return select_positions(tensor, dict(zip(axes, (sequences, tokens), strict=True)))

    def shares_tokens(self, call: Call) -> bool:
        """Whether queries and keys are one tensor."""
        return call.inputs.tensors["query"] is call.inputs.tensors["key"]
