"""One implementation on the attention of the real sentence encoder: output and weights of every head."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench import encoder
from attnbench.adoption import load_implementation
from attnbench.cases import Case
from attnbench.encoder import HEADS, WIDTH, LayerInput
from attnbench.interface import Inputs, Refusal
from attnbench.operators.multihead import OPERATOR, MultiheadProblem

__all__ = ["Attending", "StudyError"]


class StudyError(Exception):
    """What keeps a study from being made, in one line with the remedy."""


@dataclass(frozen=True, slots=True)
class Attending:
    """An implementation by name, as the attention of a layer of the encoder.

    Raises: StudyError where the encoder is missing; PluginError where the name leads nowhere.
    """

    name: str
    layer: int

    def __post_init__(self) -> None:
        """Say what is missing before anything is computed."""
        if reason := encoder.missing():
            raise StudyError(reason)

    def texts(self, texts: list[str], length: int = 0) -> LayerInput:
        """What reaches the layer's attention on these texts, padded to ``length`` at least."""
        try:
            return encoder.texts_input(self.layer, texts, length)
        except ValueError as error:
            raise StudyError(str(error)) from error

    def __call__(self, given: LayerInput, *, masked: bool = True) -> tuple[Tensor, Tensor]:
        """Output (batch, length, 384) and weights (batch, 12, length, length), in float64.

        Raises: StudyError where the implementation refuses.
        """
        case, inputs = self._case(given, masked=masked)
        implementation = load_implementation(self.name)
        if implementation.operator != OPERATOR.name:
            raise StudyError(f"{self.name} computes {implementation.operator}; this study needs a {OPERATOR.name}")
        if reason := implementation.unsupported(case):
            raise self._refused(reason)
        module = implementation.build(OPERATOR.reference(case, inputs))
        try:
            with torch.no_grad():
                output, weights = implementation.prepare(module, case, inputs)(**inputs.arguments())
        except Refusal as refusal:
            raise self._refused(str(refusal)) from refusal
        implementation.synchronize()
        return output.double(), weights.double()

    def _refused(self, reason: str) -> StudyError:
        return StudyError(f"{self.name} refuses: {reason}; name an implementation that returns weights, such as sdpa")

    def _case(self, given: LayerInput, *, masked: bool) -> tuple[Case, Inputs]:
        """The call as a case, so that an implementation can refuse it, and its inputs."""
        batch, length, _ = given.hidden.shape
        problem = MultiheadProblem(
            batch=batch, queries=length, keys=length, embed_dim=WIDTH, num_heads=HEADS, bias=True, batch_first=True,
            self_attention=True, need_weights=True, mask="pad" if masked else "none", regime=f"minilm{self.layer}",
        )  # fmt: skip
        tensors = {"query": given.hidden, "key": given.hidden, "value": given.hidden}
        tensors |= {"key_padding_mask": given.hidden_keys} if masked else {}
        options = {"need_weights": True, "average_attn_weights": False, "is_causal": False}
        inputs = Inputs(parameters=given.parameters, tensors=tensors, options=options)
        return Case(operator=OPERATOR.name, problem=problem, mode="inference"), inputs
