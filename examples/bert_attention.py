"""BERT's attention from the package transformers, with separate layers for queries, keys and values.

Needs: pip install transformers
Check: attnbench conform examples/bert_attention.py:BERT examples/bert_attention.py:BERT_CROSS
Source: https://github.com/huggingface/transformers/blob/main/src/transformers/models/bert/modeling_bert.py
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertCrossAttention, BertSelfAttention

from attnbench.cases import Case
from attnbench.interface import Implementation, Policies, Refusal
from attnbench.kernel import ReferenceForward
from attnbench.masks import additive

__all__ = ["BERT", "BERT_CROSS"]

BIASES = "BERT's layers always have biases"
EXTRA_COLUMNS = "BERT has no bias_k, bias_v or zero key"
ONE_SEQUENCE = "BERT's self-attention projects queries, keys and values from one sequence"
ONE_CONTEXT = "BERT's cross-attention projects keys and values from one sequence"
ONE_WIDTH = "BERT needs kdim and vdim equal to its hidden size"
EMPTY = "BERT cannot split an empty tensor into heads"
MASKED_ROW_GRADIENTS = "a fully masked row makes every gradient of BERT's attention NaN"


def convert_parameters(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the reference's parameters under the names of ``BertAttention``."""
    own: dict[str, Tensor] = {}
    for kind in ("weight", "bias"):
        parts = parameters[f"in_proj_{kind}"].chunk(3)
        own |= {f"core.{name}.{kind}": part for name, part in zip(("query", "key", "value"), parts, strict=True)}
        own[f"dense.{kind}"] = parameters[f"out_proj.{kind}"]
    return own


class BertAttention(ReferenceForward):
    """BERT's attention and the dense layer after it, without BERT's residual connection and LayerNorm."""

    def __init__(self, reference: nn.MultiheadAttention, core: type[BertSelfAttention | BertCrossAttention]) -> None:
        self.core_class = core
        super().__init__(reference)

    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        """Make BERT's layers and load the reference's parameters into the layers.

        Raises: Refusal, with the reason, if BERT's layers cannot take these parameters.
        """
        refusal = (
            (BIASES if "in_proj_bias" not in parameters else None)
            or (EXTRA_COLUMNS if self.columns else None)
            or (ONE_WIDTH if "in_proj_weight" not in parameters else None)
        )
        if refusal:
            raise Refusal(refusal)
        config = BertConfig(
            hidden_size=self.embed_dim,
            num_attention_heads=self.num_heads,
            attention_probs_dropout_prob=self.dropout,
            attn_implementation="eager",
        )
        self.core = self.core_class(config)
        self.dense = nn.Linear(self.embed_dim, self.embed_dim)
        # Convert to the reference's dtype before loading: a float64 weight must not be rounded to float32.
        self.to(parameters["out_proj.weight"]).load_state_dict(convert_parameters(parameters))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention as the reference does.

        Key and value must be the same tensor. In self-attention, query must be that tensor, too.
        """
        if key is not value:
            raise Refusal(ONE_CONTEXT)
        if query is not key and self.core_class is BertSelfAttention:
            raise Refusal(ONE_SEQUENCE)
        return super().forward(query, key, value, *rest, **named)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,  # noqa: ARG002  # the same as key
        *,
        mask: Tensor | None,
        is_causal: bool,  # noqa: ARG002  # mask includes the causal mask
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Call BERT's layer, after converting a boolean mask to an additive mask."""
        if mask is not None and mask.dtype == torch.bool:
            mask = additive(mask, query.dtype)
        if mask is not None and torch.is_grad_enabled() and (mask == float("-inf")).all(dim=-1).any():
            raise Refusal(MASKED_ROW_GRADIENTS)
        if isinstance(self.core, BertCrossAttention):
            heads, weights = self.core(query, encoder_hidden_states=key, attention_mask=mask)
        else:
            heads, weights = self.core(query, attention_mask=mask)
        return self.dense(heads), weights if need_weights else None


class Bert(Implementation):
    """Multi-head attention by BERT's self-attention layer or by its cross-attention layer."""

    source = "https://github.com/huggingface/transformers"
    # BERT applies a plain softmax, so a row of minus infinities becomes NaN. Looking for such rows is not
    # possible under vmap.
    policies = Policies(hidden_rows="nan", transforms="refused")

    def __init__(self, name: str, core: type[BertSelfAttention | BertCrossAttention]) -> None:
        self.name = name
        self.core = core

    def unsupported(self, case: Case) -> str | None:
        """Return why BERT's layer cannot compute a case, or None if it can."""
        problem = case.problem
        if not problem.bias:
            return BIASES
        if problem.add_bias_kv or problem.add_zero_attn:
            return EXTRA_COLUMNS
        if problem.kdim or problem.vdim:
            return ONE_WIDTH
        if 0 in (problem.batch, problem.queries, problem.keys):
            return EMPTY
        if self.core is BertSelfAttention and not problem.self_attention:
            return ONE_SEQUENCE
        if not (problem.self_attention or problem.key_is_value):
            return ONE_CONTEXT
        may_mask_rows = "empty" in problem.mask or "union" in problem.mask
        return MASKED_ROW_GRADIENTS if may_mask_rows and case.differentiates else None

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Return the layer with the reference's parameters."""
        return BertAttention(reference, self.core)

    def weights(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the reference's parameters, split into the layers for queries, keys and values."""
        return convert_parameters(parameters)


BERT = Bert("bert", BertSelfAttention)
BERT_CROSS = Bert("bert_cross", BertCrossAttention)
