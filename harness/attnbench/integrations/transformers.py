"""Any implementation of multi-head attention as an attention function of Hugging Face's transformers.

    from attnbench.integrations.transformers import register

    model = AutoModel.from_pretrained("...", attn_implementation=register("varlen"))

The models keep their projections; what is taken over is attention on split heads. An implementation that has it
(``from_kernel``, ``HeadSplitAttention``) is called there; of any other the whole module is called, with projections
that change nothing: right, and slower by four products with the identity.

Source: https://huggingface.co/docs/transformers/attention_interface.
"""

import math
import os
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases import Mode
from attnbench.integrations.layer import case_of_call, form_of, mode_of
from attnbench.interface import Implementation, Refusal
from attnbench.kernel import HeadSplitAttention
from attnbench.plugins.adapters import load_implementation

__all__ = ["calls", "missing", "register"]

# What is put in front of a registered name, so that nothing of the library's own is replaced.
PREFIX = "attnbench_"
# Words by which transformers 5 takes a name for one of its own functions, wherever in it they stand: it looks for a
# kernel to download, or asks what the model says of that function. In capitals they mean nothing to it.
TAKEN = re.compile("flash|flex_attention|sdpa")
# Arguments of attention functions that change what is computed, and that no implementation of multi-head attention has.
FOREIGN = ("softcap", "position_bias", "s_aux", "cache")


def missing() -> str | None:
    """Why nothing can be registered here, with the remedy, or None."""
    try:
        _interfaces()
    except ImportError:
        return "transformers is not installed, or is older than 5: pip install 'attnbench[transformers]'"
    return None


def register(name: str) -> str:
    """Make an implementation known to transformers; the value of ``attn_implementation`` that chooses it.

    ``name`` is a registered one, ``package.module:attribute`` or ``path/to/file.py:attribute``.

    A layer's call that the implementation declares unsupported is refused, in its own words, when it is made.

    Raises: TypeError where it is no name; RuntimeError without transformers; PluginError where the name leads nowhere;
    ValueError where it is no implementation of multi-head attention, or where another name was registered that differs
    only in punctuation.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string such as 'varlen' or 'path/to/file.py:attribute', got {name!r}")
    if reason := missing():
        raise RuntimeError(reason)
    attention, masks = _interfaces()
    public = PREFIX + TAKEN.sub(lambda found: found[0].upper(), re.sub(r"\W+", "_", name).strip("_"))
    before = attention().get(public)
    if isinstance(before, _AttentionFunction) and _place(before.name) != _place(name):
        raise ValueError(f"{name!r} would take the place of {before.name!r}, both are {public!r}: rename a file")
    implementation = load_implementation(name)
    if implementation.operator != "multihead":
        raise ValueError(f"{name!r} must compute multihead to serve a model's layers, got {implementation.operator}")
    attention.register(public, _AttentionFunction(name, implementation))
    # Boolean, true where a key may be seen: what SDPA gets.
    masks.register(public, masks()["sdpa"])
    return public


def _place(name: str) -> tuple[str, str]:
    """File or module and attribute, however the way to the file is spelled."""
    place, _, attribute = name.rpartition(":")
    return os.path.realpath(place), attribute


def calls(public: str) -> int:
    """How often layers called what stands under a value that ``register`` gave."""
    attention, _ = _interfaces()
    function: _AttentionFunction = attention()[public]
    return function.calls


def _interfaces() -> tuple[Any, Any]:
    """The two registries of transformers: of attention functions, and of what makes their masks."""
    from transformers import AttentionInterface, AttentionMaskInterface

    return AttentionInterface, AttentionMaskInterface


@dataclass(slots=True)
class _AttentionFunction:
    """What transformers calls in every layer; one core serves all layers of the same size."""

    name: str
    implementation: Implementation
    calls: int = 0
    cores: dict[tuple[Any, ...], "_Core"] = field(default_factory=dict)
    # Kinds of call that the implementation takes.
    taken: set[tuple[Any, ...]] = field(default_factory=set)

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of one layer.

        Shape: query (batch, heads, queries, head_dim), key and value (batch, groups, keys, head_dim), attention_mask
        broadcastable to (batch, heads, queries, keys), true where a key is seen, or added; returns (batch, queries,
        heads, head_dim) and weights (batch, heads, queries, keys) or None.
        """
        self.calls += 1
        _refuse(query, value, others)
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        # As in the library's own function for SDPA: a single query is the newest token, and sees every key.
        causal = bool(causal) and attention_mask is None and query.shape[2] > 1
        if causal and key.shape[2] > query.shape[2]:
            key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
        own_scale = 1 / math.sqrt(query.shape[3])
        if scaling is not None and not math.isclose(scaling, own_scale, rel_tol=1e-9):
            query = query * (scaling / own_scale)
        need_weights = bool(others.get("output_attentions"))
        form = form_of(attention_mask, is_causal=causal)
        mode = mode_of(query, key, value, attention_mask, dropout=dropout, training=module.training)
        # Compiled, a call is for any sizes: it is asked for with those that it is compiled with.
        sizes = () if torch.compiler.is_compiling() else (query.shape[0], query.shape[2], key.shape[2])
        kind = (sizes, *query.shape[1::2], form, need_weights, dropout, mode, query.dtype, query.device)
        if kind not in self.taken:
            self._ask(query, key, form=form, need_weights=need_weights, dropout=dropout, mode=mode)
            self.taken.add(kind)
        core = self._core(query, dropout).train(module.training)
        output, weights = core(query, key, value, mask=attention_mask, is_causal=causal, need_weights=need_weights)
        return output.transpose(1, 2).contiguous(), weights

    # No compiler can follow what an implementation looks at to answer.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _ask(self, query: Tensor, key: Tensor, *, form: str, need_weights: bool, dropout: float, mode: Mode) -> None:
        """Raises: Refusal where the implementation says that it does not compute such a call."""
        case = case_of_call(query, key, form=form, need_weights=need_weights, dropout=dropout, mode=mode)
        if reason := self.implementation.unsupported(case):
            told = " ".join(reason.split())
            raise Refusal(f"{self.name!r} refuses a layer's call: {told} ({case.id}); register another implementation")

    def _core(self, query: Tensor, dropout: float) -> "_Core":
        heads, width = query.shape[1], query.shape[3]
        key = (heads, width, dropout, query.dtype, query.device)
        if key not in self.cores:
            # On the meta device no weights are drawn, so that the model's random numbers stay what they are.
            reference = nn.MultiheadAttention(
                heads * width, heads, dropout, bias=False, batch_first=True, dtype=query.dtype, device="meta"
            ).to_empty(device=query.device)
            _project_nothing(reference)
            module = self.implementation.build(reference)
            self.cores[key] = _SplitHeads(module) if isinstance(module, HeadSplitAttention) else _Whole(module)
        return self.cores[key]


