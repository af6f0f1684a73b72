"""A plain function of split heads as an implementation of ``attention_core``: nothing around it but its masks."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Call, Inputs
from attnbench.kernel.arguments import check_arguments
from attnbench.kernel.declared import DeclaredKernel
from attnbench.kernel.function import Kernel
from attnbench.masks import additive, combined, positional

__all__ = ["CoreKernel", "core_from_kernel"]

# Keep mask, and numbers to add.
Positional = tuple[Tensor | None, Tensor | None]


class _CoreAttention(nn.Module):
    """The call of ``attention_core`` around a plain function."""

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
        """Output (batch, heads, queries, head_dim_v); ``positions`` are masks of positions that were made before."""
        check_arguments(
            query, key, value, bias=bias, key_lengths=key_lengths, causal=causal, window=window,
            alibi_slopes=alibi_slopes, softcap=softcap, scale=scale,
        )  # fmt: skip
        kernel = self._kernel
        flag = kernel.flagged(
            query.shape[2], key.shape[2], causal=causal,
            alone=window is None and key_lengths is None and bias is None and alibi_slopes is None,
        )  # fmt: skip
        mask = bias
        placed = causal is not None or window is not None or key_lengths is not None or alibi_slopes is not None
        if placed and not flag:
            if positions is None:
                positions = positional(
                    query.shape[2], key.shape[2], causal=causal, window=window, key_lengths=key_lengths,
                    slopes=alibi_slopes, dtype=query.dtype, device=query.device,
                )  # fmt: skip
            keep, added = positions
            mask = combined(combined(bias, added, query.dtype), keep, query.dtype)
        if mask is not None and mask.dtype == torch.bool and kernel.additive_mask:
            mask = additive(mask, query.dtype)
        return kernel.attend(query, key, value, mask=mask, is_causal=flag, softcap=softcap, scale=scale)


class CoreKernel(DeclaredKernel):
    """A kernel by itself, as an implementation of ``attention_core``; see ``core_from_kernel``."""

    operator = "attention_core"

    def flagged(self, queries: int, keys: int, *, causal: str | None, alone: bool) -> bool:
        """Whether the function's causal flag says all that masks would; ``alone``: nothing else hides or adds."""
        same_corner = queries == keys or self.policies.causal == causal
        return causal is not None and alone and same_corner and self.takes("is_causal")

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
        """What the function returns, handed those keywords that it has.

        Raises: Refusal where it lacks one that is needed.
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
        return self.returned(query, key, value, needs=needs, offered=offered)[0]

    def needs(self, case: Case) -> Mapping[str, bool]:
        """A mask where the flag does not say it, a soft-cap, and shared heads of keys."""
        problem = case.problem
        return {
            "mask": bool(problem.parts) and not self._flag_says_it(case),
            "softcap": problem.softcap > 0,
            "enable_gqa": problem.key_heads != problem.num_heads,
        }

    def _flag_says_it(self, case: Case) -> bool:
        """Whether a case's mask comes as the function's causal flag."""
        problem = case.problem
        return self.flagged(problem.queries, problem.keys, causal=problem.causal, alone=len(problem.parts) == 1)

    def build(self, reference: Any) -> nn.Module:  # noqa: ARG002
        """The function behind the operator's call; there are no parameters to take over."""
        return _CoreAttention(self)

    def prepare(self, module: nn.Module, case: Case, inputs: Inputs) -> Call:
        """The module; masks that are made of nothing but positions are made here, once."""
        return super().prepare(self._placed(module, case, inputs), case, inputs)

    def _placed(self, module: nn.Module, case: Case, inputs: Inputs) -> Call:
        """The module, handed its masks of positions."""
        problem, query = case.problem, inputs.tensors["query"]
        needless = self._flag_says_it(case) or not problem.parts - {"bias2d", "bias4d"}
        if needless or "key_lengths" in inputs.tensors:
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
    unsupported: Callable[[Case], str | None] | None = None,
    untimed: Callable[[Case], str | None] | None = None,
    predicted_s: Callable[[Case], float | None] | None = None,
) -> CoreKernel:
    """The kernel inside an implementation of multi-head attention, by itself, as one of ``attention_core``.

    The function is called as it is in ``from_kernel``, with two keywords more where its signature has them:
    ``softcap`` (a number, or None) and ``enable_gqa`` (true: k and v have fewer heads, each shared by a block of q's).
    Causal masks, windows, ALiBi and lengths of sequences reach it as its ``mask``; a causal mask alone, in the corner
    of its ``policies``, as ``is_causal``. What needs a keyword that it lacks is refused.

    ``name`` is the kernel's after ``core_`` unless given. What it declares of cases is told anew, because they are
    cases of another operator; source, policies and environment are the kernel's.

    Shape: q (batch, heads, queries, head_dim), k (batch, kv_heads, keys, head_dim), v (batch, kv_heads, keys,
    head_dim_v), output (batch, heads, queries, head_dim_v).
    """
    return CoreKernel(
        kernel.function,
        name=name or f"core_{kernel.name}",
        source=kernel.source,
        policies=kernel.policies,
        additive_mask=kernel.additive_mask,
        unsupported=unsupported,
        untimed=untimed,
        predicted_s=predicted_s,
        environment=kernel.environment,
        compiles=kernel.compiles,
    )
