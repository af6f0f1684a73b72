"""Real models whose attention is replaced by an implementation, on a batch of real sentences.

Both models are the sentence encoder all-MiniLM-L6-v2 with its trained parameters. The model ``encoder`` is built of
``nn.TransformerEncoderLayer``, whose ``self_attn`` is replaced. The model ``transformers`` is Hugging Face's BertModel,
whose attention function is replaced.
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
    "compute_allowance",
    "embed_in_float64",
    "make_case",
]

# A function that computes the embeddings of the batch: (batch, 384), each of Euclidean norm 1.
Embed = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids of sentences, and a mask that is true at padding. Shape: tokens and mask (batch, length)."""

    tokens: Tensor
    hidden_keys: Tensor

    @classmethod
    def from_sentences(cls, batch: int, length: int) -> "Batch":
        """Make a batch of real sentences; half of all tokens are padding."""
        return cls(*sentence_encoder.make_padded_sentences(batch, length))

    def reorder(self, order: Tensor) -> None:
        """Put the sentences in another order, in place: sentence ``order[i]`` comes to place i."""
        for tensor in (self.tokens, self.hidden_keys):
            tensor.copy_(tensor[order])


class Model(Protocol):
    """A model whose attention can be replaced."""

    def describe_missing(self) -> str | None:
        """Return what this machine lacks to run the model, with the remedy; None if it lacks nothing."""

    def build_originals(self, batch: Batch) -> dict[str, Embed]:
        """Build each code path of the unchanged model; the keys are their names, and the first path is the baseline."""

    def build_swapped(self, name: str, implementation: Implementation, batch: Batch) -> Embed:
        """Build the model with its attention replaced by the implementation in every layer."""


class SwappedAttention(nn.Module):
    """A replacement of a layer's ``self_attn`` that calls an implementation."""

    def __init__(self, call: Callable[..., Any], module: Any) -> None:
        super().__init__()
        # Stored as a submodule, which makes the implementation's parameters part of the model.
        self.module = module if isinstance(module, nn.Module) else None
        self.batch_first = True
        self.calls = 0
        self._call = call

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """Call the implementation, without the options that are None."""
        self.calls += 1
        given = {name: option for name, option in options.items() if option is not None}
        return self._call(query=query, key=key, value=value, **given)


class Encoder:
    """The model built of ``nn.TransformerEncoderLayer``, from ``attnbench.oracle.sentence_encoder``."""

    def describe_missing(self) -> str | None:
        """Return which package is missing to get or to read the model's parameters; None if no package is missing."""
        return sentence_encoder.describe_missing()

    def build_originals(self, batch: Batch) -> dict[str, Embed]:
        """Build two code paths: ``nn.MultiheadAttention`` without attention weights, and torch's fused layers."""
        fused = copy.deepcopy(sentence_encoder.load_encoder())
        fused.fast_path = True
        return {
            "original": _make_embed(sentence_encoder.load_encoder(), batch),
            "original, fused layers": _make_embed(fused, batch),
        }

    def build_swapped(self, name: str, implementation: Implementation, batch: Batch) -> Embed:  # noqa: ARG002
        """Build the model with every ``self_attn`` replaced by the implementation with the same parameters."""
        model = copy.deepcopy(sentence_encoder.load_encoder())
        layers: list[Any] = list(model.layers)
        given = [_collect_layer_inputs(model, number, batch) for number in range(len(layers))]
        case = make_case(batch, mask="padfloat")
        for layer, inputs in zip(layers, given, strict=True):
            module = implementation.build(copy.deepcopy(layer.self_attn))
            if isinstance(module, nn.Module):
                module.eval()
            with torch.no_grad():
                layer.self_attn = SwappedAttention(implementation.prepare(module, case, inputs), module)
        embed = _make_embed(model, batch)
        embed()
        idle = [number for number, layer in enumerate(layers) if layer.self_attn.calls == 0]
        if idle:
            raise RuntimeError(f"layers {idle} never called the implementation that replaces their attention")
        return embed


