"""``Attention`` of x-transformers as an implementation: a library's layer with its own names and conventions.

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

ONE_CONTEXT = "x_transformers.Attention projects keys and values from one and the same context"
DROPPED_WEIGHTS = "x_transformers.Attention returns its weights as they were before dropout"
BLIND_WEIGHTS = "x_transformers.Attention gives a query that sees no key uniform weights (and no output)"
SINGLE = "x_transformers.Attention always takes the softmax in float32"


def own_parameters(parameters: Mapping[str, Tensor], num_heads: int) -> dict[str, Tensor]:
    """The reference's parameters under the names of the module below."""
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
    """The layer inside the reference's forward."""

    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        """Make the layer and load the reference's parameters into it.

        Raises: Refusal, with the reason, for float64.
        """
        if parameters["out_proj.weight"].dtype == torch.float64:
            raise Refusal(SINGLE)
        self.layer = Attention(
            self.embed_dim,
            dim_head=self.head_dim,
            heads=self.num_heads,
            dim_context=self.kdim,
            dropout=self.dropout,
            num_mem_kv=int("bias_k" in parameters),  # a learned key and value: what the reference calls bias_k, bias_v
            add_zero_kv=self.add_zero_attn,
            project_out=True,
        )
        own = own_parameters(parameters, self.num_heads)
        for name, tensor in own.items():
            if name.endswith(".bias"):  # its projections are made without
                self.get_submodule(name.removesuffix(".bias")).bias = nn.Parameter(torch.empty_like(tensor))
        self.to(parameters["out_proj.weight"]).load_state_dict(own)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attention as the reference computes it, where keys and values are one tensor."""
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
        """The layer, with masks in its terms: booleans are true for what is kept, numbers are a bias on top."""
        # Its causal flag is aligned at the bottom right.
        causal = is_causal and query.shape[1] == key.shape[1]
        keep, bias = (None, None) if mask is None or causal else self.translated(mask)
        if need_weights and self.training and self.dropout:
            raise Refusal(DROPPED_WEIGHTS)
        if need_weights and keep is not None and not self.columns and not keep.any(dim=-1).all():
            raise Refusal(BLIND_WEIGHTS)
        output, seen = self.layer(
            query,
            key,
            attn_mask=keep,
            attn_bias=bias,
            causal=causal,
            return_intermediates=True,
        )
        # Its extra columns come first: the zero key, then the learned one; the reference's come last, the other way.
        first = seen.post_softmax_attn[..., : self.columns].flip(-1)
        weights = torch.cat([seen.post_softmax_attn[..., self.columns :], first], dim=-1)
        return output, weights if need_weights else None

    def translated(self, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """What a mask keeps (batch or 1, heads or 1, queries, keys), and what it adds to the logits.

        Of the extra columns, which no mask hides, the layer pads the zero key's itself.
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
        """What the layer has no argument for."""
        problem = case.problem
        if case.dtype == "float64":
            return SINGLE
        if not (problem.self_attention or problem.key_is_value):
            return ONE_CONTEXT
        if problem.need_weights and problem.dropout and case.training:
            return DROPPED_WEIGHTS
        may_be_blind = "empty" in problem.mask or "union" in problem.mask
        return BLIND_WEIGHTS if problem.need_weights and may_be_blind and problem.columns == problem.keys else None

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """The layer with the reference's weights."""
        self.num_heads = reference.num_heads  # weights() is not told, and the parameters do not show it
        return XTransformersAttention(reference)

    def weights(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The reference's parameters in the layout of the module that was built last."""
        return own_parameters(parameters, self.num_heads)


X_TRANSFORMERS = XTransformers()
