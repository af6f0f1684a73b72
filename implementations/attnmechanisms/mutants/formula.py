"""The right mechanisms, one step a method; a mutant replaces one of them."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.interface import Implementation
from attnbench.masks import softmax_over_visible
from attnbench.mutants.mutant import ModuleImplementation
from attnmechanisms.operators.formulas import EPSILON

__all__ = ["RIGHT", "Additive", "Block", "Dot", "Scaled", "Single", "Steps", "changed"]


class Steps(nn.Module):
    """Attention over one tensor of tokens; as it stands here, raw self-attention.

    In order: ``receive``, ``score``, ``hidden``, ``normalise``, ``values``, ``total``, ``told``, ``hand_over``.

    Shape: tokens (batch, length, width), scores and weights (batch, queries, keys).
    """

    def __init__(self, reference: nn.Module) -> None:
        super().__init__()
        for name, value in reference.named_parameters():
            self.register_parameter(name, nn.Parameter(value.detach().clone()))

    def forward(
        self, tokens: Tensor, key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """Score, hide, normalise, sum up."""
        tokens = self.receive(tokens)
        weights = self.normalise(self.score(tokens), self.hidden(key_padding_mask, attn_mask))
        return self.hand_over(self.total(weights, tokens), self.told(weights))

    def receive(self, tokens: Tensor) -> Tensor:
        """Tokens as they are used."""
        return tokens

    def project(self, tokens: Tensor, name: str) -> Tensor:  # noqa: ARG002
        """Queries, keys or values, by the name of their weights."""
        return tokens

    def key_width(self, tokens: Tensor) -> int:  # noqa: ARG002
        """By whose root scores are divided."""
        return 1

    def score(self, tokens: Tensor) -> Tensor:
        """Products of all queries and keys."""
        return self.project(tokens, "w_q") @ self.project(tokens, "w_k").mT / math.sqrt(self.key_width(tokens))

    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        """What either mask hides."""
        padding = None if padding is None else padding[:, None, :]
        if padding is None or later is None:
            return later if padding is None else padding
        return padding | later

    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        """Softmax over what is visible."""
        return softmax_over_visible(scores if hide is None else scores.masked_fill(hide, -math.inf))

    def values(self, tokens: Tensor) -> Tensor:
        """What is summed up."""
        return self.project(tokens, "w_v")

    def total(self, weights: Tensor, tokens: Tensor) -> Tensor:
        """Weights times values."""
        return weights @ self.values(tokens)

    def told(self, weights: Tensor) -> Tensor:
        """Weights that are returned."""
        return weights

    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """What the call returns."""
        return output, weights


class Scaled(Steps):
    """Scaled self-attention with weights."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        """Tokens times weights."""
        return tokens @ self.get_parameter(name)

    def key_width(self, tokens: Tensor) -> int:  # noqa: ARG002
        """That of a key."""
        return self.get_parameter("w_k").shape[-1]


class Single(Scaled):
    """One head with an output projection."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        """Tokens times transposed weights."""
        return tokens @ self.get_parameter(name).mT

    def total(self, weights: Tensor, tokens: Tensor) -> Tensor:
        """Weights times values, projected."""
        return self.project(super().total(weights, tokens), "w_out")


class Dot(Steps):
    """Pooling with a learned query."""

    query: Tensor

    def score(self, tokens: Tensor) -> Tensor:
        """Tokens times the query. Shape: (batch, 1, length)."""
        return (tokens @ self.query).mT

    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """One vector, and the weights of its tokens."""
        return output[:, 0], weights[:, 0]


class Additive(Dot):
    """Pooling with an additive score."""

    w_q: Tensor
    w_k: Tensor
    w: Tensor

    def score(self, tokens: Tensor) -> Tensor:
        """A hidden layer of both."""
        return (self.bend(tokens @ self.w_k.mT + self.query @ self.w_q.mT) @ self.w).mT

    def bend(self, layer: Tensor) -> Tensor:
        """What keeps scores between −Σ|w| and Σ|w|."""
        return torch.tanh(layer)


class Block(Steps):
    """Multi-head attention inside LayerNorm(x + attention(x)). Shape of scores: (batch, heads, queries, keys)."""

    in_proj_weight: Tensor
    in_proj_bias: Tensor
    out_proj_weight: Tensor
    out_proj_bias: Tensor
    norm_weight: Tensor
    norm_bias: Tensor

    def forward(self, tokens: Tensor, *args: Any, num_heads: int = 1, **given: Any) -> tuple[Tensor, Tensor]:
        """The number of heads is kept for the steps."""
        self.num_heads = num_heads
        return super().forward(tokens, *args, **given)

    def project(self, tokens: Tensor, name: str) -> Tensor:
        """Queries, keys or values of every head."""
        place = ("w_q", "w_k", "w_v").index(name)
        weight, bias = self.in_proj_weight.chunk(3)[place], self.in_proj_bias.chunk(3)[place]
        return self.split(tokens @ weight.mT + bias)

    def split(self, features: Tensor) -> Tensor:
        """Heads out of features. Shape: (batch, length, width) to (batch, heads, length, head_dim)."""
        return torch.unflatten(features, -1, (self.num_heads, -1)).transpose(1, 2)

    def key_width(self, tokens: Tensor) -> int:
        """That of a head."""
        return tokens.shape[-1] // self.num_heads

    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        """The same for every head."""
        hide = super().hidden(padding, later)
        return hide if hide is None or hide.dim() == 2 else hide[:, None]

    def total(self, weights: Tensor, tokens: Tensor) -> Tensor:
        """Heads merged and projected, added to the tokens, normalised."""
        merged = super().total(weights, tokens).transpose(1, 2).flatten(2)
        return self.add_and_norm(tokens, merged @ self.out_proj_weight.mT + self.out_proj_bias)

    def add_and_norm(self, tokens: Tensor, attended: Tensor) -> Tensor:
        """Residual and norm."""
        return self.norm(tokens + attended)

    def norm(self, tokens: Tensor) -> Tensor:
        """LayerNorm."""
        return nn.functional.layer_norm(tokens, tokens.shape[-1:], self.norm_weight, self.norm_bias, EPSILON)

    def told(self, weights: Tensor) -> Tensor:
        """The mean over heads."""
        return weights.mean(dim=1)


# By operator.
RIGHT: dict[str, type[Steps]] = {
    "raw_self_attention": Steps,
    "scaled_self_attention": Scaled,
    "additive_pooling": Additive,
    "dot_product_pooling": Dot,
    "single_head": Single,
    "residual_block": Block,
}


def changed(operator: str, steps: type[Steps]) -> Implementation:
    """The mechanism of an operator with some steps replaced: what these call by ``super()`` is its own."""
    right = RIGHT[operator]
    bases = (steps,) if issubclass(steps, right) else (steps, right)
    implementation = ModuleImplementation(type(steps.__name__, bases, {}), operator=operator)
    implementation.name = f"{operator}_{implementation.name}"
    return implementation
