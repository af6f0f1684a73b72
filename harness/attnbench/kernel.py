"""An attention kernel as a whole module: projections, heads, masks, extra columns around a plain function."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Implementation, Policies, Refusal, accepted, reference_arguments
from attnbench.masks import additive, extended, reference_mask

__all__ = ["HeadSplitAttention", "Kernel", "ReferenceForward", "from_kernel"]

# fn(q, k, v, *, mask, is_causal, scale, dropout_p, need_weights) -> output, or (output, weights)
KernelFunction = Callable[..., Any]
FORWARD_ONLY = "forward only: no gradients"


class ReferenceForward(nn.Module):
    """The reference's forward around ``attention``: layouts, masks and the causal flag."""

    def __init__(self, reference: nn.MultiheadAttention) -> None:
        super().__init__()
        arguments = reference_arguments(reference)
        self.embed_dim: int = arguments["embed_dim"]
        self.num_heads: int = arguments["num_heads"]
        self.kdim: int = arguments["kdim"]
        self.vdim: int = arguments["vdim"]
        self.dropout: float = arguments["dropout"]
        self.add_zero_attn: bool = arguments["add_zero_attn"]
        self.batch_first: bool = arguments["batch_first"]
        self.head_dim = self.embed_dim // self.num_heads
        # Keys beyond the given ones: the learned column and the zero column.
        self.columns = arguments["add_bias_kv"] + self.add_zero_attn
        self.adopt(dict(reference.named_parameters()))
        self.train(reference.training)

    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        """Take the reference's parameters, given under the reference's names."""
        raise NotImplementedError

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
        """Output (batch, queries, embed_dim) and weights (batch, heads, queries, keys) if asked for.

        ``mask`` and the weights have the extra columns; ``is_causal`` says that the mask is causal, no more.

        Shape: query (batch, queries, embed_dim), key (batch, keys, kdim), value (batch, keys, vdim), mask
        broadcastable to (batch, heads, queries, keys).
        """
        raise NotImplementedError

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

        Shape: (batch, length, embed_dim) if batch_first, else (length, batch, embed_dim); unbatched
        (length, embed_dim).
        """
        if query.dim() not in (2, 3) or not query.dim() == key.dim() == value.dim():
            dims = f"{query.dim()}, {key.dim()} and {value.dim()}"
            raise ValueError(f"query, key and value must all have 3 dimensions, or 2 without a batch, got {dims}")
        batched = query.dim() == 3
        swapped = batched and not self.batch_first
        if not batched:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif swapped:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        self._check(query, key, value, attn_mask=attn_mask, key_padding_mask=key_padding_mask)

        if is_causal and attn_mask is None:
            raise ValueError("is_causal=True needs attn_mask: pass the causal mask that it promises")
        # The flag promises that attn_mask is causal. It replaces the mask only where nothing else hides or
        # adds keys.
        causal_only = is_causal and key_padding_mask is None and self.columns == 0
        mask = reference_mask(attn_mask, key_padding_mask, num_heads=self.num_heads, dtype=query.dtype)
        mask = extended(mask, self.columns)
        output, weights = self.attention(query, key, value, mask=mask, is_causal=causal_only, need_weights=need_weights)

        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)  # (batch, queries, keys)
        if not batched:
            return output[0], None if weights is None else weights[0]
        return (output.transpose(0, 1) if swapped else output), weights

    def _check(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
    ) -> None:
        """Refuse shapes that would broadcast into a wrong answer; all are batch first here."""
        (batch, queries), keys = query.shape[:2], key.shape[1]
        _demand("query", query, (batch, queries, self.embed_dim))
        _demand("key", key, (batch, keys, self.kdim))
        _demand("value", value, (batch, keys, self.vdim))
        if attn_mask is not None:
            _demand_mask("attn_mask", attn_mask, (queries, keys), (batch * self.num_heads, queries, keys))
        if key_padding_mask is not None:
            _demand_mask("key_padding_mask", key_padding_mask, (batch, keys))


def _demand(name: str, tensor: Tensor, *shapes: tuple[int, ...]) -> None:
    if tuple(tensor.shape) not in shapes:
        wanted = " or ".join(str(shape) for shape in shapes)
        raise ValueError(f"{name} must have shape {wanted}, batch first, got {tuple(tensor.shape)}")


def _demand_mask(name: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
    _demand(name, mask, *shapes)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"{name} must be boolean (true hides) or floating point (added), got {mask.dtype}")


class HeadSplitAttention(ReferenceForward):
    """The reference's parameters and projections around ``attend``.

    Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim).
    """

    in_proj_weight: Tensor | None
    q_proj_weight: Tensor
    k_proj_weight: Tensor
    v_proj_weight: Tensor
    in_proj_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None

    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        """Take the reference's parameters under the reference's names."""
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
        # On "meta" it draws no random numbers for weights that are replaced at once.
        self.out_proj = nn.Linear(self.embed_dim, self.embed_dim, bias="out_proj.bias" in copies, device="meta")
        for name in ("weight", "bias"):
            self.out_proj.register_parameter(name, copies.get(f"out_proj.{name}"))

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
        """Project, attend in every head at once, project back."""
        q, k, v = self.project(query, key, value)
        k, v = self.extend(k, v)
        output, weights = self.attend(q, k, v, mask=mask, is_causal=is_causal, need_weights=need_weights)
        return self.merge(output), weights

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
        return torch.unflatten(features, -1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        """Concatenate and project: (batch, heads, queries, head_dim) to (batch, queries, embed_dim)."""
        return self.out_proj(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values with the learned column (bias_k, bias_v), then the zero column."""
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
        is_causal = is_causal and takes("is_causal")
        if is_causal:
            mask = None
        elif mask is not None and (self._kernel.additive_mask or mask.dtype != torch.bool):
            # Under autocast q is narrower than the query that the mask was made for.
            mask = additive(mask, q.dtype) if mask.dtype == torch.bool else mask.to(q.dtype)
        dropout_p = self.dropout if self.training else 0.0
        offered = {
            "mask": mask,
            "is_causal": is_causal,
            "scale": 1.0 / math.sqrt(self.head_dim),
            "dropout_p": dropout_p,
            "need_weights": need_weights,
        }
        needs = {"mask": mask is not None, "dropout_p": dropout_p > 0, "need_weights": need_weights}
        reason = self._kernel.lacks(needs)
        if self._kernel.policies.forward_only and torch.is_grad_enabled() and (q.requires_grad or v.requires_grad):
            reason = FORWARD_ONLY
        if reason:
            raise Refusal(reason)
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
        environment: Callable[[], Mapping[str, str]] | None,
    ) -> None:
        self.function = function
        self.name = name
        self.source = source
        self.policies = policies
        self.additive_mask = additive_mask
        self._unsupported = unsupported
        self._untimed = untimed
        self._predicted_s = predicted_s
        self._environment = environment
        self._accepted = accepted(function)

    def takes(self, keyword: str) -> bool:
        """Whether the function's signature has this keyword."""
        return self._accepted is None or keyword in self._accepted

    def lacks(self, needs: Mapping[str, bool]) -> str | None:
        """Which keyword is needed and not in the function's signature, as a reason, or None."""
        return next(
            (f"the kernel takes no {word}" for word, needed in needs.items() if needed and not self.takes(word)),
            None,
        )

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
        if reason := self.lacks(needs):
            return reason
        if self.policies.forward_only and case.mode != "inference":
            return FORWARD_ONLY
        return self._unsupported(case) if self._unsupported else None

    def untimed(self, case: Case) -> str | None:
        """What its author says."""
        return self._untimed(case) if self._untimed else None

    def predicted_s(self, case: Case) -> float | None:
        """What its author predicts."""
        return self._predicted_s(case) if self._predicted_s else None

    def environment(self) -> Mapping[str, str]:
        """What its author asks for."""
        return self._environment() if self._environment else {}

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
    environment: Callable[[], Mapping[str, str]] | None = None,
) -> Kernel:
    """Implementation of multi-head attention around a plain function.

    The function is called as ``function(q, k, v, **keywords)`` with those of ``mask``, ``is_causal``,
    ``scale``, ``dropout_p`` and ``need_weights`` that its signature has; it returns the output, or output and
    weights. Cases that need an absent keyword are refused. ``mask`` is boolean with true = keep, or additive
    (always additive with ``additive_mask``); ``is_causal`` comes only where no extra columns are, and then
    without a mask.

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
