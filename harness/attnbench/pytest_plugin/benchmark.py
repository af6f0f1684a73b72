"""The fixture ``attention_benchmark``; this module is loaded only where pytest-benchmark is.

attnbench measures a call with interleaved calls of the operator's reference. pytest-benchmark measures nothing: it gets
one number of each process, the ratio of the two times, for its statistics, its storage and ``--benchmark-compare``. A
time of another moment is not comparable, because the speed of a machine changes; such a ratio is.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from attnbench.api.profiling import ProfileResult
    from attnbench.records.types import Pass, Result

__all__ = ["AttentionBenchmark", "attention_benchmark"]

# Number of timing processes, each of which is a round. On two cores with a load average of 6 to 10, the
# medians of 7 rounds of unchanged code differed by up to 14 %, those of 10 rounds by up to 7 %: research/saved_runs.py.
PROCESSES = 10
GROUP = "time / time of the reference"
# pytest-benchmark puts an s behind this unit.
UNIT = "reference call"
MARKER = "benchmark"
# Readings of the clock of a test, before and after each round.
Readings = deque[float]


class AttentionBenchmark:
    """Checks and measures one call, and gives pytest-benchmark the ratios to the reference's time."""

    def __init__(self, benchmark: "BenchmarkFixture", readings: Readings) -> None:
        self._benchmark = benchmark
        self._readings = readings
        self.called = False

    def __call__(
        self,
        implementation: object,
        length: int | tuple[int, int],
        *,
        passes: "Pass" = "forward",
        threads: int = 1,
        processes: int = PROCESSES,
        results: str | Path | None = None,
        **sizes: Any,
    ) -> "ProfileResult":
        """Check the call and measure it beside its reference; the test fails where the call is wrong.

        The arguments are those of ``attnbench.profile``, with one value each. ``length`` is a number of tokens, or a
        pair (queries, keys). A call on several ``threads`` waits for the slowest, so other work disturbs it more.
        ``processes`` is the number of rounds. Under ``--benchmark-disable``, and with
        pytest-xdist, one process times the call, and nothing is stored. With ``results``, the folder also gets a run
        file.
        """
        __tracebackhide__ = True
        from attnbench.plugins.importable import find_name
        from attnbench.plugins.registry import PluginError, display_name

        self.called = True
        _refuse_several({"passes": passes, "threads": threads, **sizes})
        try:
            made = _measure(
                implementation, lengths=[length], passes=passes, threads=threads, results=results, **sizes,
                processes=processes if self._benchmark.enabled else 1,
            )  # fmt: skip
            name = find_name(implementation)
        except (PluginError, ValueError) as error:
            fault = f"attention_benchmark: {' '.join(str(error).split())}"
            raise pytest.fail.Exception(fault, pytrace=False) from None
        own = [one for one in made.results if one.implementation == display_name(name)]
        if len(own) != 1:
            pytest.fail(f"attention_benchmark measures one call, and these arguments have {len(own)}", pytrace=False)
        ratios = _require_ratios(name, own[0], made.results)
        self._store(made, own[0], ratios)
        return made

    def _store(self, made: "ProfileResult", own: "Result", ratios: Sequence[float]) -> None:
        """Give pytest-benchmark a round for each ratio, and what else was measured as extra information."""
        self._benchmark.group = self._benchmark.group or GROUP
        self._benchmark.extra_info.update(_describe(made, own))
        self._readings.extend(reading for ratio in ratios for reading in (0.0, ratio))
        self._benchmark.pedantic(lambda: None, rounds=len(ratios))  # type: ignore[no-untyped-call]


@pytest.fixture
def _attention_readings(request: pytest.FixtureRequest) -> Readings:
    """Readings of the test's clock; this marks the test before ``benchmark`` reads the marker."""
    readings: Readings = deque()

    def ratio_to_reference() -> float:
        return readings.popleft()

    marker = request.node.get_closest_marker(MARKER)
    chosen = {**(marker.kwargs if marker else {}), "timer": ratio_to_reference}
    request.node.add_marker(pytest.mark.benchmark(**chosen), append=False)
    return readings


@pytest.fixture
def attention_benchmark(_attention_readings: Readings, benchmark: "BenchmarkFixture") -> Iterator[AttentionBenchmark]:
    """Check a call of an implementation, and measure it beside the reference."""
    made = AttentionBenchmark(benchmark, _attention_readings)
    yield made
    if made.called and benchmark.stats is None:
        # A wrong call has no round. Without this, pytest-benchmark would warn that the test forgot the fixture.
        benchmark.skipped = True


def pytest_benchmark_scale_unit(unit: str, benchmarks: Sequence[dict[str, Any]]) -> tuple[str, float] | None:
    """Show the ratios of a table that has nothing else in calls of the reference, and not in seconds."""
    if not all("conformance" in one["extra_info"] for one in benchmarks):
        return None
    return (UNIT if unit == "seconds" else ""), 1.0


def _measure(implementation: object, **chosen: Any) -> "ProfileResult":
    from attnbench.api.profiling import profile

    return profile([implementation], progress=False, **chosen)


def _refuse_several(chosen: dict[str, Any]) -> None:
    __tracebackhide__ = True
    for name, value in chosen.items():
        if isinstance(value, Sequence) and not isinstance(value, str):
            pytest.fail(
                f"attention_benchmark: {name} must be one value, got {value!r}; parametrize the test", pytrace=False
            )


def _require_ratios(name: str, own: "Result", results: Sequence["Result"]) -> list[float]:
    """Return the ratio of each process; fail the test where the call is wrong, skip it where it cannot be timed."""
    __tracebackhide__ = True
    from attnbench.analysis.rough_ratio import divide_all_calls
    from attnbench.analysis.timing_rows import find_reference
    from attnbench.api import format_finding
    from attnbench.records.outcome_facts import ExcludedFromTiming, KeepsWorking
    from attnbench.records.types import FAILURES
    from attnbench.words.findings import describe_reason

    for finding in own.findings:
        if finding.status in FAILURES:
            pytest.fail(format_finding(name, own.case, finding), pytrace=False)
    if own.timing is None:
        reason = f"no timing: {describe_reason(own.untimed) if own.untimed else 'the run ended before'}"
        if isinstance(own.untimed, ExcludedFromTiming | KeepsWorking):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    reference = find_reference(own.case)
    base = next((one for one in results if (one.implementation, one.case) == (reference, own.case)), None)
    if base is None or base.timing is None:
        pytest.skip(f"no ratio: the reference {reference} was not timed")
    return divide_all_calls(own.timing, base.timing)


def _describe(made: "ProfileResult", own: "Result") -> dict[str, Any]:
    """Return the extra information of a benchmark, without what was not measured."""
    import msgspec

    from attnbench.records.benchmark_file import MeasuredCall
    from attnbench.report.columns import MEMORY, TIMINGS, Columns, list_cells

    def find_row(columns: Columns, rows: Sequence[Any]) -> dict[str, Any]:
        names = [column.name for column in columns]
        cells = next(list_cells(columns, rows), [None] * len(names))
        return {name: cell for name, cell in zip(names, cells, strict=True) if cell not in (None, "")}

    timings = [one for one in made.summary.timings if (one.implementation, one.case) == (own.implementation, own.case)]
    run = made.run.run
    call = MeasuredCall(
        machine=run.machine.name,
        torch=run.versions.get("torch", ""),
        conformance={finding.check: finding.status for finding in own.findings},
        timings=find_row(TIMINGS, timings),
        memory=find_row(MEMORY, [own] if own.memory else []),
    )
    made_of: dict[str, Any] = msgspec.to_builtins(call)
    return made_of
