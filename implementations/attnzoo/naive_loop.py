"""The definition, one number at a time: Python loops over batch, heads, queries and keys.

For query i of a head:

    x_j = scale · Σ_d q_id k_jd + m_ij        over the keys j that m does not hide
    p_j = exp(x_j − max x) / Σ_j exp(x_j − max x)
    o_i = Σ_j p_j v_j

A query that sees no key gets o_i = 0. Half precision is widened to float32 while it is summed.

Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim).
Source: Vaswani et al., Attention Is All You Need, 2017, equation 1, https://arxiv.org/abs/1706.03762.
"""

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.kernel import from_kernel

__all__ = ["NAIVE_LOOP", "naive_loop"]

# Seconds a query-key pair takes: measured with torch 2.13, one thread of a 2-core x86-64 machine, 64 keys.
FORWARD_S = 15e-6
WITH_BACKWARD_S = 70e-6


def naive_loop(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    scale: float,
    dropout_p: float,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Attention spelled out; ``mask`` is additive."""
    wide = torch.promote_types(q.dtype, torch.float32)
    (batch, heads, queries, _), keys = q.shape, k.shape[2]
    added = q.new_zeros(1, 1, 1, 1) if mask is None else mask
    added = added.to(wide).expand(batch, heads, queries, keys)
    # A part of length 0 keeps q, k and v in the graph, with gradient 0, where no query sees a key.
    nothing = torch.cat([x.flatten()[:0] for x in (q, k, v)]).to(wide)
    outputs, weights = [nothing], [nothing]
    for b, h in product(range(batch), range(heads)):
        head_keys, head_values = k[b, h].to(wide).unbind(), v[b, h].to(wide).unbind()
        for i in range(queries):
            row = attention_row(q[b, h, i].to(wide) * scale, head_keys, added[b, h, i])
            row = torch.nn.functional.dropout(row, dropout_p)
            outputs.append(weighted_sum(row, head_values, empty=torch.zeros_like(q[b, h, i], dtype=wide)))
            weights.append(row)
    output = torch.cat(outputs).to(q.dtype).reshape(q.shape)
    if not need_weights:
        return output, None
    return output, torch.cat(weights).to(q.dtype).reshape(batch, heads, queries, keys)


def attention_row(query: Tensor, keys: Sequence[Tensor], added: Tensor) -> Tensor:
    """Softmax of one query's logits over the keys that it sees; 0 where a key is hidden.

    Shape: query (head_dim), keys (head_dim) each, added (keys), returns (keys).
    """
    visible = [j for j, number in enumerate(added.tolist()) if number != float("-inf")]
    logits = {j: torch.dot(query, keys[j]) + added[j] for j in visible}
    if not logits:
        return torch.zeros_like(added)
    largest = max(logits.values()).detach()
    exponentials = {j: torch.exp(logit - largest) for j, logit in logits.items()}
    total = sum(exponentials.values())
    hidden = torch.zeros_like(largest)
    return torch.stack([exponentials[j] / total if j in logits else hidden for j in range(len(keys))])


def weighted_sum(row: Tensor, values: Sequence[Tensor], *, empty: Tensor) -> Tensor:
    """Sum of the values, each times its weight. Shape: row (keys), values (head_dim) each."""
    return sum((weight * value for weight, value in zip(row.unbind(), values, strict=True)), start=empty)


def predicted_s(case: Case) -> float:
    """Time of one call: so much for every query-key pair of every head."""
    problem = case.problem
    pairs = (problem.batch or 1) * problem.num_heads * problem.queries * problem.columns
    return float(pairs) * (WITH_BACKWARD_S if case.differentiates else FORWARD_S)


NAIVE_LOOP = from_kernel(
    naive_loop, source="https://arxiv.org/abs/1706.03762", additive_mask=True, predicted_s=predicted_s
)