class HuggingFace:
    """BertModel of the library transformers, with the same trained parameters as ``Encoder``."""

    def describe_missing(self) -> str | None:
        """Return what is missing to load the library or the model's parameters; None if nothing is missing."""
        return transformers.describe_missing() or sentence_encoder.describe_missing()

    def build_originals(self, batch: Batch) -> dict[str, Embed]:
        """Build two code paths of BertModel: SDPA, which is the library's default, and eager."""
        return {
            "original (sdpa)": _make_bert_embed("sdpa", batch),
            "original, eager": _make_bert_embed("eager", batch),
        }

    def build_swapped(self, name: str, implementation: Implementation, batch: Batch) -> Embed:  # noqa: ARG002
        """Build the model with the implementation as ``attn_implementation``."""
        public = transformers.register(name)
        embed = _make_bert_embed(public, batch)
        embed()
        if (called := transformers.count_calls(public)) != sentence_encoder.LAYERS:
            raise RuntimeError(
                f"{called} of {sentence_encoder.LAYERS} layers called the implementation that replaces their attention"
            )
        return embed


MODELS: dict[str, Model] = {"encoder": Encoder(), "transformers": HuggingFace()}


def compute_allowance(originals: dict[str, Embed], oracle: Tensor) -> float:
    """Return the error budget of embeddings: ``FACTOR`` times the largest error of the original model's code paths.

    Unit: absolute; embeddings have Euclidean norm 1.
    """
    return FACTOR * max(float((embed().double() - oracle).abs().max()) for embed in originals.values())


def make_case(batch: Batch, *, mask: str = "pad") -> Case:
    """Return the case that describes the attention call of each layer.

    ``mask`` is the padding mask that the layer passes on: ``pad`` (boolean), or ``padfloat`` (additive) for the model
    ``encoder``, since nn.TransformerEncoderLayer converts a boolean padding mask to an additive one.
    """
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


def embed_in_float64(batch: Batch) -> Tensor:
    """Compute the embeddings of the batch with the encoder in float64."""
    return _make_embed(copy.deepcopy(sentence_encoder.load_encoder()).double(), batch)()


def _make_embed(model: sentence_encoder.SentenceEncoder, batch: Batch) -> Embed:
    """Return a function that runs the encoder on the batch, without gradients."""

    def embed() -> Tensor:
        with torch.no_grad():
            return model.pool(batch.tokens, batch.hidden_keys)

    return embed


def _collect_layer_inputs(model: sentence_encoder.SentenceEncoder, number: int, batch: Batch) -> Inputs:
    """Collect the inputs of a layer's attention: hidden states (query, key and value) and an additive padding mask."""
    with torch.no_grad():
        hidden = model(batch.tokens, batch.hidden_keys, layers=number)
    attention = model.get_submodule(f"layers.{number}.self_attn")
    padding = torch.zeros(batch.tokens.shape).masked_fill(batch.hidden_keys, float("-inf"))
    return Inputs(
        parameters={name: value.detach() for name, value in attention.named_parameters()},
        tensors={"query": hidden, "key": hidden, "value": hidden, "key_padding_mask": padding},
        options={"need_weights": False, "average_attn_weights": True, "is_causal": False},
    )


def _make_bert_embed(attention: str, batch: Batch) -> Embed:
    """Return a function that runs BertModel with an attention function, and pools its last hidden states."""
    from transformers import BertModel

    model = BertModel.from_pretrained(
        sentence_encoder.find_model_folder(), attn_implementation=attention, add_pooling_layer=False
    ).eval()

    def embed() -> Tensor:
        with torch.no_grad():
            hidden = model(input_ids=batch.tokens, attention_mask=(~batch.hidden_keys).long()).last_hidden_state
            return sentence_encoder.mean_pool(hidden, batch.hidden_keys)

    return embed
