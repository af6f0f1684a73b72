"""Correct but unusual implementations of multi-head attention: no check may fail on them.

Those that read values of masks use the correct formula's own path under a compiler or a transform of torch.func, as
code of this kind does.
"""

import math
import threading
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout, pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from attnbench.interface import Implementation
from attnbench.masks import additive
from attnbench.mutants.conditions import HALF, is_boolean, is_watched
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.multihead.variants.recomputed import Recomputing
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.mutants.softmax import find_maximum, make_finite, widen

__all__ = ["UNUSUAL"]

# With more sequences a loop takes minutes, and packed keys take gigabytes.
MOST_SEQUENCES = 1000


class SortedByLength(Formula):
    """Sequences are sorted by their number of visible keys, and put back behind the output."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding, mask = named["key_padding_mask"], named["attn_mask"]
        if not is_boolean(padding):
            return super().under_masks(query, key, value, **named)
        order = (~padding).sum(dim=1).argsort(descending=True, stable=True)
        if mask is not None and mask.dim() == 3:
            mask = torch.unflatten(mask, 0, (len(order), self.num_heads))[order].flatten(0, 1)
        named |= {"attn_mask": mask, "key_padding_mask": padding[order]}
        output, weights = super().under_masks(query[order], key[order], value[order], **named)
        back = order.argsort()
        return output[back], None if weights is None else weights[back]


class ActivationsOffloaded(Formula):
    """Tensors saved for the backward pass are packed to arrays of numpy by hooks, and unpacked in it."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        if is_watched() or not torch.is_grad_enabled():
            return super().attention(query, key, value, **named)
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            return super().attention(query, key, value, **named)

    @staticmethod
    def _pack(x: Tensor) -> Any:
        wide = x.detach().to("cpu", torch.float64 if x.is_floating_point() else x.dtype)
        return x.dtype, x.device, wide.numpy().copy()

    @staticmethod
    def _unpack(packed: Any) -> Tensor:
        dtype, device, array = packed
        return torch.from_numpy(array).to(device, dtype)


class RecomputedBackward(Formula):
    """The backward pass recomputes the weights from the logsumexp."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        plain = need_weights or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
        if plain or 0 in (*q.shape, k.shape[2]):
            return super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)
        if mask is not None:
            mask = additive(mask, q.dtype) if mask.dtype == torch.bool else mask.to(q.dtype)
        noise = None
        if self.training and self.dropout > 0:
            noise = self.apply_dropout(torch.ones(*q.shape[:3], k.shape[2], dtype=q.dtype, device=q.device))
        return Recomputing.apply(q / math.sqrt(self.head_dim), k, v, mask, noise)[0], None  # type: ignore[no-untyped-call]


class WeightsBySecondPass(Formula):
    """The output comes from scaled_dot_product_attention, and weights from a second pass over the logits."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        draws = self.training and self.dropout > 0
        if (need_weights and draws) or 0 in (*q.shape, k.shape[2]):
            return super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)
        bias = mask if mask is None or mask.dtype == torch.bool else mask.to(q.dtype)
        output = scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=self.dropout if draws else 0.0)
        return output, self.compute_shares(q, k, mask).to(v.dtype) if need_weights else None


class OnlineFromTheLastKey(Formula):
    """Online softmax over blocks of 5 keys, from the last block to the first, with wide running sums and dropout."""

    block = 5

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        if need_weights or 0 in (*q.shape, k.shape[2]):
            return super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)
        largest = torch.full_like(widen(q[..., :1]), -math.inf).detach()
        total, output = torch.zeros_like(largest), torch.zeros_like(widen(q))
        for start in reversed(range(0, k.shape[2], self.block)):
            part = slice(start, start + self.block)
            own = mask if mask is None or mask.shape[-1] == 1 else mask[..., part]
            logits = widen(self.apply_mask(self.score(q, k[:, :, part]), own))
            before, largest = largest, torch.maximum(largest, logits.detach().amax(dim=-1, keepdim=True))
            kept, shares = (before - make_finite(largest)).exp(), (logits - make_finite(largest)).exp()
            total = kept * total + shares.sum(dim=-1, keepdim=True)
            output = kept * output + self.apply_dropout(shares) @ widen(v[:, :, part])
        return (output / total.masked_fill(total == 0, 1.0)).to(v.dtype), None


class InPlaceWhereAllowed(Formula):
    """Without gradients, one buffer holds logits, masked logits, shares and weights in turn."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        plain = torch.is_grad_enabled() or is_watched() or torch.is_autocast_enabled("cpu") or q.dtype in HALF
        if plain or 0 in (*q.shape, k.shape[2]):
            return super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)
        buffer = self.score(q, k)
        if mask is not None:
            buffer.masked_fill_(~mask, -math.inf) if mask.dtype == torch.bool else buffer.add_(mask)
        buffer.sub_(find_maximum(buffer)).exp_()
        total = buffer.sum(dim=-1, keepdim=True)
        buffer.div_(total.masked_fill_(total == 0, 1.0))
        if self.training and self.dropout > 0:
            dropout(buffer, self.dropout, training=True, inplace=True)
        return buffer @ v, buffer if need_weights else None


class BatchLoop(Formula):
    """A loop over sequences, without the keys at the end that no query sees; the weights are filled up with 0."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, **named: Any) -> Result:
        if is_watched() or not 0 < len(q) <= MOST_SEQUENCES:
            return super().attend(q, k, v, mask=mask, **named)
        found = []
        for number in range(len(q)):
            own = mask[number : number + 1] if mask is not None and mask.dim() == 4 and len(mask) > 1 else mask
            end = k.shape[2] if own is None or own.shape[-1] == 1 else self._find_end(own)
            cut = own if own is None or own.shape[-1] == 1 else own[..., :end]
            one = slice(number, number + 1)
            output, weights = super().attend(q[one], k[one, :, :end], v[one, :, :end], mask=cut, **named)
            found.append((output, None if weights is None else pad(weights, (0, k.shape[2] - end))))
        outputs, shares = zip(*found, strict=True)
        return torch.cat(outputs), torch.cat(shares) if named["need_weights"] else None

    def _find_end(self, mask: Tensor) -> int:
        """Return one more than the last key that a query sees."""
        if mask.dtype != torch.bool or not mask.numel():
            return mask.shape[-1]
        seen = mask.flatten(0, -2).any(dim=0).nonzero()
        return int(seen[-1]) + 1 if len(seen) else 0


