"""Mistakes in the elementary mechanisms, as they are seen in teaching code."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnbench.cases import Case, Dtype, Mode
from attnbench.masks import softmax_over_visible
from attnbench.mutants.mutant import Mutant, Written, Zoo
from attnbench.operators import mechanisms
from attnbench.operators.mechanisms import Mechanism

__all__ = ["ZOOS", "Steps", "mistake"]

Module = TypeVar("Module", bound=type[nn.Module])
mistake: list[Mutant] = []

# Sizes of the case that shows a mistake: those of the first cases of every mechanism.
BATCH, LENGTH, WIDTH, OUT_WIDTH, HEADS = 2, 5, 6, 5, 3


def _mistake(
    operator: Mechanism, caught_by: str, why: str, *, mask: str = "none", dtype: Dtype = "float64", mode: Mode = "eval"
) -> Callable[[Module], Module]:
    """Mark a module class as a mistake in a mechanism, and say on which case it shows."""
    names = operator.problem.__dataclass_fields__
    own: dict[str, Any] = {name: size for name, size in (("out_width", OUT_WIDTH), ("heads", HEADS)) if name in names}
    problem = operator.problem(sequences=BATCH, length=LENGTH, width=WIDTH, mask=mask, **own)
    case = Case(operator=operator.name, problem=problem, dtype=dtype, mode=mode)

    def mark(module: Module) -> Module:
        implementation = Written(module, operator=operator.name)
        mistake.append(Mutant(implementation=implementation, caught_by=caught_by, why=why, shown_by=case.id))
        return module

    return mark


class Steps(nn.Module):
    """Attention over one tensor of tokens, a step a method; as it stands here, raw self-attention."""

    def __init__(self, reference: nn.Module) -> None:
        super().__init__()
        for name, value in reference.named_parameters():
            self.register_parameter(name, nn.Parameter(value.detach().clone()))

    def forward(
        self, tokens: Tensor, key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Score, hide, normalise, sum up."""
        hide = self.hidden(key_padding_mask, attn_mask)
        weights = self.normalise(self.score(tokens), hide)
        return self.total(weights, tokens), weights

    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        """What either mask hides."""
        padding = None if padding is None else padding[:, None, :]
        if padding is None or later is None:
            return later if padding is None else padding
        return padding | later

    def score(self, tokens: Tensor) -> Tensor:
        """Products of all pairs."""
        return tokens @ tokens.mT

    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        """Softmax over what is visible."""
        return softmax_over_visible(scores if hide is None else scores.masked_fill(hide, -math.inf))

    def total(self, weights: Tensor, tokens: Tensor) -> Tensor:
        """Weights times tokens."""
        return weights @ tokens


@_mistake(
    mechanisms.RAW_SELF_ATTENTION,
    "shares_sum_to_one",
    "a keep-mask passed where a hide-mask is expected",
    mask="pad",
    mode="frozen",
)
class RawKeepForHide(Steps):
    """Padding attends, and is attended to, alone."""

    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        """The other polarity."""
        hide = super().hidden(padding, later)
        return None if hide is None else ~hide


@_mistake(
    mechanisms.RAW_SELF_ATTENTION,
    "shares_sum_to_one",
    "-1e9 as fill: a row of which everything is hidden is spread evenly over what it must not see",
    mask="padempty",
    mode="frozen",
)
class RawFilledWithAMillion(Steps):
    """A number in place of minus infinity."""

    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        """A fill that is a number like any other."""
        return torch.softmax(scores if hide is None else scores.masked_fill(hide, -1e9), dim=-1)


@_mistake(
    mechanisms.RAW_SELF_ATTENTION,
    "shares_sum_to_one",
    ".any() where .all() was meant: a row of which anything is hidden is taken for one of which everything is",
    mask="pad",
    mode="frozen",
)
class RawAnyForAll(Steps):
    """Rows with one hidden key get nothing."""

    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        """Zero wherever a key is hidden."""
        weights = super().normalise(scores, hide)
        return weights if hide is None else weights.masked_fill(hide.any(dim=-1, keepdim=True), 0.0)


@_mistake(
    mechanisms.RAW_SELF_ATTENTION,
    "padded_tokens_cannot_leak",
    "padding is multiplied away after the softmax, whose denominator it is in by then",
    mask="pad",
    mode="frozen",
)
class RawHiddenAfterTheSoftmax(Steps):
    """What is hidden still takes its share."""

    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        """Mask last."""
        weights = torch.softmax(scores, dim=-1)
        return weights if hide is None else weights * ~hide


@_mistake(
    mechanisms.RAW_SELF_ATTENTION,
    "input_gradients",
    "weights filled in place behind autograd's back, which needs them for its backward",
    mask="pad",
    mode="frozen",
)
class RawFilledInPlace(Steps):
    """The softmax's own result is written to."""

    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        """In place, and out of autograd's sight."""
        weights = torch.softmax(scores, dim=-1)
        if hide is not None:
            weights.data.masked_fill_(hide, 0.0)
        return weights


@_mistake(
    mechanisms.RAW_SELF_ATTENTION,
    "sequences_do_not_mix",
    "the softmax over the first dimension, which was the keys' before there was a batch",
    mode="frozen",
)
class RawSoftmaxOverTheBatch(Steps):
    """Sequences compete with one another."""

    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        """Dimension 0."""
        return torch.softmax(scores if hide is None else scores.masked_fill(hide, -math.inf), dim=0)


