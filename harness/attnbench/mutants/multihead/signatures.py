"""Mutants of the call's signature and of untrained parameters.

With trained parameters, a mutant is right in calls whose keywords pass every argument except masks that are None.
"""
# ruff: noqa: FBT001, FBT002  # the reference's signature

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import init
from torch.nn.functional import linear

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant("positional_arguments", "attn_mask comes before key_padding_mask in the signature", mask="pad")
class _MasksInOtherOrder(Formula):
    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        need_weights: bool = True,
        key_padding_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Result:
        return super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )


@mutant("positional_arguments", "need_weights comes after both masks, which looks natural", mask="bool2d")
class _WeightsAfterMasks(Formula):
    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        need_weights: bool = True,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Result:
        return super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )


@mutant("positional_arguments", "is_causal comes before average_attn_weights", need_weights=True)
class _HintBeforeAverage(Formula):
    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        average_attn_weights: bool = True,
    ) -> Result:
        return super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )


@mutant("positional_arguments", "a state for decoding comes before need_weights, as in fairseq")
class _StateBeforeWeights(Formula):
    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        incremental_state: Any = None,  # noqa: ARG002
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Result:
        return super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )


@mutant("positional_arguments", "a wrapper passes keywords on, and drops further arguments by position", mask="pad")
class _FurtherPositionsDropped(Formula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> Result:
        del others
        return super().forward(query, key, value, **named)


@mutant("default_arguments", "weights are returned on request only: need_weights is False by default")
class _NoWeightsByDefault(Formula):
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Result:
        return super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )


@mutant(
    "default_arguments",
    "the weights of each head are returned by default: average_attn_weights is False",
    need_weights=True,
)
class _WeightsOfHeadsByDefault(Formula):
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = False,
        is_causal: bool = False,
    ) -> Result:
        return super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )


@mutant("default_arguments", "an attn_mask is taken for causal unless is_causal is given", mask="bool2d")
class _CausalByDefault(Formula):
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool | None = None,
    ) -> Result:
        if is_causal is None and attn_mask is not None:
            rows = torch.ones(attn_mask.shape[-2:], dtype=torch.bool, device=attn_mask.device).triu(1)
            hidden = attn_mask if attn_mask.dtype == torch.bool else attn_mask == -torch.inf
            attn_mask = rows | torch.zeros_like(hidden)
        return super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, bool(is_causal)
        )


@mutant("default_arguments", "a mask counts as given if the keyword is there, even with the value None")
class _NoneTakenForMask(Formula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> Result:
        if "key_padding_mask" in named and not others:
            named["key_padding_mask"] = named["key_padding_mask"].clone()
        return super().forward(query, key, value, *others, **named)


@mutant("initial_parameters", "a bias of zeros is taken for no bias, and gets no gradient", mode="train")
class _ZeroBiasSkipped(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        bias = self.out_proj.bias
        used = bias if bias is not None and bias.any() else None
        return linear(heads.transpose(1, 2).flatten(2), self.out_proj.weight, used)


@mutant("initial_parameters", "the bias is divided by its norm and multiplied by it: 0/0 before the first step")
class _BiasNormalised(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        bias = self.out_proj.bias
        if bias is None:
            return super().merge(heads)
        scale = bias.detach().abs().max()
        return linear(heads.transpose(1, 2).flatten(2), self.out_proj.weight, bias / scale * scale)


@mutant("initial_parameters", "weights that look untrained are drawn again, with the gain of another framework")
class _InitialisedAgain(Formula):
    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        super().adopt(parameters)
        bias = self.out_proj.bias
        if bias is not None and bias.numel() and not bias.any():
            init.xavier_uniform_(self.out_proj.weight, gain=0.5)
