"""On a CUDA device: what conforms there, and that time and memory are taken, as what they say they are."""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from attnbench.analysis.clean_calls import is_throttled
from attnbench.analysis.stats import choose_measure, count_throttled_calls
from attnbench.cli import attnbench
from attnbench.measurement import device_memory_limit, memory
from attnbench.measurement.cuda_timing import DeviceTime
from attnbench.measurement.gpu_clocks import MISSING, Clocks
from attnbench.records.run_file import find_runs, read_run
from attnbench.records.types import SAMPLE_FIELDS, Result, Timing
from attnbench.workers.candidate_worker import run_for_outcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none here"),
]

ANYWHERE = (
    "torch_mha", "naive_loop", "per_head", "batched_matmul", "reshaped", "sdpa", "sdpa_math", "online_softmax",
    "varlen", "varlen_packed", "fused_projection", "compiled", "flex",
)  # fmt: skip


def _run(*words: str) -> int:
    """Exit code of a command."""
    outcome = CliRunner().invoke(attnbench, words, standalone_mode=False, catch_exceptions=False)
    return int(outcome.return_value)


@pytest.mark.parametrize("implementation", ANYWHERE)
def test_built_in_implementations_conform_on_cuda(implementation: str, tmp_path: Path) -> None:
    """An implementation that conforms on a CPU conforms on CUDA."""
    assert _run("conform", implementation, "--device", "cuda", "--results", str(tmp_path)) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "implementation", ["sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "flash_attn", "xformers", "xformers_splitk"]
)
def test_fused_kernels_conform_or_refuse_on_cuda(implementation: str, dtype: str, tmp_path: Path) -> None:
    """A fused kernel is right on every case that it takes; 3 says that it takes none."""
    assert _run("conform", implementation, "--device", "cuda", "--dtype", dtype, "--results", str(tmp_path)) in (0, 3)


PLUGIN = """
import torch
from attnbench.interface import Policies
from attnbench.kernel import from_kernel


def softmaxed(q, k, v, *, mask, scale):
    logits = (q * scale) @ k.transpose(-2, -1)
    if mask is not None:
        logits = logits + mask
    return torch.softmax(logits, -1) @ v


def looking(q, k, v, *, mask, scale):
    q.sum().item()
    return softmaxed(q, k, v, mask=mask, scale=scale)


def greedy(q, k, v, *, mask, scale):
    torch.empty(2**34, dtype=torch.uint8, device=q.device)
    return softmaxed(q, k, v, mask=mask, scale=scale)


GRAPHED = from_kernel(softmaxed, name="graphed", additive_mask=True, policies=Policies(capturable=True))
LOOKING = from_kernel(looking, name="looking", additive_mask=True)
GREEDY = from_kernel(greedy, name="greedy", additive_mask=True)
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File with a call that may be captured, one that waits for the device, and one that takes 16 GiB."""
    file = tmp_path_factory.mktemp("plugin") / "own.py"
    file.write_text(PLUGIN)
    return file


