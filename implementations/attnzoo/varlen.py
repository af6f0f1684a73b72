"""Padding removed instead of masked: tokens are packed before they are projected, so padding costs nothing.

``varlen`` removes padded keys and values and computes every query. ``varlen_packed`` also removes padded queries if
query and key are one tensor, and returns zeros in the rows of padded queries. ``Policies(padded_queries="own")``
declares these zeros.

The remaining tokens of all sequences are concatenated for the projections (``shared_projection``).
Attention is computed for each sequence b separately, over the n_b remaining tokens of b. If no mask
is left, ``by_size`` chooses the faster of two methods.

    O_b = softmax(scale · Q_b K_bᵀ + M_b) V_b         Q_b (queries or n_b, head_dim), K_b and V_b (n_b, head_dim)

A token is padding if its element of key_padding_mask is true or minus infinity; finite numbers in the mask are added to
the logits. A model whose own layers do the projections calls ``attend`` with split heads and a mask, without a
key_padding_mask. In such a call, if the mask is boolean and the same for all heads, ``varlen`` removes the keys that
the mask hides from every query.

Source: Zhai et al., ByteTransformer, 2022, https://arxiv.org/abs/2210.03052.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from attnbench.cases import Case
from attnbench.interface import Implementation, Policies, Refusal
from attnbench.masks import combined, extended, reference_mask
from attnbench.refusals import CannotCompile, LacksWeights, NeedsSameTensor, TypedRefusal
from attnzoo.by_size import attend_each
from attnzoo.fused_attention import attend_fused
from attnzoo.shared_projection import SharedProjectionAttention

__all__ = ["VARLEN", "VARLEN_PACKED", "Packing", "VarlenAttention", "VarlenPackedAttention"]

# Unless query and key are one tensor, it is unknown which queries are padding.
UNKNOWN_QUERIES = NeedsSameTensor(arguments=("query", "key"), given="key_padding_mask")
NO_EXPORT = CannotCompile(why="values", compiler="torch.export")


@dataclass(frozen=True, slots=True)
class Packing:
    """The tokens of a batch that are left when padding is removed.

    Shape: positions (tokens left), ascending indices into the tokens flattened to (batch·length).
    """

    batch: int
    length: int
    # Number of tokens left in each sequence.
    lengths: list[int]
    positions: Tensor

    @classmethod
    def from_mask(cls, keep: Tensor) -> "Packing":
        """Make a packing of the tokens for which ``keep`` is true. Shape: keep (batch, length)."""
        positions = keep.flatten().nonzero().flatten()
        return cls(keep.shape[0], keep.shape[1], keep.sum(dim=1).tolist(), positions)

    def pack(self, tokens: Tensor) -> Tensor:
        """Select the tokens that are left when padding is removed.

        Shape: (batch, length, width) to (tokens left, width).
        """
        return tokens.flatten(0, 1).index_select(0, self.positions)

    def unpack(self, packed: Tensor) -> Tensor:
        """Put the packed tokens back at their positions in the batch, and zeros at the positions of padding.

        Shape: (tokens left, width) to (batch, length, width).
        """
        zeros = packed.new_zeros(self.batch * self.length, packed.shape[-1])
        return zeros.index_copy_(0, self.positions, packed).view(self.batch, self.length, packed.shape[-1])

    def split_positions(self) -> list[Tensor]:
        """Return, for each sequence, the positions of its tokens left, counted from the start of the sequence."""
        parts = torch.split(self.positions, self.lengths)
        return [part - number * self.length for number, part in enumerate(parts)]


class VarlenAttention(SharedProjectionAttention):
    """Multi-head attention that neither projects nor reads padded keys."""

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
        """Compute attention of every query over the keys of its sequence that are not padding."""
        if need_weights:
            raise Refusal(LacksWeights())
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
        packing = Packing.from_mask(_make_keep_mask(key_padding_mask))
        packed_key = packing.pack(key)[None]
        packed_value = packed_key if value is key else packing.pack(value)[None]
        q, k, v = self.project(query, packed_key, packed_value)
        masks = self._make_masks(attn_mask, key_padding_mask, packing, q.dtype)
        attended = self._attend_sequences(q.unbind(), k, v, packing, masks)
        return self.project_back(attended.reshape(query.shape)), None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention on split heads.

        If all heads of a sequence have the same boolean mask, the keys that this mask hides from every query are left
        out of the computation.

        Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim).
        """
        shared = mask is not None and mask.dtype == torch.bool and mask.dim() == 4 and mask.shape[:2] == (len(q), 1)
        if need_weights or mask is None or not shared:
            return super().attend(q, k, v, mask=mask, is_causal=is_causal, need_weights=need_weights)
        dropout_p = self.dropout if self.training else 0.0
        outputs = []
        for number, keep in enumerate(mask):
            left = keep.flatten(0, -2).any(dim=0).nonzero().flatten()
            parts = (k[number, None].index_select(2, left), v[number, None].index_select(2, left))
            own_mask = _drop_if_all_kept(keep.index_select(2, left)[None])
            outputs.append(attend_fused(q[number, None], *parts, own_mask, dropout_p=dropout_p))
        return torch.cat(outputs) if outputs else q, None

    def _attend_sequences(
        self,
        queries: Sequence[Tensor],
        k: Tensor,
        v: Tensor,
        packing: Packing,
        masks: Sequence[Tensor | None],
        *,
        is_causal: bool = False,
    ) -> Tensor:
        """Compute attention of each sequence, one after another, without the output projection.

        Shape: queries of each sequence (heads, queries, head_dim), k and v (1, heads, tokens left, head_dim), each mask
        (1, 1 or heads, 1 or queries, keys including bias_k and the zero key); returns
        (queries of all sequences, embed_dim).
        """
        keys, values = (torch.split(part.squeeze(0), packing.lengths, dim=1) for part in (k, v))
        dropout_p = self.dropout if self.training else 0.0
        if is_causal or dropout_p or self.columns or any(mask is not None for mask in masks):
            outputs = []
            for own_q, own_k, own_v, mask in zip(queries, keys, values, masks, strict=True):
                parts = (own_q[None], *self.extend(own_k[None], own_v[None]))
                output = attend_fused(*parts, mask, dropout_p=dropout_p, is_causal=is_causal).squeeze(0)
                outputs.append(output.transpose(0, 1))  # (queries, heads, head_dim)
        else:
            weights = self.num_heads * max(own.shape[1] for own in queries) * max(packing.lengths)
            outputs = attend_each(zip(queries, keys, values, strict=True), weights, like=k)
        return torch.cat(outputs).flatten(1)

    def _make_masks(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor, packing: Packing, dtype: torch.dtype
    ) -> list[Tensor | None]:
        """Convert both masks to one mask per sequence, over the tokens of the sequence that are not padding.

        The mask of a sequence is None if it would hide nothing and add nothing.

        Shape: each mask (1, 1 or heads, 1 or queries, keys including bias_k and the zero key).
        """
        numbers = None
        if key_padding_mask.dtype != torch.bool:
            numbers = key_padding_mask.flatten().index_select(0, packing.positions)
            # An additive padding mask of zeros hides nothing, so it is left out. Torch's layers
            # make masks of zeros when they convert boolean masks to additive masks.
            numbers = numbers if numbers.requires_grad or bool(numbers.any()) else None
        if attn_mask is None and numbers is None:
            return [None] * packing.batch
        shared = None if attn_mask is None else reference_mask(attn_mask, None, num_heads=self.num_heads, dtype=dtype)
        added: Sequence[Tensor | None] = [None] * packing.batch
        if numbers is not None:
            added = torch.split(numbers, packing.lengths)
        masks: list[Tensor | None] = []
        for number, left in enumerate(packing.split_positions()):
            part, extra = None, added[number]
            if shared is not None:
                part = self._select_tokens(shared[number] if shared.dim() == 4 else shared[None], left)
            mask = combined(part, None if extra is None else extra[None, None], dtype)
            mask = extended(mask, self.columns)
            mask = mask if mask is None or mask.dtype == torch.bool else mask.to(dtype)
            masks.append(None if mask is None else mask[None])
        return masks

    def _select_tokens(self, mask: Tensor, left: Tensor) -> Tensor:
        """Select the keys at the positions ``left`` from a mask. Shape: mask (1 or heads, queries, keys)."""
        return mask.index_select(2, left)


