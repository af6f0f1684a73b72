"""Multi-head attention in which every sum has a fixed order, so that its bits depend on nothing but its terms.

A library chooses the order of a sum by the sizes of the whole call: a sequence then has other last bits in a larger
batch, beside padding, or without the other queries. Here every product of matrices is the sum

    (A B)_ij = (((a_i0 b_0j) + a_i1 b_1j) + a_i2 b_2j) + …

with one rounding after each product and each sum, and elements of a tensor are computed independently of one another.
Hidden keys add exact zeros. In the softmax

    p_j = e^(x_j − max x) / Σ_j e^(x_j − max x)

the exponential is a polynomial, since vectorised exponentials round the last elements of a tensor in another way. All
numbers are computed in float64, and results are rounded to the dtype of the inputs. Gradients are sums of the same
kind, over queries or keys in ascending order. The price is one pass over a matrix for each term of a sum.

In a fully masked row (a query that sees no key) the output is 0. There is no dropout.

Shape: A (..., rows, terms), B (..., terms, columns); q (batch, heads, queries, head_dim).
Source: He, Defeating Nondeterminism in LLM Inference, 2025,
https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/; exponential: Muller, Elementary Functions,
2016, section 11.4 (reduction of the argument by a two-part log 2).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attnbench.cases import Case
from attnbench.interface import Implementation, Policies, Refusal
from attnbench.kernel import HeadSplitAttention
from attnbench.masks import additive
from attnbench.refusals import CannotCompile, LacksKeywords, TypedRefusal

__all__ = ["FIXED_ORDER", "FixedOrder", "multiply", "softmax"]

# log 2 as a sum of two float64 numbers. The first has 21 zero bits at its end, so that its product with an exponent is
# exact. Source: fdlibm, e_exp.c, https://www.netlib.org/fdlibm/e_exp.c.
LOG2_HIGH, LOG2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# Terms of the Taylor series of e^r for |r| ≤ log(2) / 2: the next term is below 2^-57.
TERMS = 14
# Smallest x whose e^x is a normal float64; smaller ones give 0.
LOWEST = -708.0
# Bias and number of mantissa bits of float64.
BIAS, MANTISSA = 1023, 52
WIDE = torch.float64
# Seconds for each product of two numbers, of a call without backward and with it. An estimate, not a measurement: a
# product and a sum read and write about 40 bytes, at 27 GB/s; backward has two further sums for each one of forward.
FORWARD_S, WITH_BACKWARD_S = 1.5e-9, 4.5e-9
NO_DROPOUT = LacksKeywords(keywords=("dropout_p",))


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices, or of two batches of matrices of one size; terms are added in order."""
    return _Product.apply(a, b)  # type: ignore[no-any-return, no-untyped-call]


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax over the last dimension, 0 where all logits are −∞."""
    return _Softmax.apply(logits)  # type: ignore[no-any-return, no-untyped-call]


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    outer: torch.Size = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    total = a.new_zeros(*outer, a.shape[-2], b.shape[-1])
    for term in range(a.shape[-1]):
        # Two operations: one that multiplies and adds may round once or twice.
        total += a[..., :, term, None] * b[..., None, term, :]
    return total


def _sum_in_order(tensor: Tensor) -> Tensor:
    """Return the sum over the last dimension, which is kept."""
    total = tensor.new_zeros(*tensor.shape[:-1], 1)
    for term in range(tensor.shape[-1]):
        total += tensor[..., term, None]
    return total


def _exponential(x: Tensor) -> Tensor:
    """Return e^x of numbers that are at most 0, to about the last bit; NaN stays NaN."""
    is_zero = x < LOWEST
    kept = x.masked_fill(is_zero, 0.0)
    power = torch.round(kept / math.log(2))
    rest = (kept - power * LOG2_HIGH) - power * LOG2_LOW
    series = torch.ones_like(rest)
    for term in range(TERMS, 0, -1):
        series = series * (rest / term) + 1.0
    scale = ((power.nan_to_num().to(torch.int64) + BIAS) << MANTISSA).view(WIDE)
    return (series * scale).masked_fill(is_zero, 0.0)


class _Product(torch.autograd.Function):
    """(A B)_ij = Σ_k a_ik b_kj; dA = dO Bᵀ, dB = Aᵀ dO."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return _multiply(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        (incoming,) = gradients
        of_a = _multiply(incoming, b.mT) if ctx.needs_input_grad[0] else None
        of_b = _multiply(a.mT, incoming) if ctx.needs_input_grad[1] else None
        return of_a, of_b


