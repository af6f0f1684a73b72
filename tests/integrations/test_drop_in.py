"""Tests of implementations inside real models: called in every layer, compared with float64, timed interleaved."""

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import click
import pytest
import torch
from click import UsageError
from click.testing import CliRunner
from torch import Tensor, nn

from attnbench.analysis.speed_verdict import CONTROL
from attnbench.cli.drop_in_command import COLUMNS, command
from attnbench.integrations import models
from attnbench.integrations.drop_in import PLANNED, Row, Settings, _ModelTiming
from attnbench.integrations.drop_in_requests import TimedModels, TimeModels
from attnbench.integrations.models import MODELS, Batch, compute_allowance, embed_in_float64, make_case
from attnbench.integrations.shuffled_sentences import ShuffledSentences
from attnbench.interface import Implementation
from attnbench.kernel import from_kernel
from attnbench.measurement import sampling
from attnbench.oracle import sentence_encoder
from attnbench.plugins.registry import describe_origin, list_names, load
from attnbench.processes.candidate_requests import Outcome
from attnbench.records.outcome_facts import Crashed, Raised
from attnbench.records.types import Timing
from attnbench.runner import Limits, NoProgress, Session
from attnbench.runner.candidate_pool import TIMING, WorkerKind

needs_encoder = pytest.mark.skipif(
    sentence_encoder.describe_missing() is not None, reason=str(sentence_encoder.describe_missing())
)
needs_transformers = pytest.mark.skipif(
    bool(sentence_encoder.describe_missing() or find_spec("transformers") is None),
    reason="needs the encoder and transformers",
)
BUILT_IN = [
    name for name in list_names() if describe_origin(name).startswith("attnzoo.") and load(name).operator == "multihead"
]


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Three short sentences; half of the tokens are padding."""
    return Batch.from_sentences(3, 10)


@needs_encoder
def test_half_of_a_batch_is_padding() -> None:
    """The first sentence has the full length, every next one is shorter, and half of all tokens are padding."""
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
    with pytest.raises(ValueError, match=r"padding must be a fraction of 0 to 0\.5 of the batch's tokens, got 0\.7"):
        sentence_encoder.make_padded_sentences(2, 8, padding=0.7)


@pytest.fixture(
    scope="module", params=["encoder", pytest.param("transformers", marks=[needs_transformers, pytest.mark.extended])]
)
def oracle_and_budget(request: pytest.FixtureRequest, batch: Batch) -> tuple[str, Tensor, float]:
    """The name of a model, its embeddings in float64, and the error budget."""
    oracle = embed_in_float64(batch)
    return request.param, oracle, compute_allowance(MODELS[request.param].build_originals(batch), oracle)


@needs_encoder
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.extended) if load(name).compiles else name for name in BUILT_IN]
)
def test_a_model_gives_its_embeddings_with_any_attention(
    name: str, batch: Batch, oracle_and_budget: tuple[str, Tensor, float]
) -> None:
    """With any implementation, a model's embeddings are within the error budget, unless the call is refused."""
    model, oracle, allowed = oracle_and_budget
    implementation = load(name)
    if reason := implementation.unsupported(make_case(batch, mask="padfloat" if model == "encoder" else "pad")):
        pytest.skip(f"refused: {reason}")
    found = MODELS[model].build_swapped(name, implementation, batch)()
    assert (found.double() - oracle).abs().max() <= allowed


def make_wrong(**keywords: Any) -> Implementation:
    """Make an implementation that calls SDPA with a scale that is 10 % too large."""

    def attention(q: Any, k: Any, v: Any, *, mask: Any, scale: float) -> Any:
        return nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=1.1 * scale)

    return from_kernel(attention, **keywords)


@needs_encoder
def test_a_wrong_attention_exceeds_the_error_budget(batch: Batch) -> None:
    """Wrong embeddings show that the swapped-in attention runs: torch's fused layers do not bypass it."""
    oracle = embed_in_float64(batch)
    assert torch.backends.mha.get_fastpath_enabled()
    found = MODELS["encoder"].build_swapped("wrong", make_wrong(), batch)()
    assert (found.double() - oracle).abs().max() > 100 * compute_allowance(
        MODELS["encoder"].build_originals(batch), oracle
    )