class VarlenPackedAttention(VarlenAttention):
    """Multi-head attention that computes only tokens that are not padding."""

    def try_shortcut(self, tokens: Tensor, key_padding_mask: Tensor | None) -> Tensor | None:
        """Compute self-attention of the tokens that are not padding.

        Return None, so that the general path is taken, if there is dropout, if there is no boolean padding mask of the
        right shape, or if the batch is empty.
        """
        if key_padding_mask is None or key_padding_mask.dtype != torch.bool or (self.training and self.dropout):
            return None
        if key_padding_mask.shape != tokens.shape[:2] or not len(tokens):
            return None
        packing = Packing.from_mask(_make_keep_mask(key_padding_mask))
        assert self.in_proj_weight is not None
        # The shape of features is (tokens left, 3 · embed_dim).
        features = linear(packing.pack(tokens), self.in_proj_weight, self.in_proj_bias)
        heads = torch.unflatten(features, 1, (3, self.num_heads, self.head_dim)).permute(1, 2, 0, 3)
        sequences = (own.unbind() for own in torch.split(heads, packing.lengths, dim=2))
        weights = self.num_heads * max(packing.lengths) ** 2
        attended = torch.cat(attend_each(sequences, weights, like=heads)).flatten(1)
        return packing.unpack(self.project_back(attended))

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
        """Compute attention of the queries that are not padding over the keys that are not padding."""
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
        packing = Packing.from_mask(_make_keep_mask(key_padding_mask))
        tokens = packing.pack(query)[None]
        q, k, v = self.project(tokens, tokens, tokens if value is query else packing.pack(value)[None])
        # A causal mask without the rows and columns of padding is still causal, so the flag is_causal can replace the
        # mask. The flag cannot replace numbers that the padding mask adds to the logits.
        flag = is_causal and self.columns == 0 and key_padding_mask.dtype == torch.bool
        masks = self._make_masks(None if flag else attn_mask, key_padding_mask, packing, q.dtype)
        queries = torch.split(q.squeeze(0), packing.lengths, dim=1)
        attended = self._attend_sequences(queries, k, v, packing, masks, is_causal=flag)
        return packing.unpack(self.project_back(attended)), None

    def _select_tokens(self, mask: Tensor, left: Tensor) -> Tensor:
        """Select the queries and the keys at the positions ``left`` from a mask.

        Shape: mask (1 or heads, queries, keys).
        """
        return mask.index_select(1, left).index_select(2, left)


