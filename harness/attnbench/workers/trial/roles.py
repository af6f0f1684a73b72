"""What the usual names of parameters, arguments and layers stand for."""

import re
from typing import Literal

__all__ = ["SIZED", "find_call_role", "find_layer_role", "find_size", "find_token", "is_config", "is_mask"]

# Expressions of the arguments of a maker, by the names that constructors and configurations have for them.
_Sizes = {
    "embed_dim": "embed_dim dim d_model n_embd n_embed hidden_size hidden_dim embed_size emb_size emb_dim "
    "embedding_dim model_dim width channels in_channels input_dim in_dim dim_in d_in query_dim dim_out d_out out_dim "
    "output_dim features in_features n_feat feat_dim feature_dim n_features num_features "
    "units n_state d embedding_size c embed model_size dmodel hidden",
    "num_heads": "num_heads n_heads heads n_head nhead num_attention_heads head_num h nheads num_head "
    "n_kv_heads num_kv_heads num_key_value_heads kv_heads n_kv_head",
    "embed_dim // num_heads": "head_dim dim_head d_head head_size dim_heads d_k d_v dim_per_head qk_dim v_dim d_kv "
    "attention_head_size",
    "dropout": "dropout attn_drop attention_dropout attn_dropout attn_pdrop attention_probs_dropout_prob dropout_p "
    "dropout_rate dropout_prob p drop att_dropout",
    "bias": "bias qkv_bias use_bias attention_bias proj_bias out_bias qkv_proj_bias enable_bias o_bias out_proj_bias",
}
# Expressions that are given where an argument has a default, too.
SIZED = tuple(_Sizes)
_SIZE_OF = {name: expression for expression, names in _Sizes.items() for name in names.split()}
# The largest length that a module is made for, where it wants to know one.
_LENGTH = "1024"
_TOKEN = re.compile(r"(?:x|in|input|inputs)?_?(q|k|v)(?:uery|ueries|ey|eys|alue|alues)?s?_?(?:in|input|states|x)?")
_LENGTHS = re.compile(r"block_size|context|max_|n_ctx|n_positions|seq_len|sequence_length|maxlen|window")
_WORDS = {
    "is_causal": {"is_causal", "causal", "use_causal_mask", "is_decoder"},
    "scale": {"scale", "softmax_scale", "sm_scale", "scaling", "scale_factor"},
    "dropout_p": {"dropout_p", "dropout", "attn_dropout", "dropout_prob", "p_dropout"},
    "need_weights": {
        "need_weights", "output_attentions", "return_attention", "return_attentions", "return_weights", "return_attn",
        "return_attention_weights", "need_attn",
    },
}  # fmt: skip
# Parts of a layer's name that do not say which projection it is.
_FILLERS = re.compile(r"linear|lin|proj(?:ection)?|dense|layer|fc|heads?|to|weights?|mat(?:rix)?|_|^w|w$")
# A second sequence, of which keys and values are made.
_CONTEXTS = {"context", "memory", "encoder_hidden_states", "kv", "x_kv", "key_value_states", "source", "y"}


def find_size(name: str) -> str | None:
    """Return the expression for an argument of a constructor; None for a name that is not known."""
    own = name.lower().strip("_")
    if own in _SIZE_OF:
        return _SIZE_OF[own]
    if "head" in own:
        return "embed_dim // num_heads" if re.search("dim|size|width|d_", own) else "num_heads"
    if "drop" in own:  # of the residual stream, or of paths
        return "0.0"
    if _LENGTHS.search(own):
        return _LENGTH
    return {"causal": "False", "is_causal": "False", "batch_first": "True", "layer_idx": "0"}.get(own)


def is_config(name: str) -> bool:
    """Whether an argument of a constructor stands for an object with all sizes."""
    return name.lower() in {"config", "cfg", "args", "conf", "hparams", "params", "model_args", "configuration"}


def is_mask(name: str) -> bool:
    """Whether an argument of a call is a mask."""
    own = name.lower()
    return ("mask" in own or "bias" in own) and own not in _WORDS["is_causal"]


def find_call_role(name: str) -> str | None:
    """Return the keyword of ``from_kernel`` that an argument of a call stands for, other than a mask."""
    return next((word for word, names in _WORDS.items() if name.lower() in names), None)


def find_token(name: str) -> Literal["query", "key", "value"] | None:
    """Return which tokens an argument of a call is by its name; None if the name does not say it."""
    own = name.lower().strip("_")
    if own in _CONTEXTS:
        return "key"
    match = _TOKEN.fullmatch(own)
    return {"q": "query", "k": "key", "v": "value"}[match[1]] if match else None  # type: ignore[return-value]


def find_layer_role(name: str) -> Literal["q", "k", "v", "out"] | None:
    """Return which projection a layer is by its name; None if the name does not say it."""
    parts = [part for part in name.lower().split(".") if not part.isdigit()]
    if len(parts) < len(name.split(".")) and not parts[-1].startswith("to"):  # an element of a list of layers
        return None
    bare = _FILLERS.sub("", parts[-1])
    match = re.fullmatch(r"(q|k|v)(?:uery|ueries|ey|eys|alue|alues)?s?", bare)
    if match:
        return match[1]  # type: ignore[return-value]
    return "out" if bare in ("", "o", "out", "output", "final", "unify", "combine", "c") else None
