"""Real models with an attention put in the place of their own, on a batch of real sentences.

Both are the sentence encoder all-MiniLM-L6-v2 with its trained weights: as ``nn.TransformerEncoderLayer``, whose
``self_attn`` is exchanged, and as Hugging Face's BertModel, whose attention function is.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.integrations import transformers
from attnbench.interface import Implementation, Inputs
from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.oracle import sentence_encoder
from attnbench.oracle.error_budget import FACTOR

__all__ = [
    "MODELS",
    "Batch",
    "Embed",
    "Encoder",
    "HuggingFace",
    "Model",
    "SwappedAttention",
    "allowance",
    "case_of",
    "in_float64",
]

# Computes the embeddings of the batch: (batch, 384), each of length 1.
Embed = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Batch:
    """Sentences as the models get them. Shape: (batch, length) both; ``hidden_keys`` is true at padding."""

    tokens: Tensor
    hidden_keys: Tensor

    @classmethod
    def of(cls, batch: int, length: int) -> "Batch":
        """Real sentences, half of the batch padding."""
        return cls(*sentence_encoder.padded_sentences(batch, length))

    def turn(self) -> None:
        """Put the sentences in the opposite order, in place."""
        for tensor in (self.tokens, self.hidden_keys):
            tensor.copy_(tensor.flip(0))


class Model(Protocol):
    """A model whose attention can be exchanged."""

    def missing(self) -> str | None:
        """What this machine lacks for it, with the remedy, or None."""

    def originals(self, batch: Batch) -> dict[str, Embed]:
        """The model as it is, by the name of its path; the first is what others are compared with."""

    def swapped(self, name: str, implementation: Implementation, batch: Batch) -> Embed:
        """The model with another attention in every layer."""


class SwappedAttention(nn.Module):
    """An implementation's call in the place of ``self_attn``, with the arguments that a layer gives."""

    def __init__(self, call: Callable[..., Any], module: Any) -> None:
        super().__init__()
        # Held so that its parameters are the model's.
        self.module = module if isinstance(module, nn.Module) else None
        self.batch_first = True
        self.calls = 0
        self._call = call

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """What the implementation returns; what is not given is left out."""
        self.calls += 1
        given = {name: option for name, option in options.items() if option is not None}
        return self._call(query=query, key=key, value=value, **given)


class Encoder:
    """The encoder of ``attnbench.oracle.sentence_encoder``."""

    def missing(self) -> str | None:
        """The package of its weights, and what reads them."""
        return sentence_encoder.missing()

    def originals(self, batch: Batch) -> dict[str, Embed]:
        """``nn.MultiheadAttention`` without weights, and the operator that torch has for whole layers in inference."""
        fused = copy.deepcopy(sentence_encoder.encoder())
        fused.fast_path = True
        return {
            "original": _embedding(sentence_encoder.encoder(), batch),
            "original, fused layers": _embedding(fused, batch),
        }

    def swapped(self, name: str, implementation: Implementation, batch: Batch) -> Embed:  # noqa: ARG002
        """Every layer's ``self_attn`` exchanged for one that has its weights."""
        model = copy.deepcopy(sentence_encoder.encoder())
        layers: list[Any] = list(model.layers)
        given = [_layer_inputs(model, number, batch) for number in range(len(layers))]
        case = case_of(batch, mask="padfloat")
        for layer, inputs in zip(layers, given, strict=True):
            module = implementation.build(copy.deepcopy(layer.self_attn))
            if isinstance(module, nn.Module):
                module.eval().requires_grad_(requires_grad=False)
            with torch.no_grad():
                layer.self_attn = SwappedAttention(implementation.prepare(module, case, inputs), module)
        embed = _embedding(model, batch)
        embed()
        idle = [number for number, layer in enumerate(layers) if layer.self_attn.calls == 0]
        if idle:
            raise RuntimeError(f"layers {idle} never called the attention that was put into them")
        return embed


class HuggingFace:
    """The same weights in transformers' BertModel."""

    def missing(self) -> str | None:
        """The library, or the weights."""
        return transformers.missing() or sentence_encoder.missing()

    def originals(self, batch: Batch) -> dict[str, Embed]:
        """The library's function for SDPA, which is its choice, and the composed one."""
        return {
            "original (sdpa)": _bert_embedding("sdpa", batch),
            "original, eager": _bert_embedding("eager", batch),
        }

    def swapped(self, name: str, implementation: Implementation, batch: Batch) -> Embed:  # noqa: ARG002
        """The model as ``attn_implementation`` makes it."""
        public = transformers.register(name)
        embed = _bert_embedding(public, batch)
        embed()
        if (called := transformers.calls(public)) != sentence_encoder.LAYERS:
            raise RuntimeError(
                f"{called} of {sentence_encoder.LAYERS} layers called the attention that was registered for them"
            )
        return embed


MODELS: dict[str, Model] = {"encoder": Encoder(), "transformers": HuggingFace()}


def allowance(originals: dict[str, Embed], oracle: Tensor) -> float:
    """How far an embedding may be from the one in float64: so many times what the model's own paths are off.

    Unit: absolute; embeddings have length 1.
    """
    return FACTOR * max(float((embed().double() - oracle).abs().max()) for embed in originals.values())


def case_of(batch: Batch, *, mask: str = "pad") -> Case:
    """What each layer asks of its attention. nn.TransformerEncoderLayer makes numbers of its boolean mask."""
    sequences, length = batch.tokens.shape
    problem = MultiheadProblem(
        batch=sequences,
        queries=length,
        keys=length,
        embed_dim=sentence_encoder.WIDTH,
        num_heads=sentence_encoder.HEADS,
        bias=True,
        batch_first=True,
        self_attention=True,
        mask=mask,
        regime="minilm0",
    )
    return Case(operator="multihead", problem=problem, mode="inference")


def in_float64(batch: Batch) -> Tensor:
    """Embeddings of the batch by the encoder in float64."""
    return _embedding(copy.deepcopy(sentence_encoder.encoder()).double(), batch)()


def _embedding(model: sentence_encoder.SentenceEncoder, batch: Batch) -> Embed:
    """The encoder on the batch, without gradients."""

    def embed() -> Tensor:
        with torch.no_grad():
            return model.pooled(batch.tokens, batch.hidden_keys)

    return embed


def _layer_inputs(model: sentence_encoder.SentenceEncoder, number: int, batch: Batch) -> Inputs:
    """What a layer gives its attention on the batch: hidden states under three names, and padding as numbers."""
    with torch.no_grad():
        hidden = model(batch.tokens, batch.hidden_keys, layers=number)
    attention = model.get_submodule(f"layers.{number}.self_attn")
    padding = torch.zeros(batch.tokens.shape).masked_fill(batch.hidden_keys, float("-inf"))
    return Inputs(
        parameters={name: value.detach() for name, value in attention.named_parameters()},
        tensors={"query": hidden, "key": hidden, "value": hidden, "key_padding_mask": padding},
        options={"need_weights": False, "average_attn_weights": True, "is_causal": False},
    )


def _bert_embedding(attention: str, batch: Batch) -> Embed:
    """BertModel with an attention function, its last hidden states pooled as the encoder's are."""
    from transformers import BertModel

    model = BertModel.from_pretrained(
        sentence_encoder.files(), attn_implementation=attention, add_pooling_layer=False
    ).eval()

    def embed() -> Tensor:
        with torch.no_grad():
            hidden = model(input_ids=batch.tokens, attention_mask=(~batch.hidden_keys).long()).last_hidden_state
            return sentence_encoder.pooled(hidden, batch.hidden_keys)

    return embed
