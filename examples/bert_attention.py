"""BERT's attention from the package transformers, with separate layers for queries, keys and values.

Needs: pip install transformers
Check: attnbench conform examples/bert_attention.py:BERT examples/bert_attention.py:BERT_CROSS
Source: https://github.com/huggingface/transformers/blob/main/src/transformers/models/bert/modeling_bert.py
"""

from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertCrossAttention, BertSelfAttention

from attnbench.interface import Policies
from attnbench.kernel import ModuleConvention, from_module

__all__ = ["BERT", "BERT_CROSS"]

SOURCE = "https://github.com/huggingface/transformers"
# The dense layer after the heads is in another module of BERT; here it is the reference's output projection.
LAYERS = {"q": "query", "k": "key", "v": "value"}
# BERT applies a plain softmax, so a row of minus infinities becomes NaN. It cannot split an empty tensor into heads.
POLICIES = Policies(hidden_rows="nan", hidden_row_gradients="nan", empty_batches="refused")


def make_config(embed_dim: int, num_heads: int, dropout: float) -> BertConfig:
    """Return BERT's configuration with these sizes."""
    return BertConfig(
        hidden_size=embed_dim,
        num_attention_heads=num_heads,
        attention_probs_dropout_prob=dropout,
        attn_implementation="eager",
    )


def make_self_attention(embed_dim: int, num_heads: int, *, dropout: float) -> nn.Module:
    """Return BERT's self-attention, which projects queries, keys and values from one sequence."""
    return BertSelfAttention(make_config(embed_dim, num_heads, dropout))


def make_cross_attention(embed_dim: int, num_heads: int, *, dropout: float) -> nn.Module:
    """Return BERT's cross-attention, which projects keys and values from one sequence."""
    return BertCrossAttention(make_config(embed_dim, num_heads, dropout))


BERT = from_module(
    make_self_attention,
    ModuleConvention(
        projections=LAYERS, tokens=("query",), names={"mask": "attention_mask"}, masks="additive", weights="heads"
    ),
    name="bert",
    source=SOURCE,
    policies=POLICIES,
)
BERT_CROSS = from_module(
    make_cross_attention,
    ModuleConvention(
        projections=LAYERS, tokens=("query", "key"), names={"mask": "attention_mask"}, masks="additive", weights="heads"
    ),
    name="bert_cross",
    source=SOURCE,
    policies=POLICIES,
)