@_mistake(
    mechanisms.RAW_SELF_ATTENTION,
    "further_padding_changes_nothing",
    "scores brought to one spread first, measured over padding too",
    mode="frozen",
)
class RawSpreadOverEverything(Steps):
    """A temperature that depends on what is hidden."""

    def score(self, tokens: Tensor) -> Tensor:
        """Divided by the deviation of all scores of a row."""
        scores = super().score(tokens)
        return scores / (1 + scores.std(dim=-1, keepdim=True))


class _Scaled(Steps):
    """Scaled self-attention with weights."""

    w_q: Tensor
    w_k: Tensor
    w_v: Tensor

    def score(self, tokens: Tensor) -> Tensor:
        """Queries times keys, scaled."""
        return (tokens @ self.w_q) @ (tokens @ self.w_k).mT / math.sqrt(self.width(tokens))

    def width(self, tokens: Tensor) -> int:  # noqa: ARG002
        """That of a key."""
        return int(self.w_k.shape[-1])

    def total(self, weights: Tensor, tokens: Tensor) -> Tensor:
        """Weights times values."""
        return weights @ (tokens @ self.w_v)


@_mistake(
    mechanisms.SCALED_SELF_ATTENTION,
    "shares_parity",
    "rescaling by the width of the model in place of that of the keys",
)
class ScaledByTheModelWidth(_Scaled):
    """Rows a little flatter than they should be."""

    def width(self, tokens: Tensor) -> int:
        """The wrong one."""
        return int(tokens.shape[-1])


class _Dot(Steps):
    """Pooling with a learned query."""

    query: Tensor

    def forward(
        self, tokens: Tensor, key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """One vector, and the weights of its tokens."""
        output, weights = super().forward(tokens, key_padding_mask, attn_mask)
        return output[:, 0], weights[:, 0]

    def score(self, tokens: Tensor) -> Tensor:
        """Tokens times the query."""
        return (tokens @ self.query).mT


@_mistake(
    mechanisms.DOT_PRODUCT_POOLING,
    "order_of_tokens_is_free",
    "a term for the place of a token left in the score",
)
class DotWithAPlace(_Dot):
    """Later tokens weigh less."""

    def score(self, tokens: Tensor) -> Tensor:
        """A slope over places."""
        scores = super().score(tokens)
        return scores - 0.1 * torch.arange(scores.shape[-1], dtype=scores.dtype, device=scores.device)


@_mistake(
    mechanisms.DOT_PRODUCT_POOLING,
    "padded_tokens_cannot_leak",
    "pooling without the padding mask: the end of a batch's sequences has a say in all of them",
    mask="pad",
)
class DotWithoutTheMask(_Dot):
    """The mask is taken, and not used."""

    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:  # noqa: ARG002
        """Nothing."""
        return None


class _Additive(_Dot):
    """Pooling with an additive score."""

    w_q: Tensor
    w_k: Tensor
    w: Tensor

    def score(self, tokens: Tensor) -> Tensor:
        """A hidden layer of both."""
        return (torch.tanh(tokens @ self.w_k.mT + self.query @ self.w_q.mT) @ self.w).mT


@_mistake(
    mechanisms.ADDITIVE_POOLING,
    "repeats_itself",
    "a layer created inside forward: new random weights at every call, and nothing to train",
)
class AdditiveLayerMadeInForward(_Additive):
    """The score's layer is drawn anew."""

    def score(self, tokens: Tensor) -> Tensor:
        """A layer of the moment."""
        layer = nn.Linear(tokens.shape[-1], tokens.shape[-1], bias=False, dtype=tokens.dtype, device=tokens.device)
        return (torch.tanh(layer(tokens) + self.query @ self.w_q.mT) @ self.w).mT


class _Single(_Scaled):
    """One head with an output projection."""

    w_out: Tensor

    def score(self, tokens: Tensor) -> Tensor:
        """Queries times keys, scaled."""
        return (tokens @ self.w_q.mT) @ (tokens @ self.w_k.mT).mT / math.sqrt(self.width(tokens))

    def total(self, weights: Tensor, tokens: Tensor) -> Tensor:
        """Weights times values, projected."""
        return weights @ (tokens @ self.w_v.mT) @ self.w_out.mT


@_mistake(
    mechanisms.SINGLE_HEAD,
    "shares_sum_to_one",
    "the branch of the attention mask uses the padding mask instead, which was copied from above",
    mask="causal+pad",
)
class SinglePaddingMaskTwice(_Single):
    """Later tokens are seen."""

    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        """Padding, and padding again."""
        return super().hidden(padding, None if later is None or padding is None else padding[:, None, :])


@_mistake(
    mechanisms.RESIDUAL_BLOCK,
    "parameter_gradients",
    "a LayerNorm created at every call: its weights are 1 and 0 for ever, and those of the module are never used",
)
class BlockNormMadeInForward(Steps):
    """The norm of the moment."""

    in_proj_weight: Tensor
    in_proj_bias: Tensor
    out_proj_weight: Tensor
    out_proj_bias: Tensor

    def forward(self, tokens: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        """Weights 1, biases 0."""
        num_heads, masks = given.pop("num_heads"), given
        rows = tokens.transpose(0, 1)
        attended, weights = nn.functional.multi_head_attention_forward(
            rows, rows, rows, tokens.shape[-1], num_heads, self.in_proj_weight, self.in_proj_bias,
            bias_k=None, bias_v=None, add_zero_attn=False, dropout_p=0.0, out_proj_weight=self.out_proj_weight,
            out_proj_bias=self.out_proj_bias, **masks,
        )  # fmt: skip
        return nn.functional.layer_norm(tokens + attended.transpose(0, 1), tokens.shape[-1:]), weights


ZOOS = {
    name: Zoo(mutants=tuple(mutant for mutant in mistake if mutant.implementation.operator == name))
    for name in mechanisms.MECHANISMS
}
