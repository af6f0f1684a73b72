"""Padding removed instead of hidden: tokens are packed before they are projected, and padding costs nothing.

``varlen`` removes padded keys and values, and answers every query. ``varlen_packed`` removes padded tokens as queries
too, where query and key are one tensor, and puts zeros in their place: rows of padded queries are its own.

Of the tokens that are left, those of all sequences stand one after another for the projections
(``shared_projection``); attention is computed for each sequence b by itself, over its n_b tokens, without a mask by the
quicker of two ways (``by_size``):

    O_b = softmax(scale · Q_b K_bᵀ + M_b) V_b         Q_b (queries or n_b, head_dim), K_b and V_b (n_b, head_dim)

Padding is what key_padding_mask hides: true, or minus infinity. Finite numbers in it are added. Where a mask of split
heads comes without a key_padding_mask (from a model whose layers keep their own projections), ``varlen`` removes the
keys that it hides from every query.

Source: Zhai et al., ByteTransformer, 2022, https://arxiv.org/abs/2210.03052.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from attnbench.cases import Case
from attnbench.interface import Implementation, Policies, Refusal
from attnbench.masks import combined, extended, reference_mask
from attnzoo.by_size import attention_of_each
from attnzoo.shared_projection import NO_WEIGHTS, SharedProjectionAttention

__all__ = ["VARLEN", "VARLEN_PACKED", "Packing", "VarlenAttention", "VarlenPackedAttention"]

UNKNOWN_QUERIES = "which queries are padding is known only where query and key are one tensor"
NO_EXPORT = "torch.export cannot follow lengths that are read from a mask"


@dataclass(frozen=True, slots=True)
class Packing:
    """Which tokens of a batch are left, in order.

    Shape: places (tokens left), counted through the whole batch.
    """

    batch: int
    length: int
    # Tokens left of each sequence.
    lengths: list[int]
    places: Tensor

    @classmethod
    def of(cls, keep: Tensor) -> "Packing":
        """Packing of the tokens that are true. Shape: keep (batch, length)."""
        places = keep.flatten().nonzero().flatten()
        return cls(keep.shape[0], keep.shape[1], keep.sum(dim=1).tolist(), places)

    def packed(self, tokens: Tensor) -> Tensor:
        """Tokens that are left: (batch, length, width) to (tokens left, width)."""
        return tokens.flatten(0, 1).index_select(0, self.places)

    def restored(self, packed: Tensor) -> Tensor:
        """Tokens at their places, and zeros elsewhere: (tokens left, width) to (batch, length, width)."""
        zeros = packed.new_zeros(self.batch * self.length, packed.shape[-1])
        return zeros.index_copy_(0, self.places, packed).view(self.batch, self.length, packed.shape[-1])

    def within(self) -> list[Tensor]:
        """Places of each sequence's tokens, counted from its beginning."""
        parts = torch.split(self.places, self.lengths)
        return [part - number * self.length for number, part in enumerate(parts)]


