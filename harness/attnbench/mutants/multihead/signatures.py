"""Mutants of the call's signature and of untrained parameters.

With trained parameters, a mutant is right in calls whose keywords pass every argument except masks that are None.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import init
from torch.nn.functional import linear

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


class _OtherSignature(Formula):
    """Base of mutants in which the parameters after query, key and value have another order, or other defaults."""

    order: tuple[str, ...] = (
        "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal",
    )  # fmt: skip
    defaults: ClassVar[Arguments] = {}

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> Result:
        given = self.defaults | dict(zip(self.order, others, strict=False)) | named
        return super().forward(query, key, value, **given)


@mutant("positional_arguments", "attn_mask comes before key_padding_mask in the signature", mask="pad")
class _MasksInOtherOrder(_OtherSignature):
    order = ("attn_mask", "need_weights", "key_padding_mask", "average_attn_weights", "is_causal")


@mutant("positional_arguments", "need_weights comes after both masks, which looks natural", mask="bool2d")
class _WeightsAfterMasks(_OtherSignature):
    order = ("key_padding_mask", "attn_mask", "need_weights", "average_attn_weights", "is_causal")


@mutant("positional_arguments", "is_causal comes before average_attn_weights", need_weights=True)
class _HintBeforeAverage(_OtherSignature):
    order = ("key_padding_mask", "need_weights", "attn_mask", "is_causal", "average_attn_weights")


@mutant("positional_arguments", "a state for decoding comes before need_weights, as in fairseq")
class _StateBeforeWeights(Formula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> Result:
        return super().forward(query, key, value, *others[:1], *others[2:], **named)


@mutant("positional_arguments", "a wrapper passes keywords on, and drops further arguments by position", mask="pad")
class _FurtherPositionsDropped(Formula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> Result:
        del others
        return super().forward(query, key, value, **named)


@mutant("default_arguments", "weights are returned on request only: need_weights is False by default")
class _NoWeightsByDefault(_OtherSignature):
    defaults: ClassVar[Arguments] = {"need_weights": False}


@mutant(
    "default_arguments",
    "the weights of each head are returned by default: average_attn_weights is False",
    need_weights=True,
)
class _WeightsOfHeadsByDefault(_OtherSignature):
    defaults: ClassVar[Arguments] = {"average_attn_weights": False}


@mutant("default_arguments", "an attn_mask is taken for causal unless is_causal is given", mask="bool2d")
class _CausalByDefault(_OtherSignature):
    defaults: ClassVar[Arguments] = {"is_causal": None}

    def read_arguments(self, given: Arguments) -> Arguments:
        mask = given["attn_mask"]
        if given["is_causal"] is None and mask is not None:
            rows = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).triu(1)
            mask = rows | torch.zeros_like(mask, dtype=torch.bool)
        return given | {"attn_mask": mask, "is_causal": bool(given["is_causal"])}


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
