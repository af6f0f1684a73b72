"""What a layer asks its attention function for, and the exact attention of it.

    x = scale · q kᵀ                  query head h of H uses key head ⌊h · K / H⌋ of K
    x = c · tanh(x / c)               with a soft cap c
    x = x + bias                      with a position bias
    x = −∞                            where the query may not see the key
    output = softmax over keys, and sinks where there are any, of x, times v

The formula is computed in the dtype of q. Source: docs/models.md; operators/attention_core/oracle.py has the same
formula for the error budget.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnmodels.facts import Cause

__all__ = ["Demand", "attend", "list_faults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a layer asks for, apart from queries, keys and values.

    Shape: visible and bias broadcastable to (batch, heads, queries, keys); sinks (heads,).
    """

    visible: Tensor
    scale: float
    softcap: float | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None
    # Whether query head h uses key head h mod K: the wrong order, which only fault models have.
    tiled: bool = False


def attend(demand: Demand, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the attention of a call; a query that sees no key has output 0.

    Shape: q (batch, heads, queries, width), k and v (batch, key heads, keys, width); returns
    (batch, heads, queries, width of v).
    """
    k, v = (_share(one, q.shape[1] // k.shape[1], tiled=demand.tiled) for one in (k, v))
    logits = demand.scale * q @ k.mT
    if demand.softcap:
        logits = demand.softcap * (logits / demand.softcap).tanh()
    if demand.bias is not None:
        logits = logits + demand.bias.to(logits)
    logits = logits.masked_fill(~demand.visible, -math.inf)
    if demand.sinks is None:
        return logits.softmax(-1).nan_to_num(0.0) @ v
    sinks = demand.sinks.to(logits)[:, None, None].expand(*logits.shape[:3], 1)
    return torch.cat([logits, sinks], dim=-1).softmax(-1)[..., :-1].nan_to_num(0.0) @ v


def _share(heads: Tensor, groups: int, *, tiled: bool) -> Tensor:
    return heads.repeat(1, groups, 1, 1) if tiled else heads.repeat_interleave(groups, dim=1)


def list_faults(demand: Demand, q: Tensor, k: Tensor) -> list[tuple[Cause, Demand]]:
    """Return what a function computes that ignores one argument, or takes key heads in another order."""
    scales = {float(q.shape[-1]) ** -0.5, 1.0, demand.scale**2} - {demand.scale}
    found = [(Cause(argument="scaling"), replace(demand, scale=scale)) for scale in sorted(scales)]
    if demand.softcap:
        found.append((Cause(argument="softcap"), replace(demand, softcap=None)))
    if demand.sinks is not None:
        found.append((Cause(argument="s_aux"), replace(demand, sinks=None)))
    if demand.bias is not None:
        found.append((Cause(argument="position_bias"), replace(demand, bias=None)))
    if k.shape[1] not in (1, q.shape[1]):
        found.append((Cause(argument="num_key_value_groups", change="reordered"), replace(demand, tiled=True)))
    return found
