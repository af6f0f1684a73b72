"""Kernels as implementations of ``attention_core``: this module builds the masks for a plain function."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Call, Inputs
from attnbench.kernel.arguments import check_arguments
from attnbench.kernel.declarations import DeclaredKernel
from attnbench.kernel.function import Kernel
from attnbench.masks import additive, combined, positional
from attnbench.refusals import Restriction, TypedRefusal

__all__ = ["CoreKernel", "core_from_kernel"]

# Positional masks, as ``positional`` returns them: a boolean mask (true = keep), and an additive mask.
Positional = tuple[Tensor | None, Tensor | None]


class _CoreAttention(nn.Module):
    """A module with the forward of ``attention_core``, which builds the mask and calls a plain function."""

    def __init__(self, kernel: "CoreKernel") -> None:
        super().__init__()
        self._kernel = kernel

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        bias: Tensor | None = None,
        key_lengths: Tensor | None = None,
        causal: str | None = None,
        window: int | None = None,
        alibi_slopes: Sequence[float] | None = None,
        softcap: float | None = None,
        scale: float | None = None,
        positions: Positional | None = None,
    ) -> Tensor:
        """Return the output (batch, heads, queries, head_dim_v).

        ``positions`` are precomputed positional masks; None means that the masks are computed here.
        """
        check_arguments(
            query, key, value, bias=bias, key_lengths=key_lengths, causal=causal, window=window,
            alibi_slopes=alibi_slopes, softcap=softcap, scale=scale,
        )  # fmt: skip
        kernel = self._kernel
        is_causal = kernel.flag_replaces_mask(
            query.shape[2], key.shape[2], causal=causal,
            only_causal=window is None and key_lengths is None and bias is None and alibi_slopes is None,
        )  # fmt: skip
        mask = bias
        positional_mask = (
            causal is not None or window is not None or key_lengths is not None or alibi_slopes is not None
        )
        if positional_mask and not is_causal:
            if positions is None:
                positions = positional(
                    query.shape[2], key.shape[2], causal=causal, window=window, key_lengths=key_lengths,
                    slopes=alibi_slopes, dtype=query.dtype, device=query.device,
                )  # fmt: skip
            keep, added = positions
            mask = combined(combined(bias, added, query.dtype), keep, query.dtype)
        if mask is not None and mask.dtype == torch.bool and kernel.additive_mask:
            mask = additive(mask, query.dtype)
        return kernel.attend(query, key, value, mask=mask, is_causal=is_causal, softcap=softcap, scale=scale)


class CoreKernel(DeclaredKernel):
    """A kernel as an implementation of ``attention_core``; see ``core_from_kernel``."""

    operator = "attention_core"

    def flag_replaces_mask(self, queries: int, keys: int, *, causal: str | None, only_causal: bool) -> bool:
        """Whether the kernel's function is called with ``is_causal=True`` in place of the causal mask.

        ``only_causal`` is true if the call has no bias and no mask other than a causal mask.
        """
        same_corner = queries == keys or self.policies.causal == causal
        return causal is not None and only_causal and same_corner and self.takes("is_causal")

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None,
        is_causal: bool,
        softcap: float | None,
        scale: float | None,
    ) -> Tensor:
        """Call the function with the keywords that it accepts, and return its output.

        Raises: Refusal where the function does not accept a keyword that the call needs.
        """
        shares = query.shape[1] != key.shape[1]
        needs = {"mask": mask is not None, "softcap": softcap is not None, "enable_gqa": shares}
        offered = {
            "mask": mask,
            "is_causal": is_causal,
            "scale": 1 / math.sqrt(query.shape[3]) if scale is None else scale,
            "dropout_p": 0.0,
            "need_weights": False,
            "softcap": softcap,
            "enable_gqa": shares,
        }
        return self.call_function(query, key, value, needs=needs, offered=offered)[0]

    def needs(self, case: Case) -> Mapping[str, bool]:
        """Return, for each of ``mask``, ``softcap`` and ``enable_gqa``, whether the case needs this keyword."""
        problem = case.problem
        return {
            "mask": bool(problem.parts) and not self._is_flag_only(case),
            "softcap": problem.softcap > 0,
            "enable_gqa": problem.key_heads != problem.num_heads,
        }

    def fits_convention(self, case: Case) -> Mapping[Restriction, bool]:
        """Return, for each restriction of a convention, whether the call of this case satisfies it."""
        problem = case.problem
        sizes = (problem.queries, problem.num_heads, problem.head_dim)
        return {
            "causal": self._is_flag_only(case),
            "boolean_masks": not problem.parts & {"bias2d", "bias4d", "alibi"},
            "equal_shapes": sizes == (problem.keys, problem.key_heads, problem.value_dim),
        }

    def _is_flag_only(self, case: Case) -> bool:
        """Whether, on this case, the kernel's function is called with ``is_causal=True`` and without a mask."""
        problem = case.problem
        only_causal = len(problem.parts) == 1
        return self.flag_replaces_mask(problem.queries, problem.keys, causal=problem.causal, only_causal=only_causal)

    def build(self, reference: Any) -> nn.Module:  # noqa: ARG002
        """Return a module whose forward calls the function; the module has no parameters."""
        return _CoreAttention(self)

    def prepare(self, module: nn.Module, case: Case, inputs: Inputs) -> Call:
        """Return a call of the module for which positional masks are computed now, before calls are timed."""
        return super().prepare(self._bind_positions(module, case, inputs), case, inputs)

    def _bind_positions(self, module: nn.Module, case: Case, inputs: Inputs) -> Call:
        """Return a call of the module with precomputed positional masks.

        If the case needs no positional masks, or if the masks depend on ``key_lengths``, return the module itself.
        """
        problem, query = case.problem, inputs.tensors["query"]
        unused = self._is_flag_only(case) or not problem.parts - {"bias2d", "bias4d"}
        if unused or "key_lengths" in inputs.tensors:
            return module
        positions = positional(
            problem.queries, problem.keys, causal=problem.causal, window=problem.window, key_lengths=None,
            slopes=inputs.options["alibi_slopes"], dtype=query.dtype, device=query.device,
        )  # fmt: skip

        def call(**arguments: Any) -> Any:
            return module(**arguments, positions=positions)

        return call