@pytest.fixture(scope="module")
def timed(plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Profile of the reference, of sdpa and of two of the plug-in's."""
    results = tmp_path_factory.mktemp("results")
    words = ("profile", "sdpa", f"{plugin}:GRAPHED", f"{plugin}:LOOKING", "--device", "cuda", "--lengths", "128,256")
    assert _run(*words, "--results", str(results), "--processes", "2") == 0
    found = read_run(find_runs(results, [])[0])
    assert found.problems == ()
    return [result for result in found.results if result.timing]


def timings(timed: list[Result]) -> list[tuple[Result, Timing]]:
    """Results with their timing."""
    return [(result, result.timing) for result in timed if result.timing]


def test_profile_on_cuda_has_time_and_memory(timed: list[Result]) -> None:
    """What conforms on CUDA gets samples in turns, and device memory: allocated, and taken from the device."""
    assert {result.implementation.rpartition(":")[2] for result in timed} == {
        "torch_mha", "sdpa", "GRAPHED", "LOOKING"
    }  # fmt: skip
    for result in timed:
        assert result.memory
        assert result.memory.method == "torch.cuda.max_memory_allocated"
        # Small tensors may find room in blocks that inputs have begun.
        assert result.memory.reserved_bytes is not None
        assert result.memory.peak_bytes > 0


def test_every_turn_has_both_times(timed: list[Result]) -> None:
    """And readings of the clock, where NVML is there; the device is never busier with a call than the call is long."""
    for _, timing in timings(timed):
        assert choose_measure(timing) == "device"
        turns = [len(process) for process in timing.samples_ns]
        assert [len(process) for process in timing.device_ns] == turns
        for name in SAMPLE_FIELDS:
            assert [len(process) for process in getattr(timing, name)] in ([], turns)
        assert (timing.clock == "NVML") is bool(timing.clock_before_mhz)
    for result, timing in timings(timed):
        if not result.implementation.endswith("LOOKING"):
            for device_ns, wall_ns in zip(timing.device_ns, timing.samples_ns, strict=True):
                # Cold, and yet no longer: a launch takes more than the memory of these sizes.
                assert statistics.median(device_ns) <= statistics.median(wall_ns)


def test_the_method_says_whether_the_launch_was_hidden(timed: list[Result]) -> None:
    """It is where nothing waits for the device, and not where something does; few calls are late."""
    for result, timing in timings(timed):
        if result.implementation.endswith("LOOKING"):
            assert "launch not hidden" in timing.method
            assert timing.late == ()
        else:
            assert "launch hidden" in timing.method
            late = [one for process in timing.late for one in process]
            assert sum(late) < len(late) / 10


def test_a_graph_is_timed_of_what_allows_it_without_gradients(timed: list[Result]) -> None:
    """The record says so; the graph is no slower than the call, by more than noise."""
    graphs = [(r.case.rpartition("/")[2], t) for r, t in timings(timed) if t.graph_ns]
    assert {mode for mode, _ in graphs} == {"inference"}
    for _, timing in graphs:
        assert "graph replay" in timing.method
        for graph_ns, device_ns in zip(timing.graph_ns, timing.device_ns, strict=True):
            assert statistics.median(graph_ns) < 1.1 * statistics.median(device_ns)
    assert all("graph" not in t.method for r, t in timings(timed) if not r.implementation.endswith("GRAPHED"))


def test_throttled_cycles_are_counted_for_all_alike(timed: list[Result]) -> None:
    """As many as the stored readings say, and the readings of a cycle are the same for whoever took part in it."""
    cycles: dict[tuple[str, int, int], tuple[int, ...]] = {}
    for result, timing in timings(timed):
        for one in (timing, timing.twin) if timing.twin else (timing,):
            columns = zip(one.cycles, one.clock_before_mhz, one.clock_after_mhz, one.throttle_reasons, strict=True)
            left_out = 0
            for process, turns in enumerate(columns):
                for cycle, *reading in zip(*turns, strict=True):
                    left_out += is_throttled(*reading)
                    assert cycles.setdefault((result.case, process, cycle), tuple(reading)) == tuple(reading)
            assert count_throttled_calls(one) == left_out


def test_an_allocation_over_the_limit_is_out_of_memory(plugin: Path, tmp_path: Path) -> None:
    """Under --memory-limit, however much the device has."""
    words = ("conform", f"{plugin}:GREEDY", "--device", "cuda", "--case", "*/eval", "--check", "forward_parity")
    assert _run(*words, "--memory-limit", "4GiB", "--results", str(tmp_path)) == 1
    findings = [f for result in read_run(find_runs(tmp_path, [])[0]).results for f in result.findings]
    assert {f.status for f in findings} - {"unsupported", "not_run"} == {"out_of_memory"}


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """Limits the device's memory for one test."""
    yield device_memory_limit.set_memory_limit
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_limit_holds_in_the_process_that_set_it(limit: Callable[[int], None]) -> None:
    """What is below it can be had, and what is above it is refused in words that are told as such."""
    limit(2**30)
    torch.empty(2**28, dtype=torch.uint8, device="cuda")

    def act() -> dict[str, str]:
        torch.empty(2**31, dtype=torch.uint8, device="cuda")
        return {}

    assert run_for_outcome(act)["status"] == "out_of_memory"


def test_peaks_on_a_device_are_those_of_its_allocator() -> None:
    """Two tensors at once, of which one is returned: allocated to the allocator's 512 bytes, taken in its blocks."""

    def call() -> torch.Tensor:
        aside = torch.empty(3 * 2**20, dtype=torch.uint8, device="cuda")
        return torch.empty(5 * 2**20, dtype=torch.uint8, device="cuda").fill_(len(aside) % 2)

    assert memory.measure_peak_bytes(call, "cuda") == 8 * 2**20


def median_ns(device: DeviceTime, name: str, takes: int = 50) -> float:
    """Time of a call on the device."""
    return statistics.median(device.take_sample(name).device_ns for _ in range(takes))


def test_a_small_copy_is_slower_from_a_cold_cache() -> None:
    """A tensor of an eighth of the cache is read from memory after a flush, and from the cache without one."""
    cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    source = torch.randn(cache_bytes // 32, device="cuda")
    result = torch.empty_like(source)
    device = DeviceTime({"copy": lambda: result.copy_(source)})
    device.calibrate("copy")
    cold_ns = median_ns(device, "copy")
    device._flushed = torch.empty(1, dtype=torch.uint8, device="cuda")
    assert cold_ns > 1.05 * median_ns(device, "copy")


def test_a_hidden_launch_is_not_in_the_time_of_a_call() -> None:
    """Twenty small kernels take the device less time than the host takes to launch them."""
    tensor = torch.zeros(1024, device="cuda")

    def call() -> None:
        for _ in range(20):
            tensor.add_(1)

    device = DeviceTime({"call": call})
    call()
    device.calibrate("call")
    assert "launch hidden" in device.describe_method("call")
    hidden_ns = median_ns(device, "call")
    device._spins_ns["call"] = 0
    assert hidden_ns < median_ns(device, "call")


def test_a_spin_that_is_too_short_is_noticed() -> None:
    """The device comes to the call before the host is done with it."""
    tensor = torch.zeros(1024, device="cuda")

    def call() -> None:
        for _ in range(500):
            tensor.add_(1)

    device = DeviceTime({"call": call})
    call()
    device.calibrate("call")
    assert device.take_sample("call").late is False
    device._spins_ns["call"] = 1_000
    assert device.take_sample("call").late is True


def test_a_call_that_waits_for_the_device_has_no_launch_to_hide() -> None:
    """Its time has the launch in it, and the method says so."""
    tensor = torch.ones(1024, device="cuda")
    device = DeviceTime({"call": lambda: tensor.sum().item()})
    device.calibrate("call")
    assert "launch not hidden" in device.describe_method("call")
    assert device.take_sample("call").late is None


def test_a_replay_gives_what_the_call_gives_on_new_values() -> None:
    """Values are written into the same tensors; a graph reads them as the call does."""
    tensor = torch.randn(256, 256, device="cuda")
    device = DeviceTime({"call": lambda: (torch.softmax(tensor @ tensor, -1), None)}, capturable={"call"})
    device.calibrate("call")
    tensor.copy_(torch.randn(256, 256, device="cuda"))
    assert device.replay_matches("call")
    assert device.take_sample("call").graph_ns is not None


def test_a_graph_that_gives_something_else_is_left_out() -> None:
    """Here because each call, and each replay, counts on."""
    tensor = torch.zeros(16, device="cuda")
    device = DeviceTime({"call": lambda: tensor.add_(1).clone()}, capturable={"call"})
    device.calibrate("call")
    assert not device.replay_matches("call")
    assert device.take_sample("call").graph_ns is None
    assert "no graph (its replay gives other bits than the call)" in device.describe_method("call")


def test_what_cannot_be_captured_is_timed_without_a_graph() -> None:
    """The reason is told, and the process goes on."""
    tensor = torch.ones(16, device="cuda")
    device = DeviceTime({"call": lambda: tensor * tensor.sum().item()}, capturable={"call"})
    device.calibrate("call")
    assert "no graph (" in device.describe_method("call")
    taken = device.take_sample("call")
    assert (taken.graph_ns, taken.device_ns > 0) == (None, True)


def test_the_clock_of_the_device_is_read_where_nvml_is() -> None:
    """By the UUID that torch knows it under; without the package the source says what to install."""
    found = Clocks(str(torch.cuda.get_device_properties(0).uuid))
    reading = found.read()
    if found.source == MISSING:
        assert reading is None
    else:
        assert found.source == "NVML"
        assert reading is not None
        assert reading.sm_mhz > 0