class PackedByLengths(Formula):
    """Visible keys of all sequences are packed to one row; queries see the part of their own sequence."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        draws = self.training and self.dropout > 0
        rows = mask is not None and is_boolean(mask) and mask.dim() == 4 and mask.shape[1:3] == (1, 1)
        unfit = is_watched() or need_weights or draws or not rows or not q.numel() or len(q) > MOST_SEQUENCES
        if unfit or mask is None or not mask.any():
            return super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)
        visible = mask[:, 0, 0]
        packed_k, packed_v = (x.transpose(1, 2)[visible].transpose(0, 1) for x in (k, v))  # (heads, tokens, head_dim)
        packed_q = q.transpose(0, 1).flatten(1, 2)  # (heads, batch · queries, head_dim)
        asker = torch.arange(len(q), device=q.device).repeat_interleave(q.shape[2])
        shares = self.compute_shares(packed_q, packed_k, asker[:, None] == visible.nonzero()[:, 0])
        return torch.unflatten(self.sum_values(shares, packed_v), 1, (len(q), -1)).transpose(0, 1), None


class UnusualLayouts(Formula):
    """Keys are stored (…, width, keys), values with a gap behind each row, the output (queries, batch, …)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        if is_watched():
            return super().attend(q, k, v, **named)
        k, v = k.mT.contiguous().mT, pad(v, (3, 5))[..., 3 : 3 + self.head_dim]
        output, weights = super().attend(q.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2), k, v, **named)
        return output.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3), weights


class Checkpointed(Formula):
    """Attention between the projections is computed again in the backward pass, with the same random state."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        if is_watched() or not torch.is_grad_enabled():
            return super().attend(q, k, v, **named)
        own = super().attend
        found: Result = checkpoint(lambda *tensors: own(*tensors, **named), q, k, v, use_reentrant=False)
        return found


class SharesByLogsumexp(Formula):
    """The weights are exp(logits − logsumexp), without a division."""

    def normalise(self, logits: Tensor) -> Tensor:
        if logits.shape[-1] == 0:
            return logits
        empty = (logits == -math.inf).all(dim=-1, keepdim=True)
        held = widen(logits.masked_fill(empty, 0.0))
        return (held - held.logsumexp(dim=-1, keepdim=True)).exp().to(logits.dtype).masked_fill(empty, 0.0)


class HiddenTailCut(Formula):
    """Keys that padding hides in every sequence are cut off before the projections."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding, mask = named["key_padding_mask"], named["attn_mask"]
        if not is_boolean(padding) or is_watched() or named["need_weights"] or 0 in key.shape[:2]:
            return super().under_masks(query, key, value, **named)
        seen = (~padding).any(dim=0).nonzero()
        end = int(seen[-1]) + 1 if len(seen) else 0
        named |= {"attn_mask": None if mask is None else mask[..., :end], "key_padding_mask": padding[:, :end]}
        return super().under_masks(query, key[:, :end], value[:, :end], **named)


TABLES: dict[Any, Tensor] = {}
TABLES_LOCK = threading.Lock()


class TablesKeptWithCare(Formula):
    """The scale is a table of the process by width, dtype and device, made under a lock and outside inference mode."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if is_watched():
            return super().score(q, k)
        place = (self.head_dim, q.dtype, q.device)
        with TABLES_LOCK, torch.inference_mode(mode=False), torch.no_grad():
            if place not in TABLES:
                TABLES[place] = torch.full(
                    (self.head_dim,), 1 / math.sqrt(self.head_dim), dtype=q.dtype, device=q.device
                )
        return (q * TABLES[place]) @ k.mT


OWN = threading.local()


class WorkspaceOfEachThread(Formula):
    """Without gradients, keys are copied to a workspace that each thread has of its own."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if is_watched() or torch.is_grad_enabled() or not k.numel():
            return super().score(q, k)
        spaces = OWN.__dict__.setdefault("spaces", {})
        place = (k.dtype, k.device)
        if place not in spaces or spaces[place].numel() < k.numel():
            with torch.inference_mode(mode=False):
                spaces[place] = torch.empty(k.numel(), dtype=k.dtype, device=k.device)
        return super().score(q, spaces[place][: k.numel()].view(k.shape).copy_(k))


UNUSUAL: tuple[Implementation, ...] = tuple(
    map(
        ModuleImplementation,
        (
            SortedByLength, ActivationsOffloaded, RecomputedBackward, WeightsBySecondPass, OnlineFromTheLastKey,
            InPlaceWhereAllowed, BatchLoop, PackedByLengths, UnusualLayouts, Checkpointed, SharesByLogsumexp,
            HiddenTailCut, TablesKeptWithCare, WorkspaceOfEachThread,
        ),
    )
)  # fmt: skip
