"""Any implementation of multi-head attention as an attention function of Hugging Face's transformers.

    from attnbench.integrations.transformers import register

    model = AutoModel.from_pretrained("...", attn_implementation=register("varlen"))

The models keep their projections; the implementation computes attention on split heads. ``HeadSplitAttention`` modules
(also from ``from_kernel``) are called on split heads directly. Any other implementation is called as a whole module
with identity projections. The result is the same, but each call has four more matrix products.

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
from attnbench.integrations.layer import choose_mode, make_case_of_call, name_mask
from attnbench.interface import Implementation, Refusal
from attnbench.kernel import HeadSplitAttention
from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.file_objects import read_name
from attnbench.refusals import write_install_line
from attnbench.words.refusals import describe_declared

__all__ = ["describe_missing", "register"]

# Prefix of registered names. A name with this prefix never replaces an attention function of transformers.
PREFIX = "attnbench_"
# Words that are changed to upper case in registered names. If a name contains such a word in lower case, transformers 5
# mistakes the registered function for a function of the library. The library then looks for a kernel to download, or
# checks whether the model supports the library's function.
RESERVED = re.compile("flash|flex_attention|sdpa")
# Arguments of transformers' attention functions that change the result, and that multi-head attention does not have.
FOREIGN = ("softcap", "position_bias", "s_aux", "cache")


def describe_missing() -> str | None:
    """Return why no implementation can be registered on this machine, with the remedy; None if one can."""
    try:
        _import_interfaces()
    except ImportError:
        return f"transformers is not installed, or is older than 5: {write_install_line('transformers')}"
    return None


def register(name: str) -> str:
    """Register an implementation with transformers, and return the value of ``attn_implementation`` that selects it.

    ``name`` is a registered name, ``package.module:attribute`` or ``path/to/file.py:attribute``.

    A layer's call that the implementation declares unsupported raises Refusal with the implementation's reason.

    Raises: TypeError where ``name`` is not a string; RuntimeError without transformers; PluginError where the
    implementation cannot be loaded; ValueError where the implementation does not compute multi-head attention, or where
    another implementation is already registered under the value that this function would return.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string such as 'varlen' or 'path/to/file.py:attribute', got {name!r}")
    if reason := describe_missing():
        raise RuntimeError(reason)
    attention, masks = _import_interfaces()
    name = read_name(name)
    public = PREFIX + RESERVED.sub(lambda found: found[0].upper(), re.sub(r"\W+", "_", name).strip("_"))
    before = attention().get(public)
    if isinstance(before, _AttentionFunction) and _resolve_place(before.name) != _resolve_place(name):
        raise ValueError(f"{name!r} and {before.name!r} would both be registered as {public!r}: rename one of them")
    implementation = load_implementation(name)
    if implementation.operator != "multihead":
        raise ValueError(
            f"{name!r} must compute 'multihead' to replace a model's attention, got {implementation.operator!r}"
        )
    attention.register(public, _AttentionFunction(name, implementation))
    # The implementation gets the boolean masks that transformers makes for SDPA, true where a query may see a key.
    masks.register(public, masks()["sdpa"])
    return public


def _resolve_place(name: str) -> tuple[str, str]:
    """Split an implementation's name at its last colon; return the first part as a resolved path, and the attribute.

    Two names of the same implementation give the same pair.
    """
    place, _, attribute = name.rpartition(":")
    return os.path.realpath(place), attribute


def _import_interfaces() -> tuple[Any, Any]:
    """Import the two registries of transformers: one of attention functions, one of functions that make masks."""
    from transformers import AttentionInterface, AttentionMaskInterface

    return AttentionInterface, AttentionMaskInterface


