"""Mutants that are wrong only at some sizes: tiles, widths, single tokens, single sequences and empty inputs."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnbench.masks import extended
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["MANY", "mutant"]

mutant = MultiheadMutants()
# Fields of a case with one sequence more than the second axis of a CUDA grid has blocks.
MANY: dict[str, Any] = {"batch": 65536, "queries": 1, "keys": 2, "embed_dim": 1, "num_heads": 1}


class _Tiled(Formula):
    """Base of mutants that drop the keys beyond the last whole tile of ``tile`` keys.

    If there is no whole tile, no key is dropped.
    """

    tile = 0

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        keys = v.shape[2]
        whole = keys // self.tile * self.tile or keys
        return super().sum_values(weights[..., :whole], v[:, :, :whole])


@mutant("forward_parity", "a tail of fewer than 16 keys is dropped", keys=17)
class _TailOf16Dropped(_Tiled):
    tile = 16


@mutant("forward_parity", "a tail of fewer than 32 keys is dropped (pytorch#159247)", keys=33)
class _TailOf32Dropped(_Tiled):
    tile = 32


@mutant("forward_parity", "a tail of fewer than 64 keys is dropped", keys=65)
class _TailOf64Dropped(_Tiled):
    tile = 64


@mutant(
    "forward_parity",
    "keys are padded with zeros to a whole tile, and not masked (tenstorrent/tt-metal#54833)",
    keys=33,
    mask="bool2d",
)
class _FilledTileVisible(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, **named: Any) -> Result:
        keys, missing = k.shape[2], 0 if mask is None else -k.shape[2] % 32
        k, v = pad(k, (0, 0, 0, missing)), pad(v, (0, 0, 0, missing))
        output, weights = super().attend(q, k, v, mask=extended(mask, missing), **named)
        return output, None if weights is None else weights[..., :keys]


@mutant(
    "forward_parity",
    "online softmax: the running sum is not rescaled at the last tile",
    keys=127,
    regime="peaked",
)
class _LastTileNotRescaled(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        shares, last = super().normalise(logits), max(0, logits.shape[-1] - 1) // 64 * 64
        if last == 0:
            return shares
        earlier = logits[..., :last].detach().amax(dim=-1, keepdim=True)
        later = logits[..., last:].detach().amax(dim=-1, keepdim=True)
        missing = (later - earlier).nan_to_num(0.0, 0.0, 0.0).clamp(0, 10).exp()
        return torch.cat([shares[..., :last] * missing, shares[..., last:]], dim=-1)


@mutant(
    "padding_cannot_leak",
    "the mask is applied to the first tile of 64 keys only (vllm-project/vllm-ascend#15503)",
    keys=70,
    mask="pad",
)
class _MaskOfFirstTile(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        hidden = super().apply_mask(logits, mask)
        return torch.cat([hidden[..., :64], logits[..., 64:]], dim=-1)


@mutant("forward_parity", "if the number of keys is a multiple of 8, the last key is not read", keys=8)
class _AlignedKeysOneShort(Formula):
    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        keys = v.shape[2]
        used = keys - 1 if keys % 8 == 0 and keys else keys
        return super().sum_values(weights[..., :used], v[:, :, :used])


@mutant("forward_parity", "rows of queries beyond the last whole tile of 16 are never written", queries=17)
class _QueryTailUnwritten(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        queries = heads.shape[2]
        whole = queries // 16 * 16 or queries
        return super().merge(pad(heads[:, :, :whole], (0, 0, 0, queries - whole)))


@mutant("forward_parity", "rows of queries beyond the number of keys are never written", queries=9)
class _QueriesBeyondKeysUnwritten(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        output, weights = super().attend(q, k, v, **named)
        rows = torch.arange(q.shape[2], device=q.device)[:, None]
        return output.masked_fill(rows >= k.shape[2], 0.0), weights


@mutant(
    "attn_mask_cannot_leak",
    "a single query is taken for the newest token, which sees all keys (pytorch#174861)",
    queries=1,
    mask="bool2d",
)
class _SingleQuerySeesAll(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return logits if logits.shape[2] == 1 else super().apply_mask(logits, mask)


@mutant(
    "forward_parity",
    "the kernel's grid covers only four sequences: the output of the fifth is never written (pytorch#139462)",
    batch=5,
)
class _FifthSequenceUnwritten(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        later = torch.arange(len(heads), device=heads.device) >= 4
        return super().merge(heads.masked_fill(later[:, None, None, None], 0.0))


@mutant("a_batch_of_one_is_unbatched", "squeeze() removes the batch axis of a batch of one", batch=1)
class _BatchOfOneSqueezed(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        return (output.squeeze(0 if self.batch_first else 1) if output.dim() == 3 else output), weights


@mutant("weights_parity", "the weights of unbatched input keep a batch axis", batch=None, need_weights=True)
class _UnbatchedWeightsBatched(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        return output, weights[None] if weights is not None and output.dim() == 2 else weights


@mutant(
    "weights_parity",
    "weights are transposed together with the output for batch_first=False",
    batch_first=False,
    need_weights=True,
    average_attn_weights=True,
)
class _WeightsSequenceFirst(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        swapped = not self.batch_first and weights is not None and weights.dim() == 3 and output.dim() == 3
        return output, weights.transpose(0, 1) if swapped and weights is not None else weights


@mutant("forward_parity", "heads are processed in pairs: the last head of an odd number is lost (pytorch#97128)")
class _OddHeadLost(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        lost = torch.arange(self.num_heads, device=heads.device) >= self.num_heads // 2 * 2
        return super().merge(heads.masked_fill(lost[:, None, None], 0.0) if self.num_heads > 1 else heads)


@mutant(
    "forward_parity",
    "the scale uses head_dim rounded up to a multiple of 8 (facebookresearch/xformers#813)",
    embed_dim=15,
    num_heads=3,
)
class _WidthFilledInScale(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) * math.sqrt(self.head_dim / (-(-self.head_dim // 8) * 8))


@mutant(
    "forward_parity",
    "if head_dim is 128, logits leave out the last 8 features of each head",
    embed_dim=256,
    num_heads=2,
)
class _WidthOf128Cut(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q[..., :120], k[..., :120]) if self.head_dim == 128 else super().score(q, k)


@mutant("forward_parity", "an early return for calls without keys skips the output bias", keys=0)
class _NoKeysNoBias(Formula):
    def attention(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        output, weights = super().attention(query, key, value, **named)
        return (output if key.shape[1] else torch.zeros_like(output)), weights


@mutant(
    "weights_only_on_request",
    "for an empty batch, the returned weights are None, as in the reference's fast path",
    batch=0,
    need_weights=True,
)
class _NoWeightsOfNothing(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        return output, weights if output.numel() else None


@mutant(
    "far_offsets", "offsets of logits (query index · number of keys + key index) are 32-bit integers (pytorch#162588)",
    batch=1, queries=4, keys=32768, embed_dim=8, num_heads=1, mode="inference",
)  # fmt: skip
class OffsetsIn32Bits(Formula):
    """Attention whose output is 0 for each query with query index · number of keys ≥ ``largest``.

    This product is the offset of the query's first logit within its head. Offsets from 2³¹ on
    overflow a signed 32-bit integer. A test lowers ``largest`` and so needs fewer keys.
    """

    largest = 2**31

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        """Compute attention; the output is 0 where query index · number of keys ≥ ``largest``."""
        output, weights = super().attend(q, k, v, **named)
        first = torch.arange(q.shape[2], device=q.device)[:, None] * k.shape[2]
        return output.masked_fill(first >= self.largest, 0.0), weights


@mutant(
    "forward_parity",
    "the index of a sequence has 16 bits: sequences from 32768 on get the output of earlier sequences",
    **MANY,
)
class _BatchIndexIn16Bits(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        places = torch.arange(len(heads), device=heads.device) % 2**15
        return super().merge(heads[places] if len(heads) > 2**15 else heads)
