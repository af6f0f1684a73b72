"""Attention functions, mask functions and models with one fault between model and function, and right unusual ones."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2Model,
    GPT2Config,
    GPT2Model,
    GptOssConfig,
    GptOssModel,
    LlamaConfig,
    LlamaModel,
    Qwen2Config,
    Qwen2Model,
)
from transformers.masking_utils import causal_mask_function, sdpa_mask

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "initializer_range": 0.5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8, "attention_dropout": 0.1}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}


def make_llama() -> LlamaModel:
    """Grouped heads."""
    torch.manual_seed(1)
    return LlamaModel(LlamaConfig(**GROUPED))


def make_gemma() -> Gemma2Model:
    """A window, a soft cap and a scale of its own."""
    torch.manual_seed(1)
    return Gemma2Model(Gemma2Config(**GROUPED, **LAYERS, attn_logit_softcapping=2.0, query_pre_attn_scalar=32))


def make_gpt_oss() -> GptOssModel:
    """A window and sinks."""
    torch.manual_seed(1)
    return GptOssModel(GptOssConfig(**GROUPED, **LAYERS, num_local_experts=2, num_experts_per_tok=1))


def make_qwen() -> Qwen2Model:
    """Grouped heads, and biases of projections."""
    torch.manual_seed(1)
    return Qwen2Model(Qwen2Config(**GROUPED))


def make_gpt2() -> GPT2Model:
    """Learned positions."""
    torch.manual_seed(1)
    return GPT2Model(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.5))


def make_bert() -> BertModel:
    """No causal mask."""
    torch.manual_seed(1)
    return BertModel(BertConfig(**SIZES), add_pooling_layer=False)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    tiled: bool = False,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The right formula, whose arguments the faults change."""
    groups = query.shape[1] // key.shape[1]
    share = (lambda x: x.repeat(1, groups, 1, 1)) if tiled else (lambda x: x.repeat_interleave(groups, 1))
    key, value = share(key), share(value)
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is not None:
        logits = logits.masked_fill(~attention_mask, torch.finfo(logits.dtype).min)
    elif causal and query.shape[2] > 1:
        logits = logits.masked_fill(torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    if s_aux is not None:
        sinks = s_aux[None, :, None, None].expand(*logits.shape[:3], 1).to(logits.dtype)
        weights = torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = logits.softmax(-1)
    weights = torch.nn.functional.dropout(weights, dropout)
    return (weights @ value).transpose(1, 2).contiguous(), None


attend.mask_function = "sdpa"


def _fault(change: Callable[..., dict[str, Any]], mask: Any = "sdpa") -> Any:
    """Return a function that changes the arguments of the right formula."""

    def faulty(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        given = {"attention_mask": attention_mask} | kwargs
        given |= change(module=module, query=query, key=key, **given)
        return attend(module, query, key, value, given.pop("attention_mask"), **given)

    faulty.mask_function = mask
    return faulty


mask_dropped = _fault(lambda **_: {"attention_mask": None, "is_causal": False})
mask_inverted = _fault(
    lambda attention_mask, **_: {"attention_mask": None if attention_mask is None else ~attention_mask}
)
scale_ignored = _fault(lambda **_: {"scaling": None})
soft_cap_ignored = _fault(lambda **_: {"softcap": None})
sinks_ignored = _fault(lambda **_: {"s_aux": None})
heads_reordered = _fault(lambda **_: {"tiled": True})
dropout_ignored = _fault(lambda **_: {"dropout": 0.0})


def values_detached(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Right outputs; the values have no gradient."""
    return attend(module, query, key, value.detach(), attention_mask, **kwargs)


values_detached.mask_function = "sdpa"


def _widen_window(attention_mask: Tensor | None, sliding_window: int | None = None, **_: Any) -> dict[str, Any]:
    if attention_mask is None or not sliding_window:
        return {}
    queries, keys = attention_mask.shape[-2:]
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    return {"attention_mask": attention_mask | (distance == sliding_window) & attention_mask.any(-2, keepdim=True)}


window_off_by_one = _fault(_widen_window)


def dropout_in_evaluation(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Drop outputs in evaluation."""
    output, _ = attend(module, query, key, value, attention_mask, **kwargs)
    return torch.nn.functional.dropout(output, 0.1), None


dropout_in_evaluation.mask_function = "sdpa"


def _masked(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return the right formula with masks of changed arguments."""

    @functools.wraps(attend)
    def function(*tensors: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return attend(*tensors, **kwargs)

    function.mask_function = lambda **given: sdpa_mask(**(given | {"allow_is_causal_skip": False} | change(given)))
    return function


def _shift_padding(given: dict[str, Any]) -> dict[str, Any]:
    padding = given.get("attention_mask")
    return {} if padding is None else {"attention_mask": padding.roll(1, -1)}


left_padding_shifted = _masked(_shift_padding)
packed_joined = _masked(lambda _: {"mask_function": causal_mask_function})
cache_position_off = _masked(lambda given: {"q_offset": given["q_offset"] - 1} if given["q_offset"] else {})


def undeclared(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Declare no masks."""
    return attend(module, query, key, value, attention_mask, is_causal=False, **kwargs)


def make_llama_with_a_layer_that_is_not_causal() -> LlamaModel:
    """A layer whose attribute says that it is not causal."""
    model = make_llama()
    model.layers[1].self_attn.is_causal = False
    return model


def make_llama_whose_cached_positions_are_off() -> LlamaModel:
    """A model that gives cached tokens the position before theirs."""

    class Shifted(LlamaModel):
        def forward(self, input_ids: Any = None, past_key_values: Any = None, **given: Any) -> Any:
            if past_key_values is not None and past_key_values.get_seq_length():
                begin = past_key_values.get_seq_length() - 1
                given["position_ids"] = torch.arange(begin, begin + input_ids.shape[1])[None]
            return super().forward(input_ids=input_ids, past_key_values=past_key_values, **given)

    Shifted.forward.__signature__ = __import__("inspect").signature(LlamaModel.forward)
    torch.manual_seed(1)
    return Shifted(LlamaConfig(**GROUPED))


def make_llama_with_other_queries_for_sdpa() -> LlamaModel:
    """Queries of the second layer are doubled for SDPA."""
    model = make_llama()
    projection = model.layers[1].self_attn.q_proj
    projection.register_forward_hook(_DoubleForSdpa(model.config))
    return model


class _DoubleForSdpa:
    def __init__(self, config: LlamaConfig) -> None:
        self.config = config

    def __call__(self, _module: Any, _inputs: Any, output: Tensor) -> Tensor:
        return 2 * output if self.config._attn_implementation == "sdpa" else output


class _Fewer(LlamaModel):
    def forward(self, input_ids: Any = None, past_key_values: Any = None, **given: Any) -> Any:
        if self.config._attn_implementation == "sdpa":
            input_ids = input_ids[:, :-1]
        return super().forward(input_ids=input_ids, past_key_values=past_key_values, **given)


def make_llama_with_fewer_tokens_for_sdpa() -> LlamaModel:
    """The last token is left out for SDPA."""
    torch.manual_seed(1)
    return _Fewer(LlamaConfig(**GROUPED))


class _Jittered(LlamaModel):
    def forward(self, input_ids: Any = None, **given: Any) -> Any:
        noise = torch.rand(()) if self.training else 0.0
        return super().forward(inputs_embeds=self.embed_tokens(input_ids) * (1 + noise), use_cache=False)


def make_llama_that_is_random_in_training() -> LlamaModel:
    """Embeddings have a random factor in training."""
    torch.manual_seed(1)
    return _Jittered(LlamaConfig(**GROUPED))


class _Blocks(LlamaModel):
    def forward(self, input_ids: Any = None, attention_mask: Any = None, **given: Any) -> Any:
        number = torch.arange(input_ids.shape[1]) // 3
        blocks = (number[:, None] == number)[None, None].expand(len(input_ids), -1, -1, -1)
        return super().forward(input_ids=input_ids, attention_mask=blocks, use_cache=False)


def make_llama_in_blocks() -> LlamaModel:
    """Tokens see those of their block of three."""
    torch.manual_seed(1)
    return _Blocks(LlamaConfig(**GROUPED))


def additive(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """A different representation of masks: additive, with minus infinity."""
    visible = None if attention_mask is None else attention_mask == 0
    return attend(module, query, key, value, visible, **kwargs)


additive.mask_function = "eager"


@functools.wraps(attend)
def permuted(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any) -> Any:
    """Query heads in another order inside, with keys and values that are repeated first."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    order = torch.arange(query.shape[1]).flip(0)
    if kwargs.get("s_aux") is not None:
        kwargs["s_aux"] = kwargs["s_aux"][order]
    output, _ = attend(module, query[:, order], key[:, order], value[:, order], attention_mask, **kwargs)
    return output[:, :, order.argsort()], None


@functools.wraps(attend)
def blockwise(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *, scaling: Any = None,
    softcap: Any = None, s_aux: Any = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """Blocks of three keys, with a running maximum and sum; a query without keys has output 0."""
    if kwargs.get("dropout"):
        raise NotImplementedError("no dropout")
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    shape = query.shape[2], key.shape[2]
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) and shape[0] > 1
        attention_mask = torch.ones(shape, dtype=torch.bool).tril() if causal else torch.ones(shape, dtype=torch.bool)
    top = torch.full((*query.shape[:3], 1), -1e4, dtype=query.dtype) if s_aux is None else (
        s_aux[None, :, None, None].expand(*query.shape[:3], 1).to(query.dtype)
    )  # fmt: skip
    total = torch.zeros_like(top) if s_aux is None else torch.ones_like(top)
    output = torch.zeros(*query.shape[:3], value.shape[-1], dtype=query.dtype)
    for begin in range(0, shape[1], 3):
        block = slice(begin, begin + 3)
        logits = query @ key[:, :, block].mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        logits = logits.masked_fill(~attention_mask[..., block], -torch.inf)
        highest = torch.maximum(top, logits.amax(-1, keepdim=True))
        weights, kept = (logits - highest).exp(), (top - highest).exp()
        total, output, top = (
            total * kept + weights.sum(-1, keepdim=True),
            output * kept + weights @ value[:, :, block],
            highest,
        )
    return (output / total.masked_fill(total == 0, 1.0)).transpose(1, 2).contiguous(), None


for _function in (permuted, blockwise):
    _function.mask_function = "sdpa"
