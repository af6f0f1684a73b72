"""The correct mechanisms with a method for each step; a mutant overrides one or more of the methods."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.interface import Implementation
from attnbench.masks import softmax_over_visible
from attnbench.mutants.mutant import ModuleImplementation
from attnmechanisms.operators.formulas import EPSILON

__all__ = ["FORMULAS", "Additive", "Block", "Dot", "MechanismFormula", "Scaled", "Single", "replace_steps"]


class MechanismFormula(nn.Module):
    """Raw self-attention in steps; a subclass overrides steps for another mechanism.

    The steps, in order: ``read_tokens``, ``score``, ``combine_masks``, ``normalise``, ``project_values``,
    ``sum_values``, ``return_weights``, ``return_result``. Masks are true where a key is hidden.

    Shape: tokens (batch, length, width), scores and weights (batch, queries, keys).
    """

    def __init__(self, reference: nn.Module) -> None:
        super().__init__()
        for name, value in reference.named_parameters():
            self.register_parameter(name, nn.Parameter(value.detach().clone()))

    def forward(
        self, tokens: Tensor, key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """Run all steps, from ``read_tokens`` to ``return_result``."""
        tokens = self.read_tokens(tokens)
        weights = self.normalise(self.score(tokens), self.combine_masks(key_padding_mask, attn_mask))
        return self.return_result(self.sum_values(weights, tokens), self.return_weights(weights))

    def read_tokens(self, tokens: Tensor) -> Tensor:
        """Return the tokens that the other steps use."""
        return tokens

    def project(self, tokens: Tensor, name: str) -> Tensor:  # noqa: ARG002
        """Compute the queries, keys or values; ``name`` is the name of their projection weight."""
        return tokens

    def key_width(self, tokens: Tensor) -> int:  # noqa: ARG002
        """Return the number whose square root divides the scores."""
        return 1

    def score(self, tokens: Tensor) -> Tensor:
        """Compute the scaled dot products of all queries and keys."""
        return self.project(tokens, "w_q") @ self.project(tokens, "w_k").mT / math.sqrt(self.key_width(tokens))

    def combine_masks(self, padding: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
        """Combine both masks: a key is hidden where either mask hides it."""
        padding = None if padding is None else padding[:, None, :]
        if padding is None or attn_mask is None:
            return attn_mask if padding is None else padding
        return padding | attn_mask

    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        """Return attention weights: the softmax over visible keys, or 0 in a fully masked row."""
        return softmax_over_visible(scores if hide is None else scores.masked_fill(hide, -math.inf))

    def project_values(self, tokens: Tensor) -> Tensor:
        """Compute the values."""
        return self.project(tokens, "w_v")

    def sum_values(self, weights: Tensor, tokens: Tensor) -> Tensor:
        """Compute the weighted sum of the values."""
        return weights @ self.project_values(tokens)

    def return_weights(self, weights: Tensor) -> Tensor:
        """Return the attention weights that the call returns."""
        return weights

    def return_result(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return output and attention weights as the call returns them."""
        return output, weights


class Scaled(MechanismFormula):
    """Scaled self-attention with projection weights."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        """Multiply the tokens by the projection weight ``name``."""
        return tokens @ self.get_parameter(name)

    def key_width(self, tokens: Tensor) -> int:  # noqa: ARG002
        """Return the width of a key."""
        return self.get_parameter("w_k").shape[-1]


class Single(Scaled):
    """Single-head attention with an output projection."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        """Multiply the tokens by the transposed projection weight ``name``."""
        return tokens @ self.get_parameter(name).mT

    def sum_values(self, weights: Tensor, tokens: Tensor) -> Tensor:
        """Compute the weighted sum of the values and project it."""
        return self.project(super().sum_values(weights, tokens), "w_out")


class Dot(MechanismFormula):
    """Dot-product attention pooling with a learned query."""

    query: Tensor

    def score(self, tokens: Tensor) -> Tensor:
        """Multiply the tokens by the query. Shape: (batch, 1, length)."""
        return (tokens @ self.query).mT

    def return_result(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return one vector for each sequence, and the weights of its tokens."""
        return output[:, 0], weights[:, 0]


