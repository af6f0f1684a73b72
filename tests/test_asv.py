"""Tests of the benchmarks for asv (airspeed velocity); all benchmarks read their numbers from one profile."""

import json
import math
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from asv_runner.benchmarks._base import get_setup_cache_key

from attnbench.analysis.stats import median_of_processes
from attnbench.asv import benchmarks
from timed_runs import REFERENCE, time_calls

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def suite() -> object:
    """Benchmarks of two implementations at one length."""
    return benchmarks(["reshaped", "naive_loop"], [8], processes=1, budget_s=0.05)()


@pytest.fixture(scope="module")
def cache(suite) -> dict:
    """The cache as asv stores it between processes."""
    return pickle.loads(pickle.dumps(suite.setup_cache()))


def test_parameters_are_implementation_length_and_pass(suite) -> None:
    """The reference is the first implementation, because ratios are relative to it."""
    assert suite.param_names == ["implementation", "length", "pass"]
    assert suite.params == [["torch_mha", "reshaped", "naive_loop"], [8], ["forward", "forward+backward"]]


@pytest.mark.parametrize("name", ["forward", "forward+backward"])
def test_numbers_are_those_of_the_profile(suite, cache, name: str) -> None:
    """Each benchmark returns one number of the profile: a time, a ratio or a peak; nothing is measured again."""
    result = cache["reshaped", 8, name, "", ""]
    time_ns = suite.track_time_ns(cache, "reshaped", 8, name)
    # Other work may disturb the times.
    assert math.isnan(time_ns) or time_ns == median_of_processes(result.timing.samples_ns).value
    assert suite.track_time_ratio(cache, "torch_mha", 8, name) == 1.0
    assert suite.track_peak_bytes(cache, "reshaped", 8, name) == result.memory.peak_bytes > 0
    assert suite.track_workspace_bytes(cache, "reshaped", 8, name) == result.memory.workspace_bytes
    assert suite.track_kernel_calls(cache, "reshaped", 8, name) > 0
    assert suite.track_flop(cache, "reshaped", 8, name) == result.flop > 0


def test_a_number_that_is_missing_is_nan(suite, cache) -> None:
    """A forward pass alone saves no bytes for a backward pass; this missing number is NaN, which asv shows as n/a."""
    assert math.isnan(suite.track_saved_bytes(cache, "reshaped", 8, "forward"))
    assert suite.track_saved_bytes(cache, "reshaped", 8, "forward+backward") > 0


def test_two_classes_have_two_caches() -> None:
    """Asv would measure only the first class of a repository, and give its numbers to the second one."""
    made = benchmarks(["reshaped"], [8])
    first, second = type("First", (made,), {}), type("Second", (made,), {})
    keys = [get_setup_cache_key(one().setup_cache) for one in (first, second)]
    assert len(set(keys)) == 2
    assert keys[0].partition(":")[0].endswith("First")


def test_dtype_and_mask_are_parameters_where_they_are_chosen(capfd: pytest.CaptureFixture[str]) -> None:
    """A mask that the operator does not have is n/a, with the reason."""
    suite = benchmarks(
        ["reshaped"], [8], dtypes=["float32", "bfloat16"], masks=["causal", "window"], processes=1, budget_s=0.02,
        intervals=True,
    )()  # fmt: skip
    assert suite.param_names == ["implementation", "length", "pass", "dtype", "mask"]
    cache = pickle.loads(pickle.dumps(suite.setup_cache()))
    sizes = [suite.track_peak_bytes(cache, "reshaped", 8, "forward", dtype, "causal") for dtype in suite.dtypes]
    # Where a processor has no instructions for bfloat16, torch converts, and needs more bytes than in float32.
    assert 0 < sizes[0] != sizes[1] > 0
    assert suite.track_time_ratio_low(cache, "torch_mha", 8, "forward", "float32", "causal") == 1.0
    assert math.isnan(suite.track_flop(cache, "reshaped", 8, "forward", "float32", "window"))
    assert "reshaped 8 forward float32 window: its operator has no such case" in capfd.readouterr().err


@pytest.mark.parametrize("disturbed", [False, True])
def test_times_that_other_work_disturbed_are_no_numbers(capfd: pytest.CaptureFixture[str], *, disturbed: bool) -> None:
    """They are n/a with the reason; counters stay."""
    suite = benchmarks(["mine"], [64], intervals=True)()
    call = 64, "forward"
    cache = {
        (one.implementation, *call, "", ""): one
        for one in (time_calls(REFERENCE, disturbed=disturbed), time_calls("mine", 1.5, disturbed=disturbed))
    }
    names = ("time_ns", "time_ratio", "time_ratio_low", "time_ratio_high")
    times = [getattr(suite, f"track_{name}")(cache, "mine", *call) for name in names]
    assert all(map(math.isnan, times)) == disturbed
    assert disturbed or times[1:] == [1.5, 1.5, 1.5]
    assert suite.track_peak_bytes(cache, "mine", *call) == 3 * 2**20
    assert ("other work disturbed 9 of 9 processes" in capfd.readouterr().err) == disturbed


def test_without_the_device_there_are_no_numbers_but_a_reason(capfd: pytest.CaptureFixture[str]) -> None:
    """On a device that this machine lacks, every number is NaN, and the reason goes to standard error."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")

    class OnCuda(benchmarks(["xformers"], [8], processes=1, budget_s=0.05)):
        device = "cuda"

    cache = OnCuda().setup_cache()
    for track in (OnCuda.track_time_ns, OnCuda.track_time_ratio, OnCuda.track_peak_bytes):
        assert math.isnan(track(OnCuda(), cache, "xformers", 8, "forward"))
    assert "CUDA" in capfd.readouterr().err


ROOT = Path(__file__).parents[1]


def test_the_stored_history_is_published_without_measuring(tmp_path: Path) -> None:
    """``asv publish`` makes the page of results/asv; a file cut in the middle and one of another project are named."""
    if not (ROOT / ".git").exists():
        pytest.skip("asv needs the history of a git checkout")
    stored, html = tmp_path / "asv", tmp_path / "html"
    shutil.copytree(ROOT / "results" / "asv", stored)
    whole = next(stored.glob("*/*-virtualenv-*.json"))
    foreign = json.loads(whole.read_text()) | {"commit_hash": "f" * 40}
    foreign["results"] = {"other.Suite.time_x": foreign["results"]["attention.Attention.track_time_ns"]}
    whole.with_name("ffffffff-virtualenv-py3.11.json").write_text(json.dumps(foreign))
    whole.with_name("eeeeeeee-virtualenv-py3.11.json").write_text(whole.read_text()[:1000])
    changed = (ROOT / "asv.conf.json").read_text()
    for old, new in (('"."', f'"{ROOT}"'), ('"results/asv"', f'"{stored}"'), ('"reports/asv"', f'"{html}"')):
        assert old in changed
        changed = changed.replace(old, new)
    (tmp_path / "asv.conf.json").write_text(changed)
    command = [sys.executable, "-m", "asv", "publish", "--config", str(tmp_path / "asv.conf.json")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "eeeeeeee" in done.stdout
    assert "ffffffff" in done.stdout
    page = json.loads((html / "index.json").read_text())
    assert {"attention.Attention.track_peak_bytes", "attention.Attention.track_time_ratio"} <= set(page["benchmarks"])
    assert "other.Suite.time_x" not in page["benchmarks"]
    assert (html / "index.html").exists()
    paths = html.glob("graphs/arch*/**/attention.Attention.track_peak_bytes.json")
    assert [len(json.loads(path.read_text())) >= 10 for path in paths] == [True], "a commit is a point of the graph"
