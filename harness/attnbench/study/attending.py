"""One implementation on the attention of the real sentence encoder: output and weights of every head."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Implementation, Inputs, Refusal
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.oracle import sentence_encoder
from attnbench.oracle.sentence_encoder import HEADS, WIDTH, LayerInput
from attnbench.plugins.adapters import load_implementation

__all__ = ["Attending", "StudyError"]

HEAD_DIM = WIDTH // HEADS


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
        if reason := sentence_encoder.missing():
            raise StudyError(reason)

    def texts(self, texts: list[str], length: int = 0) -> LayerInput:
        """What reaches the layer's attention on these texts, padded to ``length`` at least."""
        try:
            return sentence_encoder.texts_input(self.layer, texts, length)
        except ValueError as error:
            raise StudyError(str(error)) from error

    def __call__(self, given: LayerInput, *, masked: bool = True) -> tuple[Tensor, Tensor]:
        """Output (batch, length, 384) and weights (batch, 12, length, length), in float64.

        An implementation that returns no weights is asked for them by values that tell keys apart.

        Raises: StudyError where the implementation refuses.
        """
        implementation = load_implementation(self.name)
        computed = implementation.operator
        if computed != OPERATOR.name:
            raise StudyError(
                f"IMPLEMENTATION must compute {OPERATOR.name}, got {self.name!r}, which computes {computed}"
            )
        try:
            case, inputs = self._case(given, masked=masked, need_weights=True)
            if implementation.unsupported(case) is None:
                output, weights = _called(implementation, case, inputs)
            else:
                output, _ = _called(implementation, *self._case(given, masked=masked))
                weights = self._probed(implementation, given, masked=masked)
        except Refusal as refusal:
            raise StudyError(f"{self.name} refuses: {refusal}; name another implementation") from refusal
        return output.double(), weights.double()

    def _probed(self, implementation: Implementation, given: LayerInput, *, masked: bool) -> Tensor:
        """Weights from outputs: where values are rows of the identity, the output of a head is weights of keys.

        A value is 1 in one feature of every head, and projections of values and outputs change nothing. As many keys
        can be told apart in a call as a head is wide.

        Shape: (batch, heads, queries, keys).
        """
        batch, length, _ = given.hidden.shape
        through = replace(given, parameters=_through(given.parameters))
        columns = []
        for first in range(0, length, HEAD_DIM):
            count = min(HEAD_DIM, length - first)
            values = torch.zeros(batch, length, HEADS, HEAD_DIM)
            values[:, first : first + count] = torch.eye(count, HEAD_DIM)[:, None]
            output, _ = _called(implementation, *self._case(through, masked=masked, values=values.flatten(2)))
            columns.append(torch.unflatten(output, -1, (HEADS, HEAD_DIM))[..., :count].transpose(1, 2))
        return torch.cat(columns, dim=-1)

    def _case(
        self, given: LayerInput, *, masked: bool, need_weights: bool = False, values: Tensor | None = None
    ) -> tuple[Case, Inputs]:
        """The call as a case, so that an implementation can refuse it, and its inputs."""
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


def _called(implementation: Implementation, case: Case, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """What a call returns.

    Raises: Refusal.
    """
    if reason := implementation.unsupported(case):
        raise Refusal(reason)
    module = implementation.build(OPERATOR.reference(case, inputs))
    with torch.no_grad():
        output, weights = implementation.prepare(module, case, inputs)(**inputs.arguments())
    implementation.synchronize()
    return output, weights


def _through(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters with projections of values and of outputs that change nothing."""
    changed = {name: value.clone() for name, value in parameters.items()}
    changed["in_proj_weight"][2 * WIDTH :] = torch.eye(WIDTH)
    changed["in_proj_bias"][2 * WIDTH :] = 0
    changed["out_proj.weight"].copy_(torch.eye(WIDTH))
    changed["out_proj.bias"].zero_()
    return changed