class _Core(nn.Module):
    """Attention on split heads, of one size."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.requires_grad_(requires_grad=False)


class _SplitHeads(_Core):
    """An implementation that has it: its projections are left aside."""

    module: HeadSplitAttention

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Output (batch, heads, queries, head_dim), and weights if asked for."""
        if is_causal:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        return self.module.attend(q, k, v, mask=mask, is_causal=is_causal, need_weights=need_weights)


class _Whole(_Core):
    """A whole module, whose projections change nothing."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Output (batch, heads, queries, head_dim), and weights if asked for."""
        batch, heads, queries, _ = q.shape
        if is_causal:
            mask = torch.ones(queries, k.shape[2], dtype=torch.bool, device=q.device).tril()
        if mask is not None:
            # In the reference's polarity and shape: true hides, one for each head of each sequence.
            mask = (~mask if mask.dtype == torch.bool else mask).expand(batch, heads, queries, k.shape[2]).flatten(0, 1)
        output, weights = self.module(
            *(heads_of.transpose(1, 2).flatten(2) for heads_of in (q, k, v)),
            attn_mask=mask,
            need_weights=need_weights,
            average_attn_weights=False,
            is_causal=is_causal,
        )
        return torch.unflatten(output, -1, (heads, -1)).transpose(1, 2), weights


def _project_nothing(reference: nn.MultiheadAttention) -> None:
    """Every projection becomes the identity, which no product rounds."""
    width = reference.embed_dim
    identity = torch.eye(width, dtype=reference.out_proj.weight.dtype, device=reference.out_proj.weight.device)
    with torch.no_grad():
        reference.in_proj_weight.copy_(identity.repeat(3, 1))
        reference.out_proj.weight.copy_(identity)


def _refuse(query: Tensor, value: Tensor, others: dict[str, Any]) -> None:
    """Raises: Refusal for what multi-head attention has no argument for."""
    foreign = [name for name in FOREIGN if others.get(name) is not None]
    if foreign:
        raise Refusal(f"{foreign[0]} must be None, for multi-head attention has none, got one: use another attention")
    if query.shape[-1] != value.shape[-1]:
        widths = f"{query.shape[-1]} and {value.shape[-1]}"
        raise Refusal(f"value must have heads as wide as those of query, got widths {widths}: use another attention")
