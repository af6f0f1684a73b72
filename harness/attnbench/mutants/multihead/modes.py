"""Mutants that are wrong only in some calls: in a call mode, on a fast path, or if several inputs are one object."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


class _SteeperWhen(Formula):
    """Base of mutants in which one code path has a wrong scale: 1.25 times the right scale.

    The wrong scale is used if ``applies`` returns true.
    """

    def applies(self) -> bool:
        raise NotImplementedError

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) * (1.25 if self.applies() else 1.0)


@mutant("forward_parity", "the code path for training mode without gradients has a wrong scale", mode="sampling")
class _TrainingWithoutGradients(_SteeperWhen):
    def applies(self) -> bool:
        return self.training and not torch.is_grad_enabled()


@mutant("forward_parity", "the code path for frozen parameters has a wrong scale", mode="frozen")
class _FrozenParameters(_SteeperWhen):
    def applies(self) -> bool:
        return torch.is_grad_enabled() and not self.out_proj.weight.requires_grad


@mutant(
    "forward_parity",
    "the code path for torch.inference_mode has a wrong scale; the path for torch.no_grad is right",
    mode="inference_mode",
)
class _InferenceMode(_SteeperWhen):
    def applies(self) -> bool:
        return torch.is_inference_mode_enabled()


@mutant("forward_parity", "the fast path for calls without gradients has a wrong scale", mode="inference")
class _WithoutGradients(_SteeperWhen):
    def applies(self) -> bool:
        return not (self.training or torch.is_grad_enabled() or torch.is_inference_mode_enabled())


@mutant("forward_parity", "the kernel for queries that require no gradient has a wrong scale", mode="tuning")
class _InputsTrackNothing(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        plain = torch.is_grad_enabled() and not given["query"].requires_grad
        return given | {"query": 1.25 * given["query"]} if plain else given


@mutant("forward_parity", "the code path for training mode lacks the output bias", mode="train")
class _TrainingWithoutOutputBias(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        bias = None if self.training else self.out_proj.bias
        return linear(heads.transpose(1, 2).flatten(2), self.out_proj.weight, bias)


@mutant("forward_parity", "without biases, the fast path in eval mode has a wrong scale (pytorch#97128)", bias=False)
class _EvalWithoutBias(_SteeperWhen):
    def applies(self) -> bool:
        return not self.training and self.in_proj_bias is None


@mutant(
    "weights_change_no_output",
    "attn_mask is dropped when weights are not requested (keras-team/keras#23038)",
    mask="bool2d",
    mode="inference",
    need_weights=True,
)
class _MaskDroppedWithoutWeights(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        fused = not (given["need_weights"] or torch.is_grad_enabled())
        return given | {"attn_mask": None, "is_causal": False} if fused else given


@mutant("weights_only_on_request", "need_weights is ignored: weights are always returned")
class _WeightsAlways(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        return given | {"need_weights": True}


@mutant(
    "weights_parity",
    "average_attn_weights is ignored: weights are always averaged (facebookresearch/fairseq#3365)",
    need_weights=True,
)
class _WeightsAlwaysAveraged(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        return given | {"average_attn_weights": True}


@mutant(
    "average_is_the_mean_of_heads",
    "the returned weights are summed over heads instead of averaged",
    need_weights=True,
    average_attn_weights=True,
)
class _WeightsSummedOverHeads(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        averaged = weights is not None and weights.dim() == output.dim()
        return output, weights * self.num_heads if averaged and weights is not None else weights


@mutant(
    "weights_of_hidden_keys_are_zero",
    "10⁻⁹ is added to the returned weights, so that their logarithm is finite",
    need_weights=True,
    mask="pad",
)
class _HiddenWeightsTiny(Formula):
    def return_weights(self, weights: Tensor) -> Tensor:
        return weights + 1e-9


@mutant("weights_parity", "each returned weight is replaced by the mean of its row", need_weights=True)
class _WeightsAveragedOverKeys(Formula):
    def return_weights(self, weights: Tensor) -> Tensor:
        return weights.mean(dim=-1, keepdim=True).expand_as(weights)


@mutant(
    "one_object_or_copies",
    "the fast path for self-attention (query is key is value) lacks the value bias",
    queries=7,
    self_attention=True,
)
class _SameObjectWithoutBias(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if query is key is value and self.in_proj_bias is not None:
            v = v - self.split(self.in_proj_bias.chunk(3)[2][None, None])
        return q, k, v


@mutant(
    "forward_parity",
    "if key and value are one tensor, the key projection is used for values too",
    key_is_value=True,
)
class _KeyProjectionForValues(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        return q, k, k if key is value and query is not key else v


@mutant(
    "forward_parity",
    "if query and key are one tensor, the query projection is used for keys too",
    queries=7,
    query_is_key=True,
)
class _QueryProjectionForKeys(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        return q, q if query is key and key is not value else k, v