def _make_keep_mask(key_padding_mask: Tensor) -> Tensor:
    """Return a mask that is true for keys that are not padding. Shape: (batch, keys)."""
    return ~key_padding_mask if key_padding_mask.dtype == torch.bool else key_padding_mask.detach() != -math.inf


def _drop_if_all_kept(mask: Tensor) -> Tensor | None:
    """Return ``mask``, in which true keeps a key, or None if it keeps every key.

    A kernel is faster without a mask.
    """
    return None if bool(mask.all()) else mask


class Varlen(Implementation):
    """Multi-head attention that leaves out padded keys."""

    name = "varlen"
    source = "https://arxiv.org/abs/2210.03052"
    # hidden_nan="blocked": a NaN in a padded key reaches no output, because padded keys are never
    # read. transforms="refused": the number of real tokens depends on the values of a mask, which vmap refuses.
    policies = Policies(hidden_nan="blocked", transforms="refused", unordered_gradients=("cuda",))
    module: type[VarlenAttention] = VarlenAttention

    def unsupported(self, case: Case) -> TypedRefusal | None:
        """Return why a case is refused, or None if it is not refused.

        A case is refused if it needs the attention weights, or if ``torch.export`` captures the call
        and lengths are read from a mask.
        """
        if case.problem.need_weights:
            return LacksWeights()
        reads_mask = case.problem.padding_mask is not None or "3d" in case.problem.mask
        return NO_EXPORT if case.compiler == "export" and reads_mask else None

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Return a module with the parameters of ``reference``."""
        return self.module(reference)


class VarlenPacked(Varlen):
    """Multi-head attention that leaves out padded tokens."""

    name = "varlen_packed"
    policies = Policies(hidden_nan="blocked", padded_queries="own", transforms="refused", unordered_gradients=("cuda",))
    module = VarlenPackedAttention

    def unsupported(self, case: Case) -> TypedRefusal | None:
        """Return why a case is refused, or None if it is not refused.

        A case is refused if ``varlen`` refuses it, or if it is unknown which queries are padding.
        """
        padded = case.problem.padding_mask is not None
        return super().unsupported(case) or (UNKNOWN_QUERIES if padded and not case.problem.shares_queries else None)


VARLEN = Varlen()
VARLEN_PACKED = VarlenPacked()