class _Softmax(torch.autograd.Function):
    """p = softmax(x); dx = p · (dp − Σ dp p)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        if logits.shape[-1] == 0:
            weights = logits.clone()
        else:
            largest = logits.amax(dim=-1, keepdim=True)
            powers = _exponential(logits - largest.masked_fill(largest == -math.inf, 0.0))
            total = _sum_in_order(powers)
            weights = powers / total.masked_fill(total == 0, 1.0)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        weights: Tensor = ctx.saved_tensors[0]
        (incoming,) = gradients
        return weights * (incoming - _sum_in_order(incoming * weights))


class _FixedOrderAttention(HeadSplitAttention):
    """Multi-head attention whose projections and attention are products with a fixed order of summation."""

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        del is_causal  # the mask is given too
        if self.dropout and self.training:
            raise Refusal(NO_DROPOUT)
        kind, dtype = query.device.type, self.out_proj.weight.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        elif {query.dtype, key.dtype, value.dtype} != {dtype}:
            got = ", ".join(str(tokens.dtype) for tokens in (query, key, value))
            raise TypeError(f"query, key and value must have the dtype of the parameters, {dtype}, got {got}")
        with torch.autocast(kind, enabled=False):
            output, weights = self._attend(query, key, value, mask)
        return output.to(dtype), weights.to(dtype) if need_weights else None

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        matrices: Sequence[Tensor]
        if self.in_proj_weight is not None:
            matrices = self.in_proj_weight.chunk(3)
        else:
            matrices = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        biases: Sequence[Tensor | None] = (None, None, None)
        if self.in_proj_bias is not None:
            biases = self.in_proj_bias.chunk(3)
        q, k, v = (
            self.split(_project(tokens.to(WIDE), weight, bias))
            for tokens, weight, bias in zip((query, key, value), matrices, biases, strict=True)
        )
        k, v = self.extend(k, v)
        logits = multiply(q, k.mT) * (1.0 / math.sqrt(self.head_dim))
        if mask is not None:
            logits = logits + (additive(mask, WIDE) if mask.dtype == torch.bool else mask.to(WIDE))
        weights = softmax(logits)
        features = multiply(weights, v).transpose(1, 2).flatten(2)
        output = _project(features, self.out_proj.weight, self.out_proj.bias)
        return output, weights


def _project(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the projection of tokens (batch, length, width) by a weight (features, width)."""
    # As one matrix of all tokens, so that the gradient of a parameter is a sum over the tokens of all sequences. The
    # bias is the last term of each sum: its gradient is then such a sum too.
    rows, matrix = tokens.flatten(0, 1), weight.to(WIDE).mT
    if bias is not None:
        rows = torch.cat([rows, rows.new_ones(rows.shape[0], 1)], dim=1)
        matrix = torch.cat([matrix, bias.to(WIDE)[None]])
    return multiply(rows, matrix).view(*tokens.shape[:2], weight.shape[0])


class FixedOrder(Implementation):
    """Multi-head attention with a fixed order of summation."""

    name = "fixed_order"
    source = "https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/"
    # The backward pass is an autograd.Function whose forward has ctx, which transforms of torch.func refuse.
    policies = Policies(
        transforms="refused",
        invariant=("neighbours", "batch_size", "position", "padding", "padding_side", "prefill", "decode", "threads"),
    )

    def unsupported(self, case: Case) -> TypedRefusal | None:
        """Refuse dropout in training, which the formula lacks, and compilers."""
        if case.compiler:
            return CannotCompile(why="order", compiler="torch.export" if case.compiler == "export" else "torch.compile")
        return NO_DROPOUT if case.problem.dropout and case.training else None

    def predicted_s(self, case: Case) -> float:
        """Return the expected seconds of one call: a constant times the number of products."""
        problem = case.problem
        tokens = (problem.batch or 1) * (2 * problem.queries + 2 * problem.keys)
        products = tokens * problem.embed_dim**2 + 2 * problem.pairs * problem.embed_dim // problem.num_heads
        return float(products) * (WITH_BACKWARD_S if case.differentiates else FORWARD_S)

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Return a module with the reference's forward and parameters."""
        return _FixedOrderAttention(reference)


FIXED_ORDER = FixedOrder()