class VarlenAttention(SharedProjectionAttention):
    """Multi-head attention that never projects, nor sees, a padded key."""

    def under_masks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Every query of a sequence over its keys that are left."""
        if need_weights:
            raise Refusal(NO_WEIGHTS)
        if key_padding_mask is None or not len(query):
            return super().under_masks(
                query,
                key,
                value,
                attn_mask=attn_mask,
                key_padding_mask=key_padding_mask,
                is_causal=is_causal,
                need_weights=False,
            )
        packing = Packing.of(_kept(key_padding_mask))
        packed_key = packing.packed(key)[None]
        packed_value = packed_key if value is key else packing.packed(value)[None]
        q, k, v = self.project(query, packed_key, packed_value)
        masks = self._masks(attn_mask, key_padding_mask, packing, q.dtype)
        attended = self._of_sequences(q.unbind(), k, v, packing, masks)
        return self.project_back(attended.reshape(query.shape)), None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attention on split heads, without the keys that a mask of one head's worth hides from every query.

        Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim).
        """
        one_head = mask is not None and mask.dtype == torch.bool and mask.dim() == 4 and mask.shape[:2] == (len(q), 1)
        if need_weights or mask is None or not one_head:
            return super().attend(q, k, v, mask=mask, is_causal=is_causal, need_weights=need_weights)
        dropout_p = self.dropout if self.training else 0.0
        outputs = []
        for number, seen in enumerate(mask):
            left = seen.flatten(0, -2).any(dim=0).nonzero().flatten()
            parts = (k[number, None].index_select(2, left), v[number, None].index_select(2, left))
            own = _useful(seen.index_select(2, left)[None])
            outputs.append(scaled_dot_product_attention(q[number, None], *parts, own, dropout_p))
        return torch.cat(outputs) if outputs else q, None

    def _of_sequences(
        self,
        queries: Sequence[Tensor],
        k: Tensor,
        v: Tensor,
        packing: Packing,
        masks: Sequence[Tensor | None],
        *,
        is_causal: bool = False,
    ) -> Tensor:
        """Attention of each sequence, one after another, before the output projection.

        Shape: queries of each sequence (heads, queries, head_dim), k and v (1, heads, tokens left, head_dim), masks
        (1, 1 or heads, 1 or queries, columns); returns (queries of all sequences, embed_dim).
        """
        keys, values = (torch.split(part.squeeze(0), packing.lengths, dim=1) for part in (k, v))
        dropout_p = self.dropout if self.training else 0.0
        if is_causal or dropout_p or self.columns or any(mask is not None for mask in masks):
            outputs = []
            for own_q, own_k, own_v, mask in zip(queries, keys, values, masks, strict=True):
                parts = (own_q[None], *self.extend(own_k[None], own_v[None]))
                output = scaled_dot_product_attention(*parts, mask, dropout_p, is_causal).squeeze(0)
                outputs.append(output.transpose(0, 1))  # (queries, heads, head_dim)
        else:
            weights = self.num_heads * max(own.shape[1] for own in queries) * max(packing.lengths)
            outputs = attention_of_each(zip(queries, keys, values, strict=True), weights, like=k)
        return torch.cat(outputs).flatten(1)

    def _masks(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor, packing: Packing, dtype: torch.dtype
    ) -> list[Tensor | None]:
        """What the reference's masks say of each sequence's tokens that are left, as the kernel takes it.

        Shape: each (1, 1 or heads, 1 or queries, columns).
        """
        numbers = None
        if key_padding_mask.dtype != torch.bool:
            numbers = key_padding_mask.flatten().index_select(0, packing.places)
            # Zeros say nothing; it is the form that torch's own layers give a boolean mask.
            numbers = numbers if numbers.requires_grad or bool(numbers.any()) else None
        if attn_mask is None and numbers is None:
            return [None] * packing.batch
        shared = None if attn_mask is None else reference_mask(attn_mask, None, num_heads=self.num_heads, dtype=dtype)
        added: Sequence[Tensor | None] = [None] * packing.batch
        if numbers is not None:
            added = torch.split(numbers, packing.lengths)
        masks: list[Tensor | None] = []
        for number, left in enumerate(packing.within()):
            own = None if shared is None else self._rows(shared[number] if shared.dim() == 4 else shared[None], left)
            extra = added[number]
            mask = combined(own, None if extra is None else extra[None, None], dtype)
            mask = extended(mask, self.columns)
            mask = mask if mask is None or mask.dtype == torch.bool else mask.to(dtype)
            masks.append(None if mask is None else mask[None])
        return masks

    def _rows(self, mask: Tensor, left: Tensor) -> Tensor:
        """Part of a sequence's mask that is left. Shape: mask (1 or heads, queries, keys)."""
        return mask.index_select(2, left)