@needs_encoder
def test_an_attention_that_is_never_called_is_an_error(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that does not call its ``self_attn`` is an error."""
    original = sentence_encoder.SentenceEncoder.forward

    def forward(self: Any, tokens: Any, hidden_keys: Any, layers: int = 5) -> Any:
        return original(self, tokens, hidden_keys, min(layers, 5))

    monkeypatch.setattr(sentence_encoder.SentenceEncoder, "forward", forward)
    with pytest.raises(RuntimeError, match=r"layers \[5\] never called the implementation"):
        MODELS["encoder"].build_swapped("sdpa", load("sdpa"), batch)


@needs_transformers
def test_a_registered_attention_that_is_never_called_is_an_error(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that uses another attention function than the registered one is an error."""
    original = models._make_bert_embed
    monkeypatch.setattr(models, "_make_bert_embed", lambda _, batch: original("sdpa", batch))
    with pytest.raises(RuntimeError, match=r"^0 of 6 layers called the implementation that replaces their attention$"):
        MODELS["transformers"].build_swapped("varlen", load("varlen"), batch)


@pytest.mark.extended
@needs_encoder
@pytest.mark.parametrize("name", ["core_sdpa", "single_head"])
def test_an_implementation_of_another_operator_is_a_usage_error(name: str) -> None:
    """The error comes before any comparison, and names the implementation and the operator that it computes."""
    message = f"^IMPLEMENTATION must compute multihead, got '{name}', which computes "
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(command, [name, "--model", "encoder"], standalone_mode=False, catch_exceptions=False)


@needs_encoder
def test_the_originals_two_paths_differ_by_rounding(batch: Batch) -> None:
    """The original model's default path and torch's fused layers give slightly different embeddings."""
    first, second = (embed() for embed in MODELS["encoder"].build_originals(batch).values())
    assert 0 < (first - second).abs().max() < 1e-5


@pytest.mark.extended
@needs_encoder
def test_stored_embeddings_are_wrong(batch: Batch) -> None:
    """The sentences have another order in every call, so a model that returns stored embeddings has a large error."""
    shuffled = Batch(batch.tokens.clone(), batch.hidden_keys.clone())
    embed = next(iter(MODELS["encoder"].build_originals(shuffled).values()))
    stored = embed()
    calls = {"original": embed, "stored": lambda: stored}
    found = dict.fromkeys(calls, 0.0)
    for _ in range(5):
        sentences, oracle = ShuffledSentences(shuffled), embed_in_float64(shuffled)
        sampling.sample_interleaved(calls, budget_s=0.01, seed=0, surroundings=sentences)
        found = {name: max(found[name], error) for name, error in sentences.find_errors(oracle).items()}
    assert found["original"] < 1e-5 < 1e-2 < found["stored"]


@pytest.mark.extended
@needs_encoder
def test_the_table_is_printed_and_written(tmp_path: Path) -> None:
    """The table has two rows of the original model (default path, fused layers) and one row of each implementation."""
    wrong_one = tmp_path / "wrong.py"
    wrong_one.write_text(
        "import torch\ndef attention(q, k, v, *, mask, scale):\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=1.1 * scale)\n"
    )
    rows_file = tmp_path / "rows.json"
    arguments = ["varlen_packed", "sdpa_cudnn", f"{wrong_one}:attention", "--model", "encoder", "--batch", "3"]
    arguments += ["--length", "10", "--processes", "1", "--threads", "1", "--budget", "0.2"]
    arguments += ["--reports", str(tmp_path), "--json", str(rows_file)]
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert done.return_value == 1, done.output
    rows = {row["implementation"]: row for row in json.loads(rows_file.read_text())["rows"]}
    assert list(rows) == ["original", "original, fused layers", "varlen_packed", "sdpa_cudnn", "wrong.py:attention"]
    packed = rows["varlen_packed"]
    assert packed["status"] == "held"
    assert packed["error"] <= packed["allowed"]
    assert packed["cosine"] > 0.999999
    assert packed["contest"], packed["untimed"]
    # One process is too few for a verdict. If other work on the machine disturbs the process, there is no ratio.
    state, ratio = packed["contest"]["state"], packed["contest"]["ratio"]
    assert state in ("unknown", "inconclusive")
    assert ratio["value"] > 0 if state == "unknown" else ratio is None
    assert rows["sdpa_cudnn"]["status"] == "unsupported"
    assert rows["sdpa_cudnn"]["reason"] == "needs a CUDA device"
    assert rows["wrong.py:attention"]["status"] == "failed"
    assert rows["wrong.py:attention"]["timing"] is None
    with (tmp_path / "drop_in.csv").open() as file:
        written = list(csv.reader(file))
    assert written[0] == list(COLUMNS)
    assert len(written) == len(rows) + 1
    assert "| encoder | varlen_packed |" in (tmp_path / "drop_in.md").read_text()


def make_row(name: str) -> Row:
    """Make the row of an implementation whose embeddings are within the error budget."""
    return Row(model="encoder", implementation=name, status="held", largest=0.0, cosine=1.0, error=0.0, allowed=1.0)


class FakeTiming(_ModelTiming):
    """Timing of models that starts no process: the samples, errors and crashes are given by the names of the models."""

    def _take_samples(self, number: int, names: list[str]) -> TimedModels | Outcome:
        if "raises" in names:
            return Outcome(status="error", facts=(Raised(kind="RuntimeError", message="no"),), culprit="raises")
        if "crashes" in names:
            return Outcome(status="crashed", facts=(Crashed(how="signal", signal="SIGKILL"),))
        calls = ["original", CONTROL, *names]
        taken = Timing(samples_ns=((100 + number,) * 9,), cycles=(tuple(range(9)),), threads=1, first_call_ns=(1,))
        errors = {name: 9.0 if name == "drifts" else 0.0 for name in calls}
        samples = dict.fromkeys(calls, taken)
        return TimedModels(samples=samples, errors=errors, allowed=1.0)


def time_rows(*names: str) -> dict[str, Row]:
    """Time models in two fake processes, and return the rows."""
    settings = Settings(batch=1, length=4, processes=2, budget_s=1.0)
    rows = {name: make_row(name) for name in names}
    timing = FakeTiming(session=Session(), model="encoder", settings=settings, rows=rows, progress=NoProgress())
    return {found.implementation: found for found in timing.time_models(list(names))}


@pytest.mark.extended
def test_finished_rows_are_kept_after_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were finished before an interrupt are printed and written."""

    def interrupted(*_: Any, **__: Any) -> Iterator[Row]:
        yield Row(model="encoder", implementation="sdpa", status="held", largest=1e-6, cosine=0.875)
        raise KeyboardInterrupt

    monkeypatch.setattr("attnbench.cli.drop_in_command._find_models", lambda *_: ["encoder", "transformers"])
    monkeypatch.setattr("attnbench.cli.drop_in_command.drop_in", interrupted)
    done = CliRunner().invoke(command, ["sdpa", "--reports", str(tmp_path)], standalone_mode=False)
    assert isinstance(done.exception, KeyboardInterrupt | click.Abort)
    assert "0.875000000" in done.output
    assert "| encoder | sdpa |" in (tmp_path / "drop_in.md").read_text()


def test_a_model_that_raises_or_is_wrong_after_timing_is_excluded() -> None:
    """The other models are timed again in the same process, without the excluded model, and have a ratio."""
    rows = time_rows("good", "raises", "drifts")
    assert rows["good"].contest is not None
    assert len(rows["good"].timing.samples_ns) == 2
    assert rows["original"].contest is None
    assert rows["original"].timing.twin is not None
    assert rows["raises"].status == rows["drifts"].status == "failed"
    assert rows["raises"].reason == "error in a timing process: RuntimeError: no"
    assert "embeddings differ by 9 from those of the model in float64, but only 1 is allowed," in rows["drifts"].reason


def test_after_a_crash_no_model_has_a_timing() -> None:
    """Every row keeps the result of its comparison, and gives the crash as the reason why there is no timing."""
    rows = time_rows("good", "crashes")
    assert rows["good"].status == "held"
    assert rows["good"].untimed == "crashed in a timing process: the process was killed by SIGKILL"
    assert rows["good"].timing is None


def test_each_model_adds_a_time_out() -> None:
    """The time limit of a request is proportional to the number of models, the original included."""
    given: dict[str, Any] = {}

    class FakeWorker(AbstractContextManager["FakeWorker"]):
        def __exit__(self, *_: object) -> None: ...

        def send(self, request: TimeModels, *, shared_by: int) -> Outcome:
            given.update(request=request, shared_by=shared_by)
            return Outcome(status="error", facts=())

    class FakeSession(Session):
        def get(self, implementations: Sequence[str], kind: WorkerKind) -> Any:
            assert (implementations, kind) == (["a", "b"], TIMING)
            return FakeWorker()

    session = FakeSession()
    session.workers = cast("Any", session)
    timing = _ModelTiming(
        session=session,
        model="encoder",
        settings=Settings(batch=1, length=4, processes=2, budget_s=1.0),
        rows={},
        progress=NoProgress(),
    )
    assert timing._take_samples(0, ["a", "b"]) == Outcome(status="error", facts=())
    assert given["shared_by"] == 3
    assert given["request"].limit_s == pytest.approx(PLANNED * 3 * Limits().timeout_s)


def test_a_row_without_a_ratio_gives_the_reason() -> None:
    """The column of the speed verdict gives the reason why a row has no verdict."""
    from attnbench.cli.drop_in_command import _format_cells

    refused = Row(model="encoder", implementation="x", status="unsupported", reason="needs a CUDA device")
    assert _format_cells(refused) == ["encoder", "x", "", "", "", "", "unsupported: needs a CUDA device"]
    assert _format_cells(replace(make_row("y"), untimed="interpreted"))[-1] == "interpreted"
