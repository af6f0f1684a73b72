"""Functions and modules as people bring them: in other layouts, with other names, and with other projections."""

import math
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

FUSED_ORDERS = ["".join(order) + suffix for order in permutations("qkv") for suffix in ("", " by head")]


def flash_style(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, softmax_scale: float | None = None) -> Tensor:
    """Attention in the layout (batch, sequence, heads, width)."""
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale).transpose(1, 2)


def length_first_style(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention in the layout (sequence, batch, heads, width)."""
    q, k, v = (one.permute(1, 2, 0, 3) for one in (queries, keys, values))
    return scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3)


def packed_style(qkv: Tensor, causal: bool = False) -> Tensor:
    """Attention of one tensor (batch, sequence, 3, heads, width), which must be contiguous."""
    qkv = qkv.view(*qkv.shape)
    return flash_style(*qkv.unbind(2), causal=causal)


def loop_style(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """A learner's attention of one head, (batch, sequence, width)."""
    weights = torch.softmax(torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[2]), dim=-1)
    return torch.bmm(weights, values)


def biased_style(query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None) -> Tensor:
    """Attention whose mask is added, and has no default."""
    logits = query @ key.mT / query.shape[-1] ** 0.5
    return torch.softmax(logits if attn_bias is None else logits + attn_bias, dim=-1) @ value


def keeping_style(value: Tensor, key: Tensor, query: Tensor, keep_mask: Tensor | None = None) -> Tensor:
    """Attention with another order of arguments; a hidden row is the mean of all values."""
    logits = query @ key.mT / query.shape[-1] ** 0.5
    if keep_mask is not None:
        logits = logits.masked_fill(keep_mask == 0, torch.finfo(logits.dtype).min)
    return torch.softmax(logits, dim=-1) @ value


def hiding_style(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention whose mask is true where a key is hidden."""
    return scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else ~mask)


def causal_style(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention that is always causal."""
    return scaled_dot_product_attention(q, k, v, is_causal=True)


@dataclass
class BlockConfig:
    """Sizes of ``Block``."""

    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.1
    bias: bool = True


class Block(nn.Module):
    """The attention of a GPT: one fused projection, self-attention only, causal by construction."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.dropped = nn.Dropout(config.dropout)
        self.n_head = config.n_head

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        q, k, v = (part.unflatten(2, (self.n_head, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=2))
        heads = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dropped(self.c_proj(heads.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]


@dataclass
class DecoderConfig:
    """Sizes of ``Decoder``."""

    d_model: int = 512
    num_attn_heads: int = 8
    p_drop: float = 0.0


class Decoder(nn.Module):
    """Causal self-attention that takes the padding, true where a key is hidden."""

    def __init__(self, cfg: DecoderConfig) -> None:
        super().__init__()
        self.heads = cfg.num_attn_heads
        self.Wqkv, self.out = nn.Linear(cfg.d_model, 3 * cfg.d_model), nn.Linear(cfg.d_model, cfg.d_model)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """(batch, length, width) to the same shape."""
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.Wqkv(x).chunk(3, dim=2))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        if padding_mask is not None:
            mask = mask & ~padding_mask[:, None, None]
        heads = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Learned(nn.Module):
    """A learner's class: four linear layers, values first, and a mask that is 0 where a key is hidden."""

    def __init__(self, d_model: int, n_heads: int, p: float = 0.1) -> None:
        super().__init__()
        self.h, self.p = n_heads, p
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, values: Tensor, keys: Tensor, queries: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The output and the attention weights."""
        projected = ((self.W_q, queries), (self.W_k, keys), (self.W_v, values))
        q, k, v = (layer(x).unflatten(2, (self.h, -1)).transpose(1, 2) for layer, x in projected)
        logits = q @ k.mT / math.sqrt(q.shape[3])
        if mask is not None:
            logits = logits.masked_fill(mask == 0, torch.finfo(logits.dtype).min)
        weights = nn.functional.dropout(torch.softmax(logits, dim=-1), self.p, self.training)
        return self.W_o((weights @ v).transpose(1, 2).flatten(2)), weights


class Exchanged(Learned):
    """``Learned`` with the layers of queries and keys exchanged, which is a mistake and no convention."""

    def forward(self, values: Tensor, keys: Tensor, queries: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The output and the attention weights."""
        self.W_q, self.W_k = self.W_k, self.W_q
        try:
            return super().forward(values, keys, queries, mask)
        finally:
            self.W_q, self.W_k = self.W_k, self.W_q


class ImageStyle(nn.Module):
    """The attention of a vision transformer: a fused layer whose bias is an option, and an added mask."""

    def __init__(self, dim: int, num_heads: int = 8, qkv_bias: bool = False, attn_drop: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """(batch, length, width) to the same shape."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        logits = (q * (width // self.num_heads) ** -0.5) @ k.mT
        logits = logits if attn_mask is None else logits + attn_mask
        weights = self.attn_drop(logits.softmax(dim=-1))
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Named(nn.Module):
    """A module of (length, batch, width) whose configuration has no class, and whose weights are (inputs, outputs)."""

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        width = cfg.hidden_size
        self.heads = cfg.num_attention_heads
        self.query, self.key, self.value, self.dense = (nn.Parameter(torch.zeros(width, width)) for _ in range(4))

    def forward(self, hidden_states: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """(length, batch, width) to the same shape; true in ``key_padding_mask`` hides."""
        x = hidden_states.transpose(0, 1)
        q, k, v = (
            (x @ weight).unflatten(2, (self.heads, -1)).transpose(1, 2) for weight in (self.query, self.key, self.value)
        )
        mask = None if key_padding_mask is None else ~key_padding_mask[:, None, None]
        heads = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return (heads.transpose(1, 2).flatten(2) @ self.dense).transpose(0, 1)


def make_fused(order: str) -> type[nn.Module]:
    """Return a class whose one input layer has queries, keys and values in this order."""
    letters, by_head = order[:3], order.endswith("by head")

    class Fused(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.joined, self.last = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.heads = heads

        def forward(self, x: Tensor) -> Tensor:
            joined = self.joined(x)
            if by_head:
                parts = joined.unflatten(2, (self.heads, 3, -1)).unbind(3)
            else:
                parts = joined.unflatten(2, (3, self.heads, -1)).unbind(2)
            found = {letter: part.transpose(1, 2) for letter, part in zip(letters, parts, strict=True)}
            heads = scaled_dot_product_attention(found["q"], found["k"], found["v"])
            return self.last(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    return Fused
