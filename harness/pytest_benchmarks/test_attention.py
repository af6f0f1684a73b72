"""Timings of the built-in implementations as tables of pytest-benchmark.

    pytest harness/pytest_benchmarks --benchmark-storage=file://results/pytest-benchmark --benchmark-autosave

attnbench measures the samples with interleaved calls. pytest-benchmark measures nothing: it gets the stored samples for
its statistics and storage. A case without a timing is skipped, with the reason why it was not timed.
"""

from collections.abc import Callable, Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from attnbench.records.types import Pass, Result
from attnbench.words.findings import describe_reason


class Replay:
    """A clock that replays stored samples: its readings before and after a benchmark round differ by one sample."""

    def __init__(self) -> None:
        self._ticks: Iterator[float] = iter(())

    def load(self, samples_ns: list[int]) -> None:
        """Set the samples to replay from now on."""
        now = 0
        ticks: list[float] = []
        for sample in samples_ns:
            ticks += [now / 1e9, (now + sample) / 1e9]
            now += sample
        self._ticks = iter(ticks)

    def __call__(self) -> float:
        """Return the next reading. Unit: s."""
        return next(self._ticks, 0.0)


replay = Replay()


@pytest.mark.benchmark(timer=replay)
def test_attention(
    benchmark: BenchmarkFixture,
    measure_on: Callable[[str], dict[tuple[str, int, Pass], Result]],
    device: str,
    implementation: str,
    length: int,
    pass_name: Pass,
) -> None:
    """pytest-benchmark stores the samples that attnbench measured, with bytes of memory as extra information."""
    result = measure_on(device)[implementation, length, pass_name]
    if result.timing is None:
        pytest.skip(f"no timing: {describe_reason(result.untimed) if result.untimed else 'the run ended'}")
    samples = [sample for process in result.timing.samples_ns for sample in process]
    benchmark.group = f"{pass_name}, length {length}, {device}"
    assert result.memory is not None
    benchmark.extra_info.update(
        case=result.case,
        processes=len(result.timing.samples_ns),
        peak_bytes=result.memory.peak_bytes,
        saved_bytes=result.memory.saved_bytes,
    )
    replay.load(samples)
    benchmark.pedantic(lambda: None, rounds=len(samples))  # type: ignore[no-untyped-call]
    if benchmark.stats is not None:  # None under --benchmark-disable
        assert benchmark.stats.stats.data == pytest.approx([sample / 1e9 for sample in samples])
