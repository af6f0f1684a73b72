"""Small models of transformers with random weights, and the largest difference of two outputs."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

__all__ = ["FIRST", "SECOND", "largest", "make_model", "pad", "run"]

# Seed of the weights and of the tokens.
SEED = 0
# Standard deviation of the weights. With that of training's begin (0.02), attention is almost flat.
WEIGHT_STD = 0.3
# Sizes under the names that the configurations give them.
_BERT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
    "vocab_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
_GQA = _BERT | {"num_key_value_heads": 2, "head_dim": 16}
_BART = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 64, "max_position_embeddings": 64,
    "pad_token_id": 1, "decoder_start_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_TYPES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
_T5GEMMA = _GQA | _TYPES | {"attn_logit_softcapping": None, "final_logit_softcapping": None}
_VISION = _BERT | {"image_size": 32, "patch_size": 8}
SIZES: dict[str, dict[str, Any]] = {
    "Afmoe": _GQA | _EXPERTS | _TYPES | {"num_experts": 4},
    "Bart": _BART,
    "BigBirdPegasus": _BART,
    "BioGpt": _BERT,
    "Blenderbot": _BART,
    "BlenderbotSmall": _BART,
    "CLIPText": _BERT,
    "DPR": _BERT,
    "Falcon": _BERT | {"alibi": False, "new_decoder_architecture": False, "multi_query": False},
    "GptOss": _GQA | _EXPERTS | _TYPES | {"num_local_experts": 4},
    "GraniteMoeHybrid": _GQA | {
        "layer_types": ["full_attention", "full_attention"], "num_local_experts": 0, "shared_intermediate_size": 32,
        "position_embedding_type": "rope",
    },
    "Llama": _GQA,
    "ImageGPT": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 65},
    "LongT5": {
        "d_model": 64, "d_kv": 16, "d_ff": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 64, "local_radius": 3,
    },
    "MBart": _BART,
    "Marian": _BART,
    "MobileBert": _BERT | {"embedding_size": 32, "intra_bottleneck_size": 64, "normalization_type": "layer_norm"},
    "MegatronBert": _BERT | {"is_decoder": True},
    "Moshi": _GQA | {"ffn_dim": 32, "sliding_window": 4},
    "OPT": _BERT | {"ffn_dim": 32, "word_embed_proj_dim": 64},
    "PLBart": _BART,
    "PaliGemma": {"text_config": {"model_type": "gemma"} | _GQA, "vision_config": _VISION, "projection_dim": 64},
    "Pegasus": _BART,
    "PegasusX": _BART | {"num_global_tokens": 4, "block_size": 4},
    "Qwen3Next": _GQA | _EXPERTS | {
        "num_experts": 4, "shared_expert_intermediate_size": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"],
    },
    "T5Gemma": {"encoder": _T5GEMMA, "decoder": _T5GEMMA, "vocab_size": 64},
    "XGLM": {
        "d_model": 64, "ffn_dim": 32, "num_layers": 2, "attention_heads": 4, "vocab_size": 64,
        "max_position_embeddings": 64, "pad_token_id": 1,
    },
}  # fmt: skip
# Two sequences of tokens above those that configurations reserve.
FIRST = torch.randint(8, 64, (1, 12), generator=torch.Generator().manual_seed(SEED))
SECOND = torch.randint(8, 64, (1, 7), generator=torch.Generator().manual_seed(SEED + 1))


def make_model(name: str, attention: str = "eager", **changed: Any) -> Any:
    """Return the model of ``NameConfig``, small, in evaluation and in float32."""
    torch.manual_seed(SEED)
    config = getattr(transformers, f"{name}Config")(**SIZES[name] | changed)
    model = transformers.AutoModel.from_config(config, attn_implementation=attention).eval().float()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and weight.requires_grad:
                weight.normal_(std=WEIGHT_STD)
    return model


def run(model: Any, tokens: Tensor, **given: Any) -> Tensor:
    """Return the hidden states of the last layer, which stand first in the output."""
    with torch.no_grad():
        output = model(input_ids=tokens, **given)
    hidden: Tensor = output[0]
    return hidden


def pad(tokens: Tensor, count: int, *, left: bool) -> tuple[Tensor, Tensor]:
    """Return the tokens with padding on one side, and the mask that hides it."""
    padding, ones = torch.ones(1, count, dtype=torch.long), torch.ones_like(tokens)
    order: Callable[[list[Tensor]], list[Tensor]] = (lambda pair: pair[::-1]) if left else (lambda pair: pair)
    return torch.cat(order([tokens, padding]), 1), torch.cat(order([ones, padding * 0]), 1)


def largest(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference; NaN if there is one."""
    return (one.double() - other.double()).abs().max().item()
