"""Bugs of key_padding_mask: its side, its axes, and calls that ignore it."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.multihead.sides import Padded, find_run

__all__ = ["mutant"]

mutant = MultiheadMutants()
# Fields of a case in half precision with padding.
HALF: dict[str, Any] = {"mask": "float2d+pad", "dtype": "float16", "mode": "inference"}


@mutant(
    "key_permutation",
    "the number of visible keys is taken for a length: padding must be on the right (microsoft/onnxruntime#18945)",
    **HALF,
)
class _PaddingCounted(Padded):
    def change(self, padding: Tensor) -> Tensor:
        places = torch.arange(padding.shape[1], device=padding.device)
        return places >= (~padding).sum(dim=1, keepdim=True)


@mutant(
    "key_permutation",
    "only the run of padding at the end of a sequence is found (NVIDIA-NeMo/Automodel#3704)",
    **HALF,
)
class _PaddingOfTailOnly(Padded):
    def change(self, padding: Tensor) -> Tensor:
        return find_run(padding.flip(1)).flip(1)


@mutant(
    "batch_independence",
    "padding is skipped in a batch of one sequence (huggingface/transformers#46773)",
    **HALF,
)
class _PaddingOfOneSequenceIgnored(Padded):
    def change(self, padding: Tensor) -> Tensor | None:
        return None if len(padding) == 1 else padding


@mutant(
    "forward_parity",
    "padding is applied in the first step only: later steps have a single query (OpenNMT/OpenNMT-py#2532)",
    batch=3,
    queries=1,
    keys=9,
    bias=False,
    batch_first=False,
    add_zero_attn=True,
    key_is_value=True,
    dropout=0.25,
    mask="pad",
    regime="peaked",
)
class _PaddingIgnoredInDecoding(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding = named["key_padding_mask"]
        if padding is not None and padding.dtype == torch.bool and query.shape[1] == 1:
            named["key_padding_mask"] = None
        return super().under_masks(query, key, value, **named)


@mutant(
    "forward_parity",
    "in cross-attention, queries are unpadded with the mask of the keys (vllm-project/vllm-omni#5865)",
    mask="pad",
)
class _QueriesUnpaddedByKeys(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding, (batch, queries) = named["key_padding_mask"], query.shape[:2]
        output, weights = super().under_masks(query, key, value, **named)
        if padding is None or padding.dtype != torch.bool or queries == key.shape[1]:
            return output, weights
        # The mask is cut to as many last keys as there are queries, and flattened. Element i then decides on row i of
        # the flattened queries.
        kept = (~padding[:, -queries:]).flatten() if queries else padding.new_empty(0)
        rows = pad(kept[: batch * queries], (0, max(0, batch * queries - len(kept)))).view(batch, queries, 1)
        return output.masked_fill(~rows, 0.0), weights


@mutant(
    "padding_cannot_leak",
    "unsqueeze(3) instead of unsqueeze(2): padding hides rows of queries, not keys (hyunwoongko/transformer#40)",
    batch=3,
    queries=5,
    keys=5,
    num_heads=2,
    self_attention=True,
    mask="pad",
    mode="inference",
)
class _PaddingHidesQueries(Formula):
    rows: Tensor | None = None

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding = named["key_padding_mask"]
        square = query.shape[1] == key.shape[1] and self.columns == 0
        self.rows = None
        if square and padding is not None and padding.dtype == torch.bool:
            self.rows, named["key_padding_mask"] = padding, None
        return super().under_masks(query, key, value, **named)

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        masked = super().apply_mask(logits, mask)
        return masked if self.rows is None else masked.masked_fill(self.rows[:, None, :, None], -1e4)
