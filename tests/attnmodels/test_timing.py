"""Tests of times of whole models: rows in another order, wrong outputs in timed calls, and verdicts."""

import importlib.util
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnbench.analysis.speed_verdict import CONTROL
from attnbench.measurement.sampling import sample_interleaved
from attnbench.records.types import Timing
from attnmodels.requests import ModelSamples
from attnmodels.timed_calls import ShuffledRows, TimedCalls
from attnmodels.timing import time_models

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="pip install 'attnbench[transformers]'"
)


def test_a_stored_output_is_wrong() -> None:
    """The rows have another order in every call, and outputs are compared in the first one."""
    rows = torch.arange(8.0)[:, None].expand(8, 3).clone()
    exact, stored = rows.clone(), rows.clone()
    calls: dict[str, Callable[[], Tensor]] = {"computes": rows.clone, "stored": lambda: stored}
    differs = []
    for _ in range(5):
        around = ShuffledRows([rows], len(rows))
        before = rows.clone()
        sample_interleaved(calls, budget_s=0.01, seed=0, surroundings=around)
        found = around.list_outputs()
        assert torch.equal(found["computes"], before)
        differs.append(not torch.equal(found["stored"], before))
    assert any(differs)
    assert torch.equal(rows.sort(0).values, exact)


def sample(number: int, **shares: float) -> ModelSamples:
    """Return samples of ``eager``, its copy, and ``other``, which takes twice as long."""
    times = {"eager": 100, CONTROL: 100, "other": 200}
    samples = {
        name: Timing(samples_ns=((time + number,) * 9,), cycles=(tuple(range(9)),), threads=1, first_call_ns=(1,))
        for name, time in times.items()
    }
    return ModelSamples(samples=samples, shares=dict.fromkeys(times, 0.25) | shares)


def test_times_have_ratios_to_the_first() -> None:
    """The first is the baseline and has no verdict; ten processes are enough for one."""
    first, other = time_models(["eager", "other"], 10, sample)
    assert (first.attention, first.verdict, first.share) == ("eager", None, 0.25)
    assert first.median_ns == pytest.approx(104.5)
    assert other.verdict is not None
    assert other.verdict.ratio is not None
    assert other.verdict.ratio.value == pytest.approx(2.0, rel=0.1)


def test_a_wrong_output_in_one_timed_call_takes_the_time_away() -> None:
    """One process in which a sampled output is wrong is enough, and the share is that of the worst process."""
    first, other = time_models(["eager", "other"], 3, lambda number: sample(number, other=9.0 if number == 1 else 0.1))
    assert first.median_ns is not None
    assert (other.median_ns, other.verdict, other.share) == (None, None, 9.0)


@needs_transformers
def test_models_are_timed_on_padded_rows() -> None:
    """Both paths and the copy of the first have samples, and outputs within the budget; they share their weights."""
    timed = TimedCalls("transformers:BertConfig", ["eager", "sdpa"], small=True, batch=4, length=16)
    one, other, *_ = timed._models.values()
    assert one.embeddings.word_embeddings.weight is other.embeddings.word_embeddings.weight
    samples, shares = timed.sample(budget_s=0.05, limit_s=10.0, seed=0)
    assert set(samples) == set(shares) == {"eager", CONTROL, "sdpa"}
    assert all(share < 1 for share in shares.values())
