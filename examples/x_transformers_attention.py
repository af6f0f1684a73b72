"""``Attention`` of x-transformers: a layer whose parameter names and mask conventions differ from the reference's.

Needs: pip install x-transformers
Check: attnbench conform examples/x_transformers_attention.py:X_TRANSFORMERS
Source: https://github.com/lucidrains/x-transformers
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from x_transformers import Attention

from attnbench.cases import Case
from attnbench.interface import Implementation, Policies, Refusal
from attnbench.kernel import ReferenceForward

__all__ = ["X_TRANSFORMERS"]

ONE_CONTEXT = "x_transformers.Attention projects keys and values from one context tensor"
DROPPED_WEIGHTS = "x_transformers.Attention returns the weights before dropout"
MASKED_ROW_WEIGHTS = "x_transformers.Attention returns uniform weights (and zero output) for a fully masked row"
SINGLE = "x_transformers.Attention always computes the softmax in float32"


def convert_parameters(parameters: Mapping[str, Tensor], num_heads: int) -> dict[str, Tensor]:
    """Return the reference's parameters under the names of ``XTransformersAttention``."""
    own = {
        f"layer.to_out.{kind}": parameters[f"out_proj.{kind}"]
        for kind in ("weight", "bias")
        if f"out_proj.{kind}" in parameters
    }
    if "in_proj_weight" in parameters:
        weights = parameters["in_proj_weight"].chunk(3)
    else:
        weights = tuple(parameters[f"{part}_proj_weight"] for part in "qkv")
    own |= {f"layer.to_{part}.weight": weight for part, weight in zip("qkv", weights, strict=True)}
    if "in_proj_bias" in parameters:
        biases = parameters["in_proj_bias"].chunk(3)
        own |= {f"layer.to_{part}.bias": bias for part, bias in zip("qkv", biases, strict=True)}
    for part in "kv":
        if f"bias_{part}" in parameters:  # (1, 1, embed_dim) to (heads, 1, head_dim)
            own[f"layer.mem_{part}"] = parameters[f"bias_{part}"].reshape(num_heads, 1, -1)
    return own


class XTransformersAttention(ReferenceForward):
    """The layer of x-transformers, called by a forward with the reference's arguments."""

    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        """Make the layer and load the reference's parameters into it.

        Raises: Refusal, with the reason, if the parameters are float64.
        """
        if parameters["out_proj.weight"].dtype == torch.float64:
            raise Refusal(SINGLE)
        self.layer = Attention(
            self.embed_dim,
            dim_head=self.head_dim,
            heads=self.num_heads,
            dim_context=self.kdim,
            dropout=self.dropout,
            num_mem_kv=int("bias_k" in parameters),  # a learned key and value: the reference's bias_k and bias_v
            add_zero_kv=self.add_zero_attn,
            project_out=True,
        )
        own = convert_parameters(parameters, self.num_heads)
        for name, tensor in own.items():
            if name.endswith(".bias"):  # x-transformers has no bias in this projection: add it
                self.get_submodule(name.removesuffix(".bias")).bias = nn.Parameter(torch.empty_like(tensor))
        self.to(parameters["out_proj.weight"]).load_state_dict(own)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention as the reference does; key and value must be the same tensor."""
        if key is not value:
            raise Refusal(ONE_CONTEXT)
        return super().forward(query, key, value, *rest, **named)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,  # noqa: ARG002  # the same as key
        *,
        mask: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Call the layer. Its ``attn_mask`` is true at visible keys; its ``attn_bias`` is added to the logits."""
        # With its causal flag, the layer aligns the causal mask at the bottom right, and the reference aligns it at the
        # top left. Use the flag only if there are as many queries as keys: both alignments are then the same.
        causal = is_causal and query.shape[1] == key.shape[1]
        keep, bias = (None, None) if mask is None or causal else self.translate_mask(mask)
        if need_weights and self.training and self.dropout:
            raise Refusal(DROPPED_WEIGHTS)
        if need_weights and keep is not None and not self.columns and not keep.any(dim=-1).all():
            raise Refusal(MASKED_ROW_WEIGHTS)
        output, intermediates = self.layer(
            query,
            key,
            attn_mask=keep,
            attn_bias=bias,
            causal=causal,
            return_intermediates=True,
        )
        # The layer puts the zero key and then the learned key (bias_k) before the given keys. The reference puts the
        # learned key and then the zero key after the given keys.
        layer_weights = intermediates.post_softmax_attn
        extra = layer_weights[..., : self.columns].flip(-1)
        weights = torch.cat([layer_weights[..., self.columns :], extra], dim=-1)
        return output, weights if need_weights else None

    def translate_mask(self, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """Translate a mask into a keep mask (batch or 1, heads or 1, queries, keys) and an additive mask.

        The additive mask is None if ``mask`` is boolean.

        No mask hides the learned key (bias_k) or the zero key. The layer itself extends the mask by the zero key.
        """
        numbers = None if mask.dtype == torch.bool else mask
        keep = mask if numbers is None else mask > float("-inf")
        learned = self.columns - self.add_zero_attn
        given = mask.shape[-1] - self.columns
        keep = nn.functional.pad(keep[..., :given], (learned, 0), value=True)
        keep = keep.reshape((1,) * (4 - keep.dim()) + keep.shape)
        if numbers is None:
            return keep, None
        bias = nn.functional.pad(numbers[..., :given], (learned, 0))
        return keep, bias.masked_fill(~keep, 0.0)


class XTransformers(Implementation):
    """Multi-head attention by x-transformers."""

    name = "x_transformers"
    source = "https://github.com/lucidrains/x-transformers"
    policies = Policies(causal="bottom_right")

    def unsupported(self, case: Case) -> str | None:
        """Return why the layer cannot compute a case, or None if it can."""
        problem = case.problem
        if case.dtype == "float64":
            return SINGLE
        if not (problem.self_attention or problem.key_is_value):
            return ONE_CONTEXT
        if problem.need_weights and problem.dropout and case.training:
            return DROPPED_WEIGHTS
        may_mask_rows = "empty" in problem.mask or "union" in problem.mask
        extra = problem.columns != problem.keys
        return MASKED_ROW_WEIGHTS if problem.need_weights and may_mask_rows and not extra else None

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Return the layer with the reference's parameters."""
        return XTransformersAttention(reference)

    def weights_of(self, module: XTransformersAttention, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the reference's parameters in the layout of the layer, which has as many memory keys as heads."""
        return convert_parameters(parameters, module.num_heads)


X_TRANSFORMERS = XTransformers()