class Additive(Dot):
    """Additive attention pooling with a learned query."""

    w_q: Tensor
    w_k: Tensor
    w: Tensor

    def score(self, tokens: Tensor) -> Tensor:
        """Compute the score of each token by a hidden layer of token and query.

        Shape: returns (batch, 1, length).
        """
        return (self.apply_activation(tokens @ self.w_k.mT + self.query @ self.w_q.mT) @ self.w).mT

    def apply_activation(self, layer: Tensor) -> Tensor:
        """Apply tanh, which keeps scores between −Σ|w| and Σ|w|."""
        return torch.tanh(layer)


class Block(MechanismFormula):
    """Multi-head attention inside LayerNorm(x + attention(x)). Shape of scores: (batch, heads, queries, keys)."""

    in_proj_weight: Tensor
    in_proj_bias: Tensor
    out_proj_weight: Tensor
    out_proj_bias: Tensor
    norm_weight: Tensor
    norm_bias: Tensor

    def forward(self, tokens: Tensor, *args: Any, num_heads: int = 1, **given: Any) -> tuple[Tensor, Tensor]:
        """Store the number of heads, which some steps use, and run all steps."""
        self.num_heads = num_heads
        return super().forward(tokens, *args, **given)

    def project(self, tokens: Tensor, name: str) -> Tensor:
        """Compute queries, keys or values of every head."""
        place = ("w_q", "w_k", "w_v").index(name)
        weight, bias = self.in_proj_weight.chunk(3)[place], self.in_proj_bias.chunk(3)[place]
        return self.split(tokens @ weight.mT + bias)

    def split(self, features: Tensor) -> Tensor:
        """Split features into heads. Shape: (batch, length, width) to (batch, heads, length, head_dim)."""
        return torch.unflatten(features, -1, (self.num_heads, -1)).transpose(1, 2)

    def key_width(self, tokens: Tensor) -> int:
        """Return the width of a head."""
        return tokens.shape[-1] // self.num_heads

    def combine_masks(self, padding: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
        """Combine both masks; if the result has a batch axis, add an axis for heads."""
        hide = super().combine_masks(padding, attn_mask)
        return hide if hide is None or hide.dim() == 2 else hide[:, None]

    def sum_values(self, weights: Tensor, tokens: Tensor) -> Tensor:
        """Sum the values, merge and project the heads, add the tokens, and apply LayerNorm."""
        merged = super().sum_values(weights, tokens).transpose(1, 2).flatten(2)
        return self.add_and_norm(tokens, merged @ self.out_proj_weight.mT + self.out_proj_bias)

    def add_and_norm(self, tokens: Tensor, attended: Tensor) -> Tensor:
        """Add the tokens to the output of attention, and apply LayerNorm."""
        return self.apply_norm(tokens + attended)

    def apply_norm(self, tokens: Tensor) -> Tensor:
        """Apply LayerNorm over the features of each token."""
        return nn.functional.layer_norm(tokens, tokens.shape[-1:], self.norm_weight, self.norm_bias, EPSILON)

    def return_weights(self, weights: Tensor) -> Tensor:
        """Return the mean of the weights over heads."""
        return weights.mean(dim=1)


# Classes of the correct mechanisms. The key of a class is the name of its operator.
FORMULAS: dict[str, type[MechanismFormula]] = {
    "raw_self_attention": MechanismFormula,
    "scaled_self_attention": Scaled,
    "additive_pooling": Additive,
    "dot_product_pooling": Dot,
    "single_head": Single,
    "residual_block": Block,
}


def replace_steps(operator: str, steps: type[MechanismFormula]) -> Implementation:
    """Make an implementation of an operator in which some steps are replaced.

    ``super()`` in a new step calls the step that it replaces.
    """
    formula = FORMULAS[operator]
    bases = (steps,) if issubclass(steps, formula) else (steps, formula)
    implementation = ModuleImplementation(type(steps.__name__, bases, {}), operator=operator)
    implementation.name = f"{operator}_{implementation.name}"
    return implementation
