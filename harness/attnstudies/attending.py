"""Attention of the sentence encoder all-MiniLM-L6-v2, computed by one implementation: output and attention weights."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Implementation, Inputs, Refusal
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.oracle import sentence_encoder
from attnbench.oracle.sentence_encoder import HEADS, WIDTH, LayerInput
from attnbench.plugins.adapters import load_implementation
from attnstudies import StudyError

__all__ = ["EncoderAttention"]

HEAD_DIM = WIDTH // HEADS


@dataclass(frozen=True, slots=True)
class EncoderAttention:
    """The attention of one layer of the sentence encoder, computed by the implementation with the name ``name``.

    Raises: StudyError if the encoder is not installed. A call raises PluginError if ``name`` is unknown.
    """

    name: str
    layer: int

    def __post_init__(self) -> None:
        """Raise StudyError if the encoder is not installed, before anything is computed."""
        if reason := sentence_encoder.describe_missing():
            raise StudyError(reason)

    def make_input(self, texts: list[str], length: int = 0) -> LayerInput:
        """Return the input of the layer's attention for these texts, padded to at least ``length`` tokens."""
        try:
            return sentence_encoder.compute_texts_input(self.layer, texts, length)
        except ValueError as error:
            raise StudyError(str(error)) from error

    def __call__(self, given: LayerInput, *, masked: bool = True) -> tuple[Tensor, Tensor]:
        """Return the output (batch, length, 384) and the attention weights (batch, 12, length, length), in float64.

        If the implementation returns no attention weights, ``_probe_weights`` computes them from its outputs.

        Raises: StudyError if the implementation refuses the case, or if its operator is not ``multihead``.
        """
        implementation = load_implementation(self.name)
        computed = implementation.operator
        if computed != OPERATOR.name:
            raise StudyError(
                f"IMPLEMENTATION must compute {OPERATOR.name}, got {self.name!r}, which computes {computed}"
            )
        try:
            case, inputs = self._make_case(given, masked=masked, need_weights=True)
            if implementation.unsupported(case) is None:
                output, weights = _call(implementation, case, inputs)
            else:
                output, _ = _call(implementation, *self._make_case(given, masked=masked))
                weights = self._probe_weights(implementation, given, masked=masked)
        except Refusal as refusal:
            raise StudyError(f"{self.name} refuses: {refusal}; choose another implementation") from refusal
        return output.double(), weights.double()

    def _probe_weights(self, implementation: Implementation, given: LayerInput, *, masked: bool) -> Tensor:
        """Compute attention weights from outputs: with the identity matrix as values, the outputs are the weights.

        The value of a key is 1 in one feature of every head and 0 elsewhere, and the projections of values and outputs
        are the identity. One call yields the attention weights of ``HEAD_DIM`` keys.

        Shape: returns (batch, heads, queries, keys).
        """
        batch, length, _ = given.hidden.shape
        identity = replace(given, parameters=_pass_values_through(given.parameters))
        columns = []
        for first in range(0, length, HEAD_DIM):
            count = min(HEAD_DIM, length - first)
            values = torch.zeros(batch, length, HEADS, HEAD_DIM)
            values[:, first : first + count] = torch.eye(count, HEAD_DIM)[:, None]
            output, _ = _call(implementation, *self._make_case(identity, masked=masked, values=values.flatten(2)))
            columns.append(torch.unflatten(output, -1, (HEADS, HEAD_DIM))[..., :count].transpose(1, 2))
        return torch.cat(columns, dim=-1)

    def _make_case(
        self, given: LayerInput, *, masked: bool, need_weights: bool = False, values: Tensor | None = None
    ) -> tuple[Case, Inputs]:
        """Return the case that describes a call on ``given``, and the inputs of the call."""
        batch, length, _ = given.hidden.shape
        problem = MultiheadProblem(
            batch=batch, queries=length, keys=length, embed_dim=WIDTH, num_heads=HEADS, bias=True, batch_first=True,
            self_attention=values is None, query_is_key=values is not None, need_weights=need_weights,
            mask="pad" if masked else "none", regime=f"minilm{self.layer}",
        )  # fmt: skip
        tensors = {"query": given.hidden, "key": given.hidden, "value": given.hidden if values is None else values}
        tensors |= {"key_padding_mask": given.hidden_keys} if masked else {}
        options = {"need_weights": need_weights, "average_attn_weights": False, "is_causal": False}
        inputs = Inputs(parameters=given.parameters, tensors=tensors, options=options)
        return Case(operator=OPERATOR.name, problem=problem, mode="inference"), inputs


def _call(implementation: Implementation, case: Case, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Call the implementation on a case.

    Raises: Refusal if the implementation does not support the case.
    """
    if reason := implementation.unsupported(case):
        raise Refusal(reason)
    module = implementation.build(OPERATOR.reference(case, inputs))
    with torch.no_grad():
        output, weights = implementation.prepare(module, case, inputs)(**inputs.arguments())
    implementation.synchronize()
    return output, weights


def _pass_values_through(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of the parameters in which the projections of values and outputs are the identity."""
    changed = {name: value.clone() for name, value in parameters.items()}
    changed["in_proj_weight"][2 * WIDTH :] = torch.eye(WIDTH)
    changed["in_proj_bias"][2 * WIDTH :] = 0
    changed["out_proj.weight"].copy_(torch.eye(WIDTH))
    changed["out_proj.bias"].zero_()
    return changed