class VarlenPackedAttention(VarlenAttention):
    """Multi-head attention that knows real tokens only."""

    def of_itself(self, tokens: Tensor, key_padding_mask: Tensor | None) -> Tensor | None:
        """The real tokens of a sequence among themselves, where nothing is added and nothing dropped."""
        if key_padding_mask is None or key_padding_mask.dtype != torch.bool or (self.training and self.dropout):
            return None
        if key_padding_mask.shape != tokens.shape[:2] or not len(tokens):
            return None
        packing = Packing.of(_kept(key_padding_mask))
        assert self.in_proj_weight is not None
        # (tokens left, 3 · embed_dim)
        features = linear(packing.packed(tokens), self.in_proj_weight, self.in_proj_bias)
        heads = torch.unflatten(features, 1, (3, self.num_heads, self.head_dim)).permute(1, 2, 0, 3)
        sequences = (own.unbind() for own in torch.split(heads, packing.lengths, dim=2))
        weights = self.num_heads * max(packing.lengths) ** 2
        attended = torch.cat(attention_of_each(sequences, weights, like=heads)).flatten(1)
        return packing.restored(self.project_back(attended))

    def under_masks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """The real tokens of a sequence among themselves."""
        if key_padding_mask is not None and query is not key:
            raise Refusal(UNKNOWN_QUERIES)
        if need_weights or key_padding_mask is None or not len(query):
            return super().under_masks(
                query,
                key,
                value,
                attn_mask=attn_mask,
                key_padding_mask=key_padding_mask,
                is_causal=is_causal,
                need_weights=need_weights,
            )
        packing = Packing.of(_kept(key_padding_mask))
        tokens = packing.packed(query)[None]
        q, k, v = self.project(tokens, tokens, tokens if value is query else packing.packed(value)[None])
        # What is left of a causal mask is causal; the flag promises nothing of what else is added.
        flag = is_causal and self.columns == 0 and key_padding_mask.dtype == torch.bool
        masks = self._masks(None if flag else attn_mask, key_padding_mask, packing, q.dtype)
        queries = torch.split(q.squeeze(0), packing.lengths, dim=1)
        attended = self._of_sequences(queries, k, v, packing, masks, is_causal=flag)
        return packing.restored(self.project_back(attended)), None

    def _rows(self, mask: Tensor, left: Tensor) -> Tensor:
        """Rows and columns of a sequence's mask that are left."""
        return mask.index_select(1, left).index_select(2, left)


def _kept(key_padding_mask: Tensor) -> Tensor:
    """Which keys are no padding. Shape: (batch, keys)."""
    return ~key_padding_mask if key_padding_mask.dtype == torch.bool else key_padding_mask.detach() != -math.inf


def _useful(mask: Tensor) -> Tensor | None:
    """A keep mask, or None where it hides nothing; a kernel without a mask is quicker."""
    return None if bool(mask.all()) else mask


class Varlen(Implementation):
    """Attention without padded keys."""

    name = "varlen"
    source = "https://arxiv.org/abs/2210.03052"
    # Padded keys are never read.
    policies = Policies(hidden_nan="blocked")
    module: type[VarlenAttention] = VarlenAttention

    def unsupported(self, case: Case) -> str | None:
        """Weights, and a graph without Python."""
        if case.problem.need_weights:
            return NO_WEIGHTS
        reads_mask = case.problem.padding_mask is not None or "3d" in case.problem.mask
        return NO_EXPORT if case.compiler == "export" and reads_mask else None

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Module with the reference's weights."""
        return self.module(reference)


class VarlenPacked(Varlen):
    """Attention without padded tokens."""

    name = "varlen_packed"
    policies = Policies(hidden_nan="blocked", padded_queries="own")
    module = VarlenPackedAttention

    def unsupported(self, case: Case) -> str | None:
        """As without padded keys, and where it is not known which queries are padding."""
        padded = case.problem.padding_mask is not None
        return super().unsupported(case) or (UNKNOWN_QUERIES if padded and not case.problem.shares_queries else None)


VARLEN = Varlen()
VARLEN_PACKED = VarlenPacked()
