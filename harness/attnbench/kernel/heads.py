"""A base class with the reference's parameters, projections and extra keys; subclasses attend on split heads."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from attnbench.kernel.forward import ReferenceForward
from attnbench.kernel.parameter_access import Held

__all__ = ["HeadSplitAttention"]


class _OutputProjection(NonDynamicallyQuantizableLinear):
    """The output projection, with fast access to its parameters.

    The reference's ``out_proj`` has the same base class. Dynamic quantization does not replace modules of this class.
    """

    weight = Held[nn.Parameter]()
    bias = Held[nn.Parameter]()


class HeadSplitAttention(ReferenceForward):
    """The reference's forward, parameters and projections; subclasses define ``attend``.

    Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim).
    """

    in_proj_weight = Held[Tensor | None]()
    q_proj_weight = Held[Tensor]()
    k_proj_weight = Held[Tensor]()
    v_proj_weight = Held[Tensor]()
    in_proj_bias = Held[Tensor | None]()
    bias_k = Held[Tensor | None]()
    bias_v = Held[Tensor | None]()
    out_proj = Held[nn.Linear]("_modules")

    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        """Register copies of the reference's parameters under their names in the reference."""
        copies = {name: nn.Parameter(value.detach().clone()) for name, value in parameters.items()}
        names = (
            "in_proj_weight",
            "q_proj_weight",
            "k_proj_weight",
            "v_proj_weight",
            "in_proj_bias",
            "bias_k",
            "bias_v",
        )
        for name in names:
            self.register_parameter(name, copies.get(name))
        # The device "meta" avoids the initialisation with random numbers. The parameters in ``copies`` replace the
        # module's parameters below.
        biased = "out_proj.bias" in copies
        projection = _OutputProjection(self.embed_dim, self.embed_dim, bias=biased, device="meta")
        for name in ("weight", "bias"):
            projection.register_parameter(name, copies.get(f"out_proj.{name}"))
        self.add_module("out_proj", projection)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Apply the input projections, attend in all heads, and apply the output projection."""
        q, k, v = self.project(query, key, value)
        k, v = self.extend(k, v)
        output, weights = self.attend(q, k, v, mask=mask, is_causal=is_causal, need_weights=need_weights)
        return self.merge(output), weights

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of every head: (batch, heads, length, head_dim)."""
        if self.in_proj_weight is not None:
            w_q, w_k, w_v = self.in_proj_weight.chunk(3)
        else:
            w_q, w_k, w_v = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        b_q, b_k, b_v = self.in_proj_bias.chunk(3) if self.in_proj_bias is not None else (None, None, None)
        linear = nn.functional.linear
        return (
            self.split(linear(query, w_q, b_q)),
            self.split(linear(key, w_k, b_k)),
            self.split(linear(value, w_v, b_v)),
        )

    def split(self, features: Tensor) -> Tensor:
        """Split features into heads: (batch, length, embed_dim) to (batch, heads, length, head_dim)."""
        return torch.unflatten(features, -1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        """Concatenate the heads (batch, heads, queries, head_dim) and project to (batch, queries, embed_dim)."""
        return self.project_back(heads.transpose(1, 2).flatten(2))

    def project_back(self, features: Tensor) -> Tensor:
        """Apply the output projection: (..., embed_dim) to the same shape.

        As in the reference, the module out_proj is not called and only stores the parameters, so its hooks do not run.
        Calling out_proj would add up to 2 % to the time of a short attention call.
        """
        projection = self.out_proj
        return nn.functional.linear(features, projection.weight, projection.bias)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append the learned key and value (bias_k, bias_v), then the zero key and value, if the module has them."""
        if self.bias_k is not None and self.bias_v is not None:
            batch = k.shape[0]
            k = torch.cat([k, self.split(self.bias_k.to(k.dtype).expand(batch, 1, -1))], dim=2)
            v = torch.cat([v, self.split(self.bias_v.to(v.dtype).expand(batch, 1, -1))], dim=2)
        if self.add_zero_attn:
            k = nn.functional.pad(k, (0, 0, 0, 1))
            v = nn.functional.pad(v, (0, 0, 0, 1))
        return k, v

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output and, if needed, the attention weights.

        Shape: output (batch, heads, queries, head_dim), attention weights (batch, heads, queries, keys).
        """
        raise NotImplementedError
