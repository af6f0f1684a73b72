"""An attention kernel as a whole module: projections, heads, masks and extra columns around a plain function."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Implementation, Policies, accepted, reference_arguments
from attnbench.masks import additive, extended, reference_mask

__all__ = ["HeadSplitAttention", "Kernel", "from_kernel"]

# fn(q, k, v, *, mask, is_causal, scale, dropout_p, need_weights) -> output, or (output, weights)
KernelFunction = Callable[..., Any]


class HeadSplitAttention(nn.Module):
    """The reference's module around ``attend``: same parameters, same forward.

    Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim).
    """

    def __init__(self, reference: nn.MultiheadAttention) -> None:
        super().__init__()
        arguments = reference_arguments(reference)
        self.embed_dim: int = arguments["embed_dim"]
        self.num_heads: int = arguments["num_heads"]
        self.dropout: float = arguments["dropout"]
        self.add_zero_attn: bool = arguments["add_zero_attn"]
        self.batch_first: bool = arguments["batch_first"]
        self.head_dim = self.embed_dim // self.num_heads
        self.adopt(dict(reference.named_parameters()))

    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        """Take the reference's parameters under the reference's names."""
        copies = {name: nn.Parameter(value.detach().clone()) for name, value in parameters.items()}
        out_proj = nn.Module()
        for name in ("weight", "bias"):
            out_proj.register_parameter(name, copies.pop(f"out_proj.{name}", None))
        self.out_proj = out_proj
        optional = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k", "bias_v")
        for name in optional:
            self.register_parameter(name, copies.get(name))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,  # noqa: FBT001, FBT002  # the reference's signature
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,  # noqa: FBT001, FBT002
        is_causal: bool = False,  # noqa: FBT001, FBT002
    ) -> tuple[Tensor, Tensor | None]:
        """Attention as the reference computes it.

        Shape: (batch, length, embed_dim) if batch_first, else (length, batch, embed_dim), or (length, embed_dim).
        """
        batched = query.dim() == 3
        swapped = batched and not self.batch_first
        if not batched:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif swapped:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)

        if is_causal and attn_mask is None:
            raise ValueError("is_causal=True needs attn_mask: pass the causal mask that it promises")
        # The flag promises that attn_mask is causal. It replaces the mask only where nothing else hides or adds keys.
        causal_only = is_causal and key_padding_mask is None
        mask = reference_mask(attn_mask, key_padding_mask, num_heads=self.num_heads, dtype=query.dtype)
        q, k, v = self.project(query, key, value)
        q, k, v, mask, columns = self.extend(q, k, v, mask)
        output, weights = self.attend(
            q, k, v, mask=mask, is_causal=causal_only and columns == 0, need_weights=need_weights
        )
        output = self.merge(output)

        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)  # (batch, queries, keys)
        if not batched:
            return output[0], None if weights is None else weights[0]
        return (output.transpose(0, 1) if swapped else output), weights

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head: (batch, heads, length, head_dim)."""
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
        """Heads out of features: (batch, length, embed_dim) to (batch, heads, length, head_dim)."""
        return features.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        """Output projection of concatenated heads: (batch, heads, queries, head_dim) to (batch, queries, embed_dim)."""
        return nn.functional.linear(heads.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias)

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, int]:
        """Keys and values with the learned column (bias_k, bias_v) and the zero column, and how many were added."""
        keys = k.shape[2]
        if self.bias_k is not None:
            batch = k.shape[0]
            k = torch.cat([k, self.split(self.bias_k.expand(batch, 1, -1))], dim=2)
            v = torch.cat([v, self.split(self.bias_v.expand(batch, 1, -1))], dim=2)
        if self.add_zero_attn:
            k = nn.functional.pad(k, (0, 0, 0, 1))
            v = nn.functional.pad(v, (0, 0, 0, 1))
        columns = k.shape[2] - keys
        return q, k, v, extended(mask, columns), columns

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Output (batch, heads, queries, head_dim) and weights (batch, heads, queries, keys) if asked for."""
        raise NotImplementedError


class _KernelAttention(HeadSplitAttention):
    """Attention whose core is a plain function."""

    def __init__(self, reference: nn.MultiheadAttention, kernel: "Kernel") -> None:
        super().__init__(reference)
        self._kernel = kernel

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        takes = self._kernel.takes
        if is_causal and takes("is_causal"):
            mask = None
        elif is_causal:
            is_causal = False
        if mask is not None and self._kernel.additive_mask and mask.dtype == torch.bool:
            mask = additive(mask, q.dtype)
        offered = {
            "mask": mask,
            "is_causal": is_causal,
            "scale": 1.0 / math.sqrt(self.head_dim),
            "dropout_p": self.dropout if self.training else 0.0,
            "need_weights": need_weights,
        }
        returned = self._kernel.function(q, k, v, **{name: value for name, value in offered.items() if takes(name)})
        output, weights = returned if isinstance(returned, tuple) else (returned, None)
        return output, weights if need_weights else None


class Kernel(Implementation):
    """An implementation made from a function on head-split tensors; see ``from_kernel``."""

    def __init__(
        self,
        function: KernelFunction,
        *,
        name: str,
        source: str,
        policies: Policies,
        additive_mask: bool,
        unsupported: Callable[[Case], str | None] | None,
        untimed: Callable[[Case], str | None] | None,
        predicted_s: Callable[[Case], float | None] | None,
        environment: Mapping[str, str] | None,
    ) -> None:
        self.function = function
        self.name = name
        self.source = source
        self.policies = policies
        self.additive_mask = additive_mask
        self._unsupported = unsupported
        self._untimed = untimed
        self._predicted_s = predicted_s
        self._environment = environment or {}
        self._accepted = accepted(function)

    def takes(self, keyword: str) -> bool:
        """Whether the function's signature has this keyword."""
        return self._accepted is None or keyword in self._accepted

    def unsupported(self, case: Case) -> str | None:
        """Refuse what needs a keyword that the function does not have, then what its author refuses."""
        problem = case.problem
        extra_columns = problem.add_bias_kv or problem.add_zero_attn
        flag_suffices = problem.is_causal and problem.mask == "causal" and not extra_columns
        needs = {
            "need_weights": problem.need_weights,
            "dropout_p": problem.dropout > 0 and case.mode == "train",
            "mask": problem.mask != "none" and not (flag_suffices and self.takes("is_causal")),
        }
        for keyword, needed in needs.items():
            if needed and not self.takes(keyword):
                return f"the kernel takes no {keyword}"
        if self.policies.forward_only and case.mode != "inference":
            return "forward only: no gradients"
        return self._unsupported(case) if self._unsupported else None

    def untimed(self, case: Case) -> str | None:
        """What its author says."""
        return self._untimed(case) if self._untimed else None

    def predicted_s(self, case: Case) -> float | None:
        """What its author predicts."""
        return self._predicted_s(case) if self._predicted_s else None

    def environment(self) -> Mapping[str, str]:
        """What its author asks for."""
        return self._environment

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """The function inside the reference's module."""
        return _KernelAttention(reference, self)


def from_kernel(
    function: KernelFunction,
    *,
    name: str = "",
    source: str = "",
    policies: Policies | None = None,
    additive_mask: bool = False,
    unsupported: Callable[[Case], str | None] | None = None,
    untimed: Callable[[Case], str | None] | None = None,
    predicted_s: Callable[[Case], float | None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Kernel:
    """Implementation of multi-head attention around a plain function.

    The function is called as ``function(q, k, v, **keywords)`` with those of ``mask``, ``is_causal``, ``scale``,
    ``dropout_p`` and ``need_weights`` that its signature has, and returns the output, or output and weights. Cases
    that need an absent keyword are refused. ``mask`` is boolean with true = keep, or additive (always additive with
    ``additive_mask``); ``is_causal`` comes only where no extra columns are, and then without a mask.

    Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim), mask broadcastable to
    (batch, heads, queries, keys), output like q, weights (batch, heads, queries, keys).
    """
    return Kernel(
        function,
        name=name or function.__name__,
        source=source,
        policies=policies or Policies(),
        additive_mask=additive_mask,
        unsupported=unsupported,
        untimed=untimed,
        predicted_s=predicted_s,
        environment=environment,
    )
