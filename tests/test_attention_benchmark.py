"""Tests of the fixture ``attention_benchmark``: what pytest-benchmark gets, stores and compares."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from pytest_benchmark.utils import PercentageRegressionCheck

import attnbench
from attnbench.analysis.rough_ratio import divide_all_calls
from attnbench.api.profiling import ProfileResult
from attnbench.pytest_plugin import benchmark as plugin
from attnbench.records.run_file import ResultsError
from attnbench.records.types import Finding, Result, Timing
from timed_runs import REFERENCE, case_of, store, time_calls

pytest_plugins = ["pytester"]

NAME = "sdpa"
# Cycles of a simulated process. Other work disturbs a third of the calls, and the speed changes between processes.
CYCLES, DISTURBED = 30, 1 / 3
# The threshold of docs/tracking.md in percent, and a slowdown that it finds.
THRESHOLD, SLOWER = 10, 1.2
SAVE = "--benchmark-save=run"
FILE = f"""
import pytest

@pytest.mark.parametrize("length", [64])
def test_speed(attention_benchmark, length):
    attention_benchmark({NAME!r}, length)
"""


@pytest.fixture
def here(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with a benchmark; neither the machine nor a commit is described, which takes a second each."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeconftest(
        "def pytest_benchmark_generate_machine_info(): return {}\n"
        "def pytest_benchmark_generate_commit_info(): return {'id': 'abc'}"
    )
    pytester.makepyfile(test_speed=FILE)
    return pytester


def run(here: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run the benchmark without the plug-in of hypothesis, whose import takes a second in each run."""
    return here.runpytest_inprocess("-p", "no:hypothesispytest", *options)


def answer(patch: pytest.MonkeyPatch, *results: Result) -> list[dict[str, object]]:
    """Let the fixture measure these results; return the list of what it asks for."""
    asked = []

    def measure(implementation: object, **chosen: object) -> ProfileResult:
        asked.append({"implementation": implementation, **chosen})
        return ProfileResult(run=store(results), path=None)

    patch.setattr(plugin, "_measure", measure)
    return asked


def simulate(ratio: float, seed: int) -> tuple[Result, Result]:
    """Return the results of the reference and an implementation on a machine with other work, in seven processes."""
    draw = random.Random(seed)
    sides: list[list[tuple[int, ...]]] = [[], []]
    for _ in range(plugin.PROCESSES):
        speed = draw.uniform(0.5, 3.0)
        calls = [(_disturb(draw, 1e6 * speed), _disturb(draw, ratio * 1e6 * speed)) for _ in range(CYCLES)]
        for side, times_ns in zip(sides, zip(*calls, strict=True), strict=True):
            side.append(times_ns)
    return _with_samples(REFERENCE, sides[0]), _with_samples(NAME, sides[1])


def _disturb(draw: random.Random, time_ns: float) -> int:
    waits = draw.random() < DISTURBED
    return round(time_ns * draw.gauss(1, 0.03) + waits * draw.expovariate(1 / (3 * time_ns)))


def _with_samples(name: str, samples_ns: Sequence[tuple[int, ...]]) -> Result:
    result = time_calls(name)
    assert result.timing is not None
    cycles = (tuple(range(CYCLES)),) * len(samples_ns)
    return replace(result, timing=replace(result.timing, samples_ns=tuple(samples_ns), cycles=cycles))


def read_stored(folder: Path) -> dict[str, object]:
    """Return the only benchmark that was stored."""
    (path,) = folder.rglob("0001_*.json")
    (found,) = json.loads(path.read_text())["benchmarks"]
    return found


