"""Attention as it is defined, one number at a time: Python loops over batch, heads, queries and keys.

For query i of a head:

    x_j = scale · Σ_d q_id k_jd + m_ij        over the keys j that m does not hide
    p_j = exp(x_j − max x) / Σ_j exp(x_j − max x)
    o_i = Σ_j p_j v_j

The matrix m is the additive mask. In a fully masked row (a query that sees no key) o_i = 0.
Half-precision numbers are summed in float32.

With a soft-cap c, the scaled product s_j = scale · Σ_d q_id k_jd is replaced by c · tanh(s_j / c) before m_ij is added.
If k and v have fewer heads than q, consecutive heads of q share one head of k and v.

Shape: q (batch, heads, queries, head_dim), k (batch, kv_heads, keys, head_dim), v (batch, kv_heads, keys, head_dim_v).
Source: Vaswani et al., Attention Is All You Need, 2017, equation 1, https://arxiv.org/abs/1706.03762.
"""

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Policies
from attnbench.kernel import core_from_kernel, from_kernel
from attnbench.refusals import CannotCompile, TypedRefusal

__all__ = ["CORE_NAIVE_LOOP", "NAIVE_LOOP", "explain_refusal", "naive_loop"]

# Seconds of a call without backward, for each pair of a query and a key of one head. The time was
# measured with torch 2.13 and 64 keys on one thread of a 2-core x86-64 machine.
FORWARD_S = 15e-6
# Seconds of a call with backward, for each pair of a query and a key of one head, measured like
# FORWARD_S.
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
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention one number at a time; ``mask`` is additive."""
    wide = torch.promote_types(q.dtype, torch.float32)
    (batch, heads, queries, _), keys = q.shape, k.shape[2]
    share = heads // k.shape[1] if enable_gqa else 1
    added = q.new_zeros(1, 1, 1, 1) if mask is None else mask
    added = added.to(wide).expand(batch, heads, queries, keys)
    # An empty tensor that depends on q, k and v, and becomes part of the output. If no query sees a
    # key, this tensor is the only connection of the output with q, k and v. The gradients are then
    # 0.
    nothing = torch.cat([x.flatten()[:0] for x in (q, k, v)]).to(wide)
    outputs, weights = [nothing], [nothing]
    for b, h in product(range(batch), range(heads)):
        head_keys, head_values = k[b, h // share].to(wide).unbind(), v[b, h // share].to(wide).unbind()
        empty = v.new_zeros(v.shape[-1], dtype=wide)
        for i in range(queries):
            row = compute_attention_row(q[b, h, i].to(wide) * scale, head_keys, added[b, h, i], softcap)
            row = torch.nn.functional.dropout(row, dropout_p)
            outputs.append(weighted_sum(row, head_values, empty=empty))
            weights.append(row)
    output = torch.cat(outputs).to(q.dtype).reshape(batch, heads, queries, v.shape[-1])
    if not need_weights:
        return output, None
    return output, torch.cat(weights).to(q.dtype).reshape(batch, heads, queries, keys)


def compute_attention_row(query: Tensor, keys: Sequence[Tensor], added: Tensor, softcap: float | None = None) -> Tensor:
    """Compute one row of attention weights: a softmax over the keys that the query sees, 0 for hidden keys.

    ``added`` is the query's row of the additive mask.

    Shape: query (head_dim), each of keys (head_dim), added (keys), returns (keys).
    """
    # Call isneginf on the tensor, not on Python numbers: a compiler assumes that a number of unknown value is finite.
    visible = [j for j, hidden in enumerate(added.isneginf().tolist()) if not hidden]
    logits = {j: torch.dot(query, keys[j]) for j in visible}
    if softcap is not None:
        logits = {j: softcap * torch.tanh(logit / softcap) for j, logit in logits.items()}
    logits = {j: logit + added[j] for j, logit in logits.items()}
    if not logits:
        return torch.zeros_like(added)
    largest = max(logits.values()).detach()
    exponentials = {j: torch.exp(logit - largest) for j, logit in logits.items()}
    total = sum(exponentials.values())
    hidden = torch.zeros_like(largest)
    return torch.stack([exponentials[j] / total if j in logits else hidden for j in range(len(keys))])


def weighted_sum(row: Tensor, values: Sequence[Tensor], *, empty: Tensor) -> Tensor:
    """Sum the values, each multiplied by its attention weight. Shape: row (keys), each of values (head_dim_v)."""
    return sum((weight * value for weight, value in zip(row.unbind(), values, strict=True)), start=empty)


def predict_call_s(case: Case) -> float:
    """Return the expected seconds of one call.

    The expected time is a constant times the number of query-key pairs in all heads and sequences.
    """
    return float(case.problem.pairs) * (WITH_BACKWARD_S if case.differentiates else FORWARD_S)


def explain_refusal(case: Case) -> TypedRefusal | None:
    """Return why ``naive_loop`` does not compute a case, or None if it does.

    The loop reads the values of the mask to skip hidden keys, and ``torch.export`` cannot trace such a loop.
    """
    reads_mask = case.compiler == "export" and case.problem.mask != "none"
    return CannotCompile(why="values", compiler="torch.export") if reads_mask else None


NAIVE_LOOP = from_kernel(
    naive_loop,
    source="https://arxiv.org/abs/1706.03762",
    # The loops read single elements on the host, which vmap refuses.
    policies=Policies(transforms="refused"),
    additive_mask=True,
    unsupported=explain_refusal,
    predicted_s=predict_call_s,
)
CORE_NAIVE_LOOP = core_from_kernel(NAIVE_LOOP, unsupported=explain_refusal, predicted_s=predict_call_s)
