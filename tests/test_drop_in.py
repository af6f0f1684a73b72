"""Implementations inside real models: called in every layer, compared end to end, timed in turns with the original."""

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click import UsageError
from click.testing import CliRunner
from torch import Tensor, nn

from attnbench.cli.drop_in_command import COLUMNS, command
from attnbench.integrations import models, transformers
from attnbench.integrations.drop_in import CONTROL, PLANNED, Row, Settings, _ModelTiming
from attnbench.integrations.models import MODELS, Batch, compute_allowance, embed_in_float64, make_case
from attnbench.interface import Implementation
from attnbench.kernel import from_kernel
from attnbench.measurement.sampling import Samples
from attnbench.oracle import sentence_encoder
from attnbench.plugins.registry import describe_origin, list_names, load
from attnbench.runner import Limits, NoProgress, Session

needs_encoder = pytest.mark.skipif(
    sentence_encoder.describe_missing() is not None, reason=str(sentence_encoder.describe_missing())
)
needs_transformers = pytest.mark.skipif(
    bool(sentence_encoder.describe_missing() or transformers.describe_missing()),
    reason="needs the encoder and transformers",
)
BUILT_IN = [
    name for name in list_names() if describe_origin(name).startswith("attnzoo.") and load(name).operator == "multihead"
]


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Three short sentences, half of them padding."""
    return Batch.from_sentences(3, 10)


@needs_encoder
def test_half_of_a_batch_is_padding() -> None:
    """Lengths fall by equal steps from the full one."""
    tokens, padded = sentence_encoder.make_padded_sentences(16, 128)
    lengths = (~padded).sum(dim=1)
    assert tokens.shape == (16, 128)
    assert abs(float(padded.double().mean()) - 0.5) < 0.01
    assert lengths[0] == 128
    assert bool((lengths.diff() < 0).all())
    assert float(sentence_encoder.make_padded_sentences(4, 20, padding=0.0)[1].double().mean()) == 0
    for arguments, message in (((3, 3), "length must be 4 to 512"), ((0, 8), "batch must be at least 1, got 0")):
        with pytest.raises(ValueError, match=message):
            sentence_encoder.make_padded_sentences(*arguments)
    with pytest.raises(ValueError, match=r"padding must be 0 to 0\.5 of the batch, got 0\.7"):
        sentence_encoder.make_padded_sentences(2, 8, padding=0.7)


@pytest.fixture(scope="module", params=["encoder", pytest.param("transformers", marks=needs_transformers)])
def truth(request: pytest.FixtureRequest, batch: Batch) -> tuple[str, Tensor, float]:
    """A model, its embeddings in float64, and how far others may be off."""
    oracle = embed_in_float64(batch)
    return request.param, oracle, compute_allowance(MODELS[request.param].build_originals(batch), oracle)


@needs_encoder
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_model_gives_its_embeddings_with_any_attention(
    name: str, batch: Batch, truth: tuple[str, Tensor, float]
) -> None:
    """Swapped into every layer, or through transformers' interface: within the error budget, or refused in words."""
    model, oracle, allowed = truth
    implementation = load(name)
    if reason := implementation.unsupported(make_case(batch, mask="padfloat" if model == "encoder" else "pad")):
        pytest.skip(f"refused: {reason}")
    found = MODELS[model].build_swapped(name, implementation, batch)()
    assert (found.double() - oracle).abs().max() <= allowed


def wrong(**keywords: Any) -> Implementation:
    """SDPA with a scale that is a tenth too large."""

    def attention(q: Any, k: Any, v: Any, *, mask: Any, scale: float) -> Any:
        return nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=1.1 * scale)

    return from_kernel(attention, **keywords)


@needs_encoder
def test_a_wrong_attention_shows_in_the_embeddings(batch: Batch) -> None:
    """So the swapped module is what runs: torch's own fused layers are kept from going round it."""
    oracle = embed_in_float64(batch)
    assert torch.backends.mha.get_fastpath_enabled()
    found = MODELS["encoder"].build_swapped("wrong", wrong(), batch)()
    assert (found.double() - oracle).abs().max() > 100 * compute_allowance(
        MODELS["encoder"].build_originals(batch), oracle
    )