def core_from_kernel(
    kernel: Kernel,
    *,
    name: str = "",
    unsupported: Callable[[Case], TypedRefusal | str | None] | None = None,
    untimed: Callable[[Case], TypedRefusal | str | None] | None = None,
    predicted_s: Callable[[Case], float | None] | None = None,
) -> CoreKernel:
    """Make an implementation of ``attention_core`` from the kernel of a multi-head attention implementation.

    The kernel's function is called as in ``from_kernel``, with two more keywords if its signature has them. ``softcap``
    is a number, or None. ``enable_gqa`` is true if k and v have fewer heads than q; a block of query heads then shares
    one key head. The function gets causal masks, windows, ALiBi and sequence lengths as ``mask``. If there is no other
    mask, and the causal mask is aligned as ``policies.causal`` says or there are as many queries as keys, the function
    gets ``is_causal=True`` in place of ``mask``. A case that needs a keyword is refused if the function's signature
    lacks the keyword.

    ``name`` defaults to ``core_`` followed by the kernel's name. ``unsupported``, ``untimed`` and ``predicted_s`` are
    not taken from the kernel, because the kernel declares them for cases of another operator. Source, policies and
    environment are taken from the kernel.

    Shape: q (batch, heads, queries, head_dim), k (batch, kv_heads, keys, head_dim), v (batch, kv_heads, keys,
    head_dim_v), output (batch, heads, queries, head_dim_v).
    """
    return CoreKernel(
        kernel.function,
        name=name or f"core_{kernel.name}",
        source=kernel.source,
        policies=kernel.policies,
        convention=kernel.convention,
        unsupported=unsupported,
        untimed=untimed,
        predicted_s=predicted_s,
        environment=kernel.environment,
        compiles=kernel.compiles,
    )