def test_a_round_is_the_ratio_of_a_process(here: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored numbers are the ratios, without rounding; the table has them in calls of the reference."""
    answer(monkeypatch, time_calls(REFERENCE, processes=4), time_calls(NAME, 0.8, 1.1, processes=4))
    result = run(here, SAVE, "--benchmark-save-data", "--benchmark-columns=median")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*benchmark 'time / time of the reference'*", "Name (time in reference calls) *"])
    found = read_stored(here.path)
    assert found["stats"]["data"] == [0.8, 1.1, 0.8, 1.1]
    assert found["stats"]["median"] == pytest.approx(0.95)
    assert found["options"]["timer"] == "ratio_to_reference"
    assert found["fullname"] == "test_speed.py::test_speed[64]"


def test_what_else_was_measured_is_read_as_tables(here: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conformance, bytes and rate are in ``extra_info``; ``results.read`` has them in the columns of runs."""
    answer(monkeypatch, time_calls(REFERENCE), time_calls(NAME, 0.5))
    run(here, SAVE).assert_outcomes(passed=1)
    info = read_stored(here.path)["extra_info"]
    assert info["conformance"] == {"forward_parity": "passed"}
    assert info["memory"]["peak_bytes"] == 3 * 2**20
    assert info["timings"]["state"] == "faster"
    assert info["timings"]["gflop_per_s"] == pytest.approx(10**6 / info["timings"]["median_ns"])
    (timing,) = attnbench.results.read(here.path / ".benchmarks").to_dict("records")
    assert timing["ratio"] == timing["compared_ratio"] == 0.5
    assert (timing["implementation"], timing["case"], timing["machine"]) == (NAME, case_of(), "some-cpu")
    assert timing["commit"] == "abc"
    (path,) = here.path.rglob("0001_*.json")
    assert attnbench.results.read(path, table="memory")["saved_bytes"].tolist() == [2**19]
    assert attnbench.results.read(path, table="findings")["status"].tolist() == ["passed"]
    with pytest.raises(ResultsError, match="files of pytest-benchmark have no table kernels; read timings or memory"):
        attnbench.results.read(path, table="kernels")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ResultsError, match=r"0001_.*\.json is no whole JSON file"):
        attnbench.results.read(path)


def test_a_threshold_fails_slower_code(here: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unchanged code passes, and code that is 20 % slower fails, on a machine with other work."""
    compare = ("--benchmark-compare=0001", f"--benchmark-compare-fail=median:{THRESHOLD}%")
    answer(monkeypatch, *simulate(1.0, 0))
    run(here, SAVE).assert_outcomes(passed=1)
    answer(monkeypatch, *simulate(1.0, 1))
    assert run(here, *compare).ret == pytest.ExitCode.OK
    answer(monkeypatch, *simulate(SLOWER, 2))
    slower = run(here, *compare)
    assert slower.ret != pytest.ExitCode.OK
    assert "Performance has regressed" in f"{slower.stdout}{slower.stderr}"


def test_the_threshold_holds_beside_other_work() -> None:
    """Of 100 pairs of runs, none of unchanged code fails, and each of code that is 20 % slower does.

    The medians of times, which pytest-benchmark would compare, fail for a third of the unchanged pairs.
    """
    compare = PercentageRegressionCheck("median", THRESHOLD)
    alarms = found = of_times = 0
    for seed in range(100):
        pairs = [simulate(1.0, 3 * seed), simulate(1.0, 3 * seed + 1), simulate(SLOWER, 3 * seed + 2)]
        base, same, slower = ({"median": median(divide_all_calls(_time(own), _time(ref)))} for ref, own in pairs)
        alarms += compare.fails(same, base) is not None
        found += compare.fails(slower, base) is not None
        was, now = ({"median": median(map(median, _time(own).samples_ns))} for _, own in pairs[:2])
        of_times += compare.fails(now, was) is not None
    assert (alarms, found) == (0, 100)
    assert of_times > 30


def _time(result: Result) -> Timing:
    assert result.timing is not None
    return result.timing


def test_ratios_are_those_of_cycles_with_the_reference_or_its_copy() -> None:
    """A cycle without either gives no ratio, and a process without such a cycle gives no round."""
    copy = Timing(samples_ns=((10,), ()), cycles=((2,), ()), threads=1)
    base = Timing(samples_ns=((20,), ()), cycles=((1,), ()), threads=1, twin=copy)
    own = Timing(samples_ns=((40, 30, 99), (5,)), cycles=((1, 2, 3), (1,)), threads=1)
    assert divide_all_calls(own, base) == [2.5]


def test_a_wrong_call_has_no_speed(here: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test fails with the finding and the command that reproduces it, and has no row in the table."""
    finding = Finding(check="forward_parity", status="failed", reason="off by one")
    answer(monkeypatch, time_calls(REFERENCE), replace(time_calls(NAME), findings=(finding,), timing=None, memory=None))
    result = run(here)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["off by one", "*attnbench reproduce *--check forward_parity sdpa"])
    assert "time in" not in str(result.stdout)