@needs_encoder
def test_an_attention_that_is_never_called_is_an_error(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that goes round its ``self_attn`` is found out, not timed."""
    original = sentence_encoder.SentenceEncoder.forward

    def around(self: Any, tokens: Any, hidden_keys: Any, layers: int = 5) -> Any:
        return original(self, tokens, hidden_keys, min(layers, 5))

    monkeypatch.setattr(sentence_encoder.SentenceEncoder, "forward", around)
    with pytest.raises(RuntimeError, match=r"layers \[5\] never called the attention"):
        MODELS["encoder"].build_swapped("sdpa", load("sdpa"), batch)


@needs_transformers
def test_a_registered_attention_that_is_never_called_is_an_error(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that takes another function than the one it was told to is found out, too."""
    made = models._make_bert_embed
    monkeypatch.setattr(models, "_make_bert_embed", lambda _, batch: made("sdpa", batch))
    with pytest.raises(RuntimeError, match=r"^0 of 6 layers called the attention that was registered for them$"):
        MODELS["transformers"].build_swapped("varlen", load("varlen"), batch)


@needs_encoder
@pytest.mark.parametrize("name", ["core_sdpa", "single_head"])
def test_what_no_layer_calls_is_refused(name: str) -> None:
    """An implementation of another operator is named before anything is compared."""
    wanted = f"^IMPLEMENTATION must compute multihead, got '{name}', which computes "
    with pytest.raises(UsageError, match=wanted):
        CliRunner().invoke(command, [name, "--model", "encoder"], standalone_mode=False, catch_exceptions=False)


@needs_encoder
def test_the_originals_two_paths_differ_by_rounding(batch: Batch) -> None:
    """The ordinary path, and torch's fused layers, which the table shows beside it."""
    first, second = (embed() for embed in MODELS["encoder"].build_originals(batch).values())
    assert 0 < (first - second).abs().max() < 1e-5
    turned = Batch(batch.tokens.clone(), batch.hidden_keys.clone())
    turned.reverse()
    assert torch.equal(turned.tokens, batch.tokens.flip(0))


@needs_encoder
def test_the_table_is_printed_and_written(tmp_path: Path) -> None:
    """Rows of the original's paths and of every implementation: right ones with a ratio, others with why not."""
    wrong_one = tmp_path / "wrong.py"
    wrong_one.write_text(
        "import torch\ndef attention(q, k, v, *, mask, scale):\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=1.1 * scale)\n"
    )
    told = tmp_path / "told.json"
    asked = ["varlen_packed", "sdpa_cudnn", f"{wrong_one}:attention", "--model", "encoder", "--batch", "3"]
    asked += ["--length", "10", "--processes", "1", "--threads", "1", "--budget", "0.2"]
    asked += ["--reports", str(tmp_path), "--json", str(told)]
    done = CliRunner().invoke(command, asked, standalone_mode=False)
    assert done.return_value == 1, done.output
    rows = {row["implementation"]: row for row in json.loads(told.read_text())["rows"]}
    assert list(rows) == ["original", "original, fused layers", "varlen_packed", "sdpa_cudnn", "wrong.py:attention"]
    packed = rows["varlen_packed"]
    assert packed["status"] == "held"
    assert packed["error"] <= packed["allowed"]
    assert packed["cosine"] > 0.999999
    assert packed["contest"], packed["untimed"]
    assert packed["contest"]["ratio"]["value"] > 0
    assert packed["contest"]["state"] == "unknown", "one process is too few for a verdict"
    assert rows["sdpa_cudnn"]["status"] == "unsupported"
    assert rows["sdpa_cudnn"]["reason"] == "needs a CUDA device"
    assert rows["wrong.py:attention"]["status"] == "failed"
    assert rows["wrong.py:attention"]["timing"] is None
    with (tmp_path / "drop_in.csv").open() as file:
        written = list(csv.reader(file))
    assert written[0] == list(COLUMNS)
    assert len(written) == len(rows) + 1
    assert "| encoder | varlen_packed |" in (tmp_path / "drop_in.md").read_text()


def row(name: str) -> Row:
    """A row that was compared."""
    return Row(model="encoder", implementation=name, status="held", largest=0.0, cosine=1.0, error=0.0, allowed=1.0)


class Answering(_ModelTiming):
    """Timing whose processes give answers that were thought of."""

    def _take_samples(self, number: int, names: list[str]) -> dict[str, Any]:
        if "raises" in names:
            return {"status": "error", "reason": "RuntimeError: no", "culprit": "raises"}
        if "dies" in names:
            return {"status": "crashed", "reason": "killed"}
        calls = ["original", CONTROL, *names]
        sample = asdict(Samples(times_ns=[100 + number] * 9, cycles=list(range(9)), first_call_ns=1))
        errors = {name: 9.0 if name == "drifts" else 0.0 for name in calls}
        return {"samples": dict.fromkeys(calls, sample), "threads": 1, "errors": errors, "allowed": 1.0}


def timed(*names: str) -> dict[str, Row]:
    """Rows after two processes."""
    asked = Settings(batch=1, length=4, processes=2, budget_s=1.0)
    rows = {name: row(name) for name in names}
    turns = Answering(session=Session(), model="encoder", settings=asked, rows=rows, progress=NoProgress())
    return {found.implementation: found for found in turns.time_models(list(names))}


def test_models_that_were_done_are_told_whatever_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows are printed and written."""

    def cut(*_: Any, **__: Any) -> Iterator[Row]:
        yield Row(model="encoder", implementation="sdpa", status="held", largest=1e-6, cosine=0.875)
        raise KeyboardInterrupt

    monkeypatch.setattr("attnbench.cli.drop_in_command._find_models", lambda *_: ["encoder", "transformers"])
    monkeypatch.setattr("attnbench.cli.drop_in_command.drop_in", cut)
    done = CliRunner().invoke(command, ["sdpa", "--reports", str(tmp_path)], standalone_mode=False)
    assert isinstance(done.exception, KeyboardInterrupt | click.Abort)
    assert "0.875000000" in done.output
    assert "| encoder | sdpa |" in (tmp_path / "drop_in.md").read_text()


def test_who_raises_or_is_wrong_after_its_calls_is_left_out() -> None:
    """The others are timed again in the same process, and keep their ratio."""
    rows = timed("good", "raises", "drifts")
    assert rows["good"].contest is not None
    assert len(rows["good"].timing.samples_ns) == 2
    assert rows["original"].contest is None
    assert rows["original"].timing.twin is not None
    assert rows["raises"].status == rows["drifts"].status == "failed"
    assert rows["raises"].reason == "error: in a timing process: RuntimeError: no"
    assert "embeddings differ by 9 from the model in float64; allowed 1," in rows["drifts"].reason


def test_a_process_that_dies_times_nobody() -> None:
    """Every row stays with its comparison, and says why it has no time."""
    rows = timed("good", "dies")
    assert rows["good"].status == "held"
    assert rows["good"].untimed == "crashed: in a timing process: killed"
    assert rows["good"].timing is None


def test_whole_models_may_each_take_the_time_out() -> None:
    """The one as it is, too: loading and compiling are in it, and the calls that are planned."""
    given: dict[str, Any] = {}

    class Worker(AbstractContextManager["Worker"]):
        def __exit__(self, *_: object) -> None: ...

        def ask(self, do: str, **request: Any) -> dict[str, str]:
            given.update(request)
            return {"do": do}

    class Noting(Session):
        def supervise_together(self, implementations: Sequence[str]) -> Any:
            assert implementations == ["a", "b"]
            return Worker()

    turns = _ModelTiming(
        session=Noting(),
        model="encoder",
        settings=Settings(batch=1, length=4, processes=2, budget_s=1.0),
        rows={},
        progress=NoProgress(),
    )
    assert turns._take_samples(0, ["a", "b"]) == {"do": "take"}
    assert given["shared_by"] == 3
    assert given["limit_s"] == pytest.approx(PLANNED * 3 * Limits().timeout_s)


def test_a_row_without_a_ratio_says_why() -> None:
    """In the place of the state."""
    from attnbench.cli.drop_in_command import _format_cells

    refused = Row(model="encoder", implementation="x", status="unsupported", reason="needs a CUDA device")
    assert _format_cells(refused) == ["encoder", "x", "", "", "", "", "unsupported: needs a CUDA device"]
    assert _format_cells(replace(row("y"), untimed="interpreted"))[-1] == "interpreted"
