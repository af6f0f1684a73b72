"""A configuration made small: every feature of its attention stays, and sizes become as small as the features allow.

- Two layers or, if layers are of different types, one of each type.
- At most two key heads; as many query heads for each key head as before. Without shared key heads: four heads.
- Heads of width 16, and so hidden states of width 16 · heads; feed-forward networks of width 32; 64 tokens.
- A window of four tokens, which is less than a sequence has. A soft cap of the logits of 2, which logits reach.
- At most four experts; images of 32 × 32 pixels in patches of 8 × 8; 16 positions of audio.
- Models of diffusers keep the width of a head; latents have 8 rows and columns, and texts are 64 wide.
- Dropout of attention of 0.1 where it is 0: a function that drops in evaluation is found.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["DROPOUTS", "make_diffusion_small", "make_small"]

HEAD_WIDTH, FEED_FORWARD, VOCABULARY, WINDOW, SOFT_CAP, DROPOUT = 16, 32, 64, 4, 2.0, 0.1
_LAYERS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
    "num_encoder_layers",
)  # fmt: skip
_HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "word_embed_proj_dim")
# Sizes that are replaced wherever a configuration has them as a number.
_FIXED: Mapping[str, float] = {
    "head_dim": HEAD_WIDTH, "d_kv": HEAD_WIDTH, "intermediate_size": FEED_FORWARD, "d_ff": FEED_FORWARD,
    "ffn_dim": FEED_FORWARD, "encoder_ffn_dim": FEED_FORWARD, "decoder_ffn_dim": FEED_FORWARD,
    "hidden_dim": FEED_FORWARD,
    "moe_intermediate_size": FEED_FORWARD, "shared_expert_intermediate_size": FEED_FORWARD, "n_inner": FEED_FORWARD,
    "vocab_size": VOCABULARY, "sliding_window": WINDOW, "local_attention": 2 * WINDOW, "attention_chunk_size": WINDOW,
    "attn_logit_softcapping": SOFT_CAP, "image_size": 32, "patch_size": 8, "num_mel_bins": 8,
    "max_source_positions": 16, "rotary_dim": 8, "intermediate_size_mlp": FEED_FORWARD,
    "linear_key_head_dim": HEAD_WIDTH, "linear_value_head_dim": HEAD_WIDTH, "q_lora_rank": 32, "kv_lora_rank": 32,
}  # fmt: skip
_AT_MOST: Mapping[str, int] = {
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_positions": 160,
    "max_position_embeddings": 160, "max_target_positions": 160, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
# Sizes of diffusers: widths of texts, and what a latent has at most.
_DIFFUSION_FIXED: Mapping[str, int] = {
    "joint_attention_dim": 64, "caption_channels": 64, "text_embed_dim": 64, "text_embed_2_dim": 64, "text_dim": 64,
    "context_in_dim": 64, "cap_feat_dim": 64, "pooled_projection_dim": 64, "ffn_dim": 64, "sample_size": 8,
    "sample_width": 8, "sample_height": 8, "sample_frames": 5, "max_text_seq_length": 8, "cross_attention_dim": 64,
    "max_sequence_length": 8,
    "approximator_hidden_dim": 64, "in_text_dim": 64, "in_text_dim2": 64, "num_experts": 4, "moe_intermediate_dim": 64,
}  # fmt: skip
DROPOUTS = ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "attn_dropout")


def make_small(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration that change, by name; nested configurations are made small too."""
    found: dict[str, Any] = {
        name: make_nested_small(value)
        for name, value in configuration.items()
        if isinstance(value, Mapping) and "model_type" in value
    }
    heads = _choose_heads(configuration)
    found |= heads
    width = HEAD_WIDTH * max((heads[name] for name in _HEADS if name in heads), default=4)
    found |= {name: width for name in _WIDTHS if _is_size(configuration.get(name))}
    found |= {name: value for name, value in _FIXED.items() if _is_size(configuration.get(name))}
    if "qk_rope_head_dim" in configuration:
        # Attention through latent vectors has widths of its own, of which this one is a part.
        found.pop("head_dim", None)
    if heads and "hidden_dim" in found and "dim" in found:
        found["hidden_dim"] = 4 * width
    found |= {
        name: min(most, configuration[name]) for name, most in _AT_MOST.items() if _is_size(configuration.get(name))
    }
    found |= {name: DROPOUT for name in DROPOUTS if configuration.get(name) == 0.0}
    found |= _choose_tokens(configuration) if "vocab_size" in found else {}
    return found | _choose_layers(configuration)


def make_diffusion_small(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model of diffusers that change: heads keep their width, and layers are at most two."""
    heads = {name: count // 2 for name, count in _choose_heads(configuration).items()}
    before = next((configuration[name] for name in _HEADS if name in heads), 1)
    after = max(heads.values(), default=1)
    head_width: Any = configuration.get("attention_head_dim")
    width = head_width * before if _is_size(head_width) else configuration.get("hidden_size", configuration.get("dim"))
    found = {name: min(most, configuration[name]) for name, most in _DIFFUSION_FIXED.items()
             if _is_size(configuration.get(name))}  # fmt: skip
    if _is_size(width):
        found |= {name: value // before * after for name, value in configuration.items()
                  if _is_size(value) and value == width}  # fmt: skip
    layers = [name for name in configuration if name == "depth" or "layers" in name or "_blocks" in name]
    if isinstance(blocks := configuration.get("block_out_channels"), tuple):
        found["block_out_channels"] = (64,) * len(blocks)
    return found | heads | {name: min(2, configuration[name]) for name in layers if _is_size(configuration[name])}


def make_nested_small(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole configuration, made small."""
    return {**configuration, **make_small(configuration)}


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _choose_heads(configuration: Mapping[str, Any]) -> dict[str, Any]:
    names = [name for name in _HEADS if _is_size(configuration.get(name))]
    if not names:
        return {}
    key_names = [name for name in _KEY_HEADS if _is_size(configuration.get(name))]
    heads = configuration[names[0]]
    key_heads = configuration[key_names[0]] if key_names else heads
    shared = heads // key_heads
    key_heads = min(key_heads, 2 if shared > 1 else 4)
    return dict.fromkeys(names, key_heads * shared) | dict.fromkeys(key_names, key_heads)


def _choose_tokens(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return special tokens inside the small vocabulary, for those outside it."""
    found: dict[str, Any] = {}
    for number, (name, value) in enumerate(sorted(configuration.items())):
        if name.endswith("_token_id") and isinstance(value, int) and value >= VOCABULARY:
            found[name] = number % 8
        elif name.endswith("_token_id") and isinstance(value, list):
            found[name] = [0]
    return found


def _choose_layers(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of layers, and what a configuration lists for each layer."""
    names = [name for name in _LAYERS if _is_size(configuration.get(name))]
    types = configuration.get("layer_types")
    if not isinstance(types, list | tuple):
        return dict.fromkeys(names, 2)
    kept = sorted({kind: number for number, kind in reversed(list(enumerate(types)))}.values())
    kept = kept if len(kept) > 1 else list(range(min(2, len(types))))
    lists = {
        name: [value[number] for number in kept]
        for name, value in configuration.items()
        if isinstance(value, list | tuple) and len(value) == len(types) > 2
    }
    return dict.fromkeys(names, len(kept)) | lists
