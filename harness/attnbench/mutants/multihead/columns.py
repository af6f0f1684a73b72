"""Mutants of the extra keys that add_bias_kv and add_zero_attn append."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnbench.mutants.autograd import replace_gradient
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant(
    "weights_parity",
    "the returned weights have the column of add_zero_attn before the column of add_bias_kv",
    add_bias_kv=True,
    add_zero_attn=True,
    need_weights=True,
)
class _ColumnsSwapped(Formula):
    def return_weights(self, weights: Tensor) -> Tensor:
        if self.columns < 2:
            return weights
        return torch.cat([weights[..., :-2], weights[..., -1:], weights[..., -2:-1]], dim=-1)


@mutant(
    "weights_parity",
    "the returned weights lack the column of add_zero_attn",
    add_zero_attn=True,
    need_weights=True,
)
class _ZeroColumnNotTold(Formula):
    def return_weights(self, weights: Tensor) -> Tensor:
        return weights[..., :-1] if self.add_zero_attn else weights


@mutant(
    "forward_parity",
    "masks are extended to the extra key columns, but hide these columns",
    add_bias_kv=True,
    mask="bool2d",
)
class _ColumnsHidden(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or self.columns == 0:
            return super().apply_mask(logits, mask)
        hidden = False if mask.dtype == torch.bool else -torch.inf
        return super().apply_mask(logits, pad(mask[..., : -self.columns], (0, self.columns), value=hidden))


@mutant(
    "forward_parity",
    "masks are extended at their front, but the extra key columns are appended at the end",
    add_zero_attn=True,
    mask="bool2d",
)
class _MaskPaddedInFront(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return super().apply_mask(logits, mask if mask is None else mask.roll(self.columns, -1))


@mutant(
    "forward_parity",
    "the key projection lacks its bias; this changes outputs only if there are extra key columns",
    add_zero_attn=True,
)
class _KeyBiasMissing(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if self.in_proj_bias is not None:
            k = k - self.split(self.in_proj_bias.chunk(3)[1][None, None])
        return q, k, v


@mutant("forward_parity", "bias_k is used in place of bias_v", add_bias_kv=True)
class _LearnedValueIsKey(Formula):
    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = super().extend(k, v)
        if self.bias_k is None:
            return k, v
        column = -2 if self.add_zero_attn else -1
        v = torch.cat([v[:, :, :column], k[:, :, column:]], dim=2)
        return k, v


@mutant(
    "forward_parity",
    "the zero key and value are appended before the projection, and so get the bias of the projection",
    add_zero_attn=True,
)
class _ZeroColumnProjected(Formula):
    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = super().extend(k, v)
        if not self.add_zero_attn or self.in_proj_bias is None:
            return k, v
        _, bias_k, bias_v = (self.split(bias[None, None]).to(k.dtype) for bias in self.in_proj_bias.chunk(3))
        batch = k.shape[0]
        k = torch.cat([k[:, :, :-1], bias_k.expand(batch, -1, -1, -1)], dim=2)
        v = torch.cat([v[:, :, :-1], bias_v.expand(batch, -1, -1, -1)], dim=2)
        return k, v


@mutant(
    "forward_parity",
    "a row is set to 0 if the masks hide all of the caller's keys, although the extra key columns are visible",
    add_zero_attn=True,
    add_bias_kv=True,
    mask="padempty",
)
class _EmptyRowsForgetColumns(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        shares = super().normalise(logits)
        if self.columns == 0:
            return shares
        return shares.masked_fill((logits[..., : -self.columns] == -torch.inf).all(dim=-1, keepdim=True), 0.0)


@mutant("parameter_gradients", "the gradient of bias_k is taken from the first sequence only", add_bias_kv=True)
class _LearnedKeyGradientOfOne(Formula):
    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = super().extend(k, v)
        if self.bias_k is None:
            return k, v
        column = k.shape[2] - self.columns
        learned = k[:, :, column : column + 1]
        one = torch.cat([learned[:1], learned[1:].detach()])
        return torch.cat([k[:, :, :column], replace_gradient(learned, one), k[:, :, column + 1 :]], dim=2), v
