"""One projection per head, heads computed one after another and concatenated: the formula as the paper prints it.

    MultiHead(Q, K, V) = Concat(head_1, …, head_h) Wᴼ
    head_i = softmax(scale · (Q W_iᑫ)(K W_iᴷ)ᵀ + M) (V W_iⱽ)        with the additive mask M

Shape: W_iᑫ (head_dim, embed_dim), W_iᴷ (head_dim, kdim), W_iⱽ (head_dim, vdim), Wᴼ (embed_dim, embed_dim).
Source: Vaswani et al., Attention Is All You Need, 2017, section 3.2.2, https://arxiv.org/abs/1706.03762.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from attnbench.interface import Implementation, Policies
from attnbench.kernel import ReferenceForward
from attnbench.masks import additive, softmax_over_visible

__all__ = ["PER_HEAD", "PerHeadAttention", "split_parameters"]

# Names of the parameters in this module (keys), and in ``torch.nn.MultiheadAttention`` (values).
# PACKED: parameters that torch packs into one tensor, which has the rows for queries first, then the
# rows for keys, then the rows for values. SEPARATE: parameters that torch stores separately. WHOLE:
# parameters that this module does not split by head.
PACKED = {("w_q", "w_k", "w_v"): "in_proj_weight", ("b_q", "b_k", "b_v"): "in_proj_bias"}
SEPARATE = {
    "w_q": "q_proj_weight",
    "w_k": "k_proj_weight",
    "w_v": "v_proj_weight",
    "column_k": "bias_k",
    "column_v": "bias_v",
}
WHOLE = {"w_o": "out_proj.weight", "b_o": "out_proj.bias"}


def split_parameters(parameters: Mapping[str, Tensor], num_heads: int) -> dict[str, Tensor]:
    """Split the parameters of ``torch.nn.MultiheadAttention`` by head.

    ``w_q.h`` in the result is the query projection of head h.

    Shape: ``w_q.h`` (head_dim, embed_dim), ``w_k.h`` (head_dim, kdim), ``w_v.h`` (head_dim, vdim);
    ``b_q.h``, ``b_k.h``, ``b_v.h`` (head_dim); ``column_k.h`` and ``column_v.h`` (head_dim), from bias_k and bias_v;
    ``w_o`` (embed_dim, embed_dim) and ``b_o`` (embed_dim) are not split.
    """
    stacked = {own: _flatten_column(parameters[name]) for own, name in SEPARATE.items() if name in parameters}
    for owns, name in PACKED.items():
        if name in parameters:
            stacked |= zip(owns, parameters[name].chunk(3), strict=True)
    cut = {f"{own}.{h}": part for own, rows in stacked.items() for h, part in enumerate(rows.chunk(num_heads))}
    return cut | {own: parameters[name] for own, name in WHOLE.items() if name in parameters}


def _flatten_column(parameter: Tensor) -> Tensor:
    """Reshape bias_k or bias_v from (1, 1, embed_dim) to (embed_dim); return a weight matrix unchanged."""
    return parameter.flatten() if parameter.dim() == 3 else parameter


class PerHeadAttention(ReferenceForward):
    """Multi-head attention with a separate projection for each head."""

    w_q: nn.ParameterList
    w_k: nn.ParameterList
    w_v: nn.ParameterList
    b_q: nn.ParameterList
    b_k: nn.ParameterList
    b_v: nn.ParameterList
    column_k: nn.ParameterList
    column_v: nn.ParameterList
    w_o: Tensor
    b_o: Tensor | None

    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        """Register copies of ``parameters``, split by head.

        ``w_o`` and ``b_o`` are not split. Each other parameter is a ParameterList with one entry
        per head.
        """
        own = split_parameters(parameters, self.num_heads)
        copies = {name: nn.Parameter(tensor.detach().clone()) for name, tensor in own.items()}
        for name in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v", "column_k", "column_v"):
            heads = [copies[f"{name}.{h}"] for h in range(self.num_heads) if f"{name}.{h}" in copies]
            self.register_module(name, nn.ParameterList(heads))
        for name in WHOLE:
            self.register_parameter(name, copies.get(name))

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None,
        is_causal: bool,  # noqa: ARG002  # the mask says the same
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute output and attention weights, one head after another.

        Shape: returns (batch, queries, embed_dim) and (batch, heads, queries, keys).
        """
        if mask is not None:
            mask = additive(mask, query.dtype) if mask.dtype == torch.bool else mask
            mask = mask.expand(len(query), self.num_heads, query.shape[1], -1)
        heads = [
            self.attend_head(h, query, key, value, mask=None if mask is None else mask[:, h])
            for h in range(self.num_heads)
        ]
        outputs = torch.cat([output for output, _ in heads], dim=-1)  # (batch, queries, embed_dim)
        weights = torch.stack([weights for _, weights in heads], dim=1) if need_weights else None
        return nn.functional.linear(outputs, self.w_o, self.b_o), weights

    def attend_head(
        self, h: int, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute output (batch, queries, head_dim) and attention weights (batch, queries, keys) of one head."""
        q = nn.functional.linear(query, self.w_q[h], self.b_q[h] if self.b_q else None)
        k = nn.functional.linear(key, self.w_k[h], self.b_k[h] if self.b_k else None)
        v = nn.functional.linear(value, self.w_v[h], self.b_v[h] if self.b_v else None)
        if self.column_k:
            k = torch.cat([k, self.column_k[h].to(k.dtype).expand(len(k), 1, -1)], dim=1)
            v = torch.cat([v, self.column_v[h].to(v.dtype).expand(len(v), 1, -1)], dim=1)
        if self.add_zero_attn:
            k, v = nn.functional.pad(k, (0, 0, 0, 1)), nn.functional.pad(v, (0, 0, 0, 1))
        logits = (q / math.sqrt(self.head_dim)) @ k.transpose(1, 2)  # (batch, queries, keys)
        if mask is not None:
            logits = logits + mask
        weights = nn.functional.dropout(softmax_over_visible(logits), self.dropout, self.training)
        return weights @ v, weights


class PerHead(Implementation):
    """Multi-head attention whose parameters are split by head."""

    name = "per_head"
    source = "https://arxiv.org/abs/1706.03762"
    policies = Policies(twice_differentiable=True)

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Return a module with the parameters of ``reference``, split by head."""
        # The method weights() needs the number of heads, which the shapes of the parameters do not
        # show.
        self.num_heads = reference.num_heads
        return PerHeadAttention(reference)

    def weights(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``parameters`` of the reference, split by head.

        The number of heads is that of the reference in the last call of ``build``.
        """
        return split_parameters(parameters, self.num_heads)


PER_HEAD = PerHead()