@dataclass(slots=True)
class _AttentionFunction:
    """The attention function that transformers calls in every layer; layers of the same size share one ``_Core``."""

    name: str
    implementation: Implementation
    cores: dict[tuple[Any, ...], "_Core"] = field(default_factory=dict)
    # Kinds of calls (sizes, mask, mode, dtype, device) for which a check found that the implementation supports them.
    supported: set[tuple[Any, ...]] = field(default_factory=set)

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
        """Compute the attention of one layer.

        Shape: query (batch, heads, queries, head_dim), key and value (batch, groups, keys, head_dim), attention_mask
        broadcastable to (batch, heads, queries, keys), boolean (true where a query may attend to a key) or additive;
        returns (batch, queries, heads, head_dim) and weights (batch, heads, queries, keys) or None.
        """
        _refuse_unknown_arguments(query, value, others)
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        # As in transformers' function for SDPA, a single query is the newest token, and attends to every key.
        causal = bool(causal) and attention_mask is None and query.shape[2] > 1
        if causal and key.shape[2] > query.shape[2]:
            key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
        own_scale = 1 / math.sqrt(query.shape[3])
        if scaling is not None and not math.isclose(scaling, own_scale, rel_tol=1e-9):
            query = query * (scaling / own_scale)
        need_weights = bool(others.get("output_attentions"))
        form = name_mask(attention_mask, is_causal=causal)
        mode = choose_mode(query, key, value, attention_mask, dropout=dropout, training=module.training)
        # A compiled call may get other sizes later. The kind of a compiled call therefore contains no sizes: support is
        # checked only for the sizes at compilation.
        sizes = () if torch.compiler.is_compiling() else (query.shape[0], query.shape[2], key.shape[2])
        kind = (sizes, *query.shape[1::2], form, need_weights, dropout, mode, query.dtype, query.device)
        if kind not in self.supported:
            self._check_supported(query, key, form=form, need_weights=need_weights, dropout=dropout, mode=mode)
            self.supported.add(kind)
        core = self._get_core(query, dropout).train(module.training)
        output, weights = core(query, key, value, mask=attention_mask, is_causal=causal, need_weights=need_weights)
        return output.transpose(1, 2).contiguous(), weights

    # ``unsupported`` is arbitrary Python code, which the compiler cannot trace.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _check_supported(
        self, query: Tensor, key: Tensor, *, form: str, need_weights: bool, dropout: float, mode: Mode
    ) -> None:
        """Check that the implementation supports a call with these arguments.

        Raises: Refusal, with the implementation's reason.
        """
        case = make_case_of_call(query, key, form=form, need_weights=need_weights, dropout=dropout, mode=mode)
        if reason := self.implementation.unsupported(case):
            line = describe_declared(reason)
            raise Refusal(f"{self.name!r} refuses a layer's call: {line} ({case.id}); register another implementation")

    def _get_core(self, query: Tensor, dropout: float) -> "_Core":
        heads, width = query.shape[1], query.shape[3]
        key = (heads, width, dropout, query.dtype, query.device)
        if key not in self.cores:
            # On the meta device no random parameters are drawn. The random number generator therefore keeps its state.
            reference = nn.MultiheadAttention(
                heads * width, heads, dropout, bias=False, batch_first=True, dtype=query.dtype, device="meta"
            ).to_empty(device=query.device)
            _set_identity_projections(reference)
            module = self.implementation.build(reference)
            # A module may project by itself, and define no attention on split heads.
            splits = isinstance(module, HeadSplitAttention) and type(module).attend is not HeadSplitAttention.attend
            self.cores[key] = _SplitHeads(module) if splits else _WholeModule(module)
        return self.cores[key]


class _Core(nn.Module):
    """Attention on split heads, for one number of heads and one head_dim."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.requires_grad_(requires_grad=False)


class _SplitHeads(_Core):
    """Calls a ``HeadSplitAttention`` on split heads; the projections of the module are not used."""

    module: HeadSplitAttention

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output (batch, heads, queries, head_dim), and the weights or, if not ``need_weights``, None."""
        if is_causal:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        return self.module.attend(q, k, v, mask=mask, is_causal=is_causal, need_weights=need_weights)


class _WholeModule(_Core):
    """Calls a whole module, whose projections are the identity."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output (batch, heads, queries, head_dim), and the weights or, if not ``need_weights``, None."""
        batch, heads, queries, _ = q.shape
        if is_causal:
            mask = torch.ones(queries, k.shape[2], dtype=torch.bool, device=q.device).tril()
        if mask is not None:
            # nn.MultiheadAttention expects a mask that is true at hidden keys, with shape (batch·heads, queries, keys).
            mask = (~mask if mask.dtype == torch.bool else mask).expand(batch, heads, queries, k.shape[2]).flatten(0, 1)
        output, weights = self.module(
            *(heads_of.transpose(1, 2).flatten(2) for heads_of in (q, k, v)),
            attn_mask=mask,
            need_weights=need_weights,
            average_attn_weights=False,
            is_causal=is_causal,
        )
        return torch.unflatten(output, -1, (heads, -1)).transpose(1, 2), weights


def _set_identity_projections(reference: nn.MultiheadAttention) -> None:
    """Set every projection to the identity; a product with the identity is exact."""
    width = reference.embed_dim
    identity = torch.eye(width, dtype=reference.out_proj.weight.dtype, device=reference.out_proj.weight.device)
    with torch.no_grad():
        reference.in_proj_weight.copy_(identity.repeat(3, 1))
        reference.out_proj.weight.copy_(identity)


def _refuse_unknown_arguments(query: Tensor, value: Tensor, others: dict[str, Any]) -> None:
    """Refuse a call with an argument that multi-head attention lacks, or with different head_dim of query and value.

    Raises: Refusal.
    """
    foreign = [name for name in FOREIGN if others.get(name) is not None]
    if foreign:
        got = type(others[foreign[0]]).__name__
        raise Refusal(
            f"{foreign[0]} must be None for multi-head attention, got a {got}: use another attention function"
        )
    if query.shape[-1] != value.shape[-1]:
        widths = f"{query.shape[-1]} and {value.shape[-1]}"
        raise Refusal(f"query and value must have the same head_dim, got {widths}: use another attention function")