def test_a_refused_call_is_skipped_with_its_reason(here: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a call whose reference was not timed."""
    refused = replace(time_calls(NAME), findings=(), timing=None, memory=None, untimed="it takes no mask")
    answer(monkeypatch, time_calls(REFERENCE), refused)
    result = run(here, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * no timing: it takes no mask"])
    answer(monkeypatch, time_calls(NAME))
    result = run(here, "-rs")
    result.stdout.fnmatch_lines(["SKIPPED * no ratio: the reference torch_mha was not timed"])


def test_without_benchmarks_one_process_checks_and_times(
    here: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--benchmark-disable``, which pytest-xdist implies, has no statistics; ``--benchmark-skip`` measures nothing."""
    asked = answer(monkeypatch, time_calls(REFERENCE), time_calls(NAME))
    run(here, "--benchmark-disable").assert_outcomes(passed=1)
    assert [one["processes"] for one in asked] == [1]
    run(here, "--benchmark-skip").assert_outcomes(skipped=1)
    run(here, "--benchmark-only").assert_outcomes(passed=1)
    assert [one["processes"] for one in asked] == [1, plugin.PROCESSES]


def test_a_marker_of_the_test_is_kept(here: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture adds its clock to the test's own marker."""
    answer(monkeypatch, time_calls(REFERENCE), time_calls(NAME))
    here.makepyfile(test_speed=FILE.replace("@pytest", "@pytest.mark.benchmark(group='mine')\n@pytest"))
    run(here, SAVE).assert_outcomes(passed=1)
    assert read_stored(here.path)["group"] == "mine"


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("'sdpa', 64, batch=[1, 2]", "attention_benchmark: batch must be one value, got [[]1, 2]; parametrize *"),
        ("'sdpaa', 64", "attention_benchmark: unknown implementation 'sdpaa'; did you mean*"),
        ("'sdpa', 0", "attention_benchmark: lengths*"),
    ],
    ids=["several", "name", "length"],
)  # fmt: skip
def test_an_invalid_argument_fails_in_one_line(here: pytest.Pytester, call: str, fault: str) -> None:
    """The line names the argument."""
    here.makepyfile(test_speed=f"def test_speed(attention_benchmark): attention_benchmark({call})")
    result = run(here)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([fault])
    assert "Traceback" not in str(result.stdout)


def test_a_missing_pytest_benchmark_is_named(here: pytest.Pytester) -> None:
    """The rest of the plug-in works without it."""
    (here.path / "conftest.py").unlink()
    result = run(here, "-p", "no:benchmark")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["attention_benchmark needs pytest-benchmark: pip install pytest-benchmark"])


@pytest.mark.extended
def test_a_function_is_checked_and_measured(here: pytest.Pytester) -> None:
    """Nothing is simulated: a right function has a ratio, and a wrong one fails."""
    here.makepyfile(
        kernels="""
        from torch.nn.functional import scaled_dot_product_attention

        def right(q, k, v, *, mask, scale):
            return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)

        def wrong(q, k, v, *, mask, scale):
            return 1.01 * right(q, k, v, mask=mask, scale=scale)
        """,
        test_speed="""
        import pytest
        from kernels import right, wrong

        @pytest.mark.parametrize("function", [right, wrong])
        def test_speed(attention_benchmark, function):
            attention_benchmark(function, 16, processes=2, batch=2)
        """,
    )
    here.runpytest(SAVE).assert_outcomes(passed=1, failed=1)
    (timing,) = attnbench.results.read(here.path / ".benchmarks").to_dict("records")
    assert timing["compared_ratio"] > 0
    assert timing["implementation"].endswith(":right")
    assert timing["threads"] == 1
    assert timing["case"].startswith("multihead/B2.L16.S16")
