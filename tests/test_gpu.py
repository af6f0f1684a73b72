"""Tests on a CUDA device: implementations conform; time and memory are measured as the recorded methods say."""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from attnbench.analysis.clean_calls import is_throttled
from attnbench.analysis.stats import choose_measure, count_throttled_calls
from attnbench.cli import attnbench
from attnbench.devices.cuda import CUDA
from attnbench.devices.cuda_timing import CudaTimer
from attnbench.devices.gpu_clocks import MISSING, Clocks
from attnbench.interface import Inputs
from attnbench.measurement import memory
from attnbench.records.run_file import find_runs, read_run
from attnbench.records.types import SAMPLE_FIELDS, Result, Timing
from attnbench.workers.fresh_values import FreshValues
from attnbench.workers.outcomes import run_for_outcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none here"),
]

ANYWHERE = (
    "torch_mha", "naive_loop", "per_head", "batched_matmul", "reshaped", "sdpa", "sdpa_math", "online_softmax",
    "varlen", "varlen_packed", "fused_projection", "compiled", "flex",
)  # fmt: skip


def _run(*words: str) -> int:
    """Run a command and return its exit code."""
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
    """A fused kernel passes on every case that it supports; exit code 3 means that it supports none."""
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
    """File with the implementations GRAPHED, LOOKING and GREEDY.

    GRAPHED may be captured in a CUDA graph, LOOKING waits for the device, and GREEDY allocates 16 GiB.
    """
    file = tmp_path_factory.mktemp("plugin") / "own.py"
    file.write_text(PLUGIN)
    return file


@pytest.fixture(scope="module")
def timed(plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Results of a profile of the reference, of sdpa, and of GRAPHED and LOOKING from the plug-in."""
    results = tmp_path_factory.mktemp("results")
    words = ("profile", "sdpa", f"{plugin}:GRAPHED", f"{plugin}:LOOKING", "--device", "cuda", "--lengths", "128,256")
    assert _run(*words, "--results", str(results), "--processes", "2") == 0
    found = read_run(find_runs(results, [])[0])
    assert found.problems == ()
    return [result for result in found.results if result.timing]


def list_timings(timed: list[Result]) -> list[tuple[Result, Timing]]:
    """List pairs of a timed result and its timing."""
    return [(result, result.timing) for result in timed if result.timing]


def test_profile_on_cuda_has_time_and_memory(timed: list[Result]) -> None:
    """Each implementation is timed, and has a peak of allocated device memory and a number of reserved bytes."""
    assert {result.implementation.rpartition(":")[2] for result in timed} == {
        "torch_mha", "sdpa", "GRAPHED", "LOOKING"
    }  # fmt: skip
    for result in timed:
        assert result.memory
        assert result.memory.method == "torch.cuda.max_memory_allocated"
        # Small tensors may fit into blocks that the inputs reserved, so reserved bytes may be 0.
        assert result.memory.reserved_bytes is not None
        assert result.memory.peak_bytes > 0


def test_every_sample_has_device_and_wall_time(timed: list[Result]) -> None:
    """The device time of a call is at most its wall time; a sample has clock readings if NVML is available."""
    for _, timing in list_timings(timed):
        assert choose_measure(timing) == "device"
        samples = [len(process) for process in timing.samples_ns]
        assert [len(process) for process in timing.device_ns] == samples
        for name in SAMPLE_FIELDS:
            assert [len(process) for process in getattr(timing, name)] in ([], samples)
        assert (timing.clock == "NVML") is bool(timing.clock_before_mhz)
    for result, timing in list_timings(timed):
        if not result.implementation.endswith("LOOKING"):
            for device_ns, wall_ns in zip(timing.device_ns, timing.samples_ns, strict=True):
                # This also holds if the cache was flushed: at these sizes a launch takes longer than
                # reading the inputs from memory.
                assert statistics.median(device_ns) <= statistics.median(wall_ns)


def test_the_method_says_whether_the_launch_was_hidden(timed: list[Result]) -> None:
    """The launch is hidden unless the call waits for the device; fewer than 10 % of the samples are late."""
    for result, timing in list_timings(timed):
        if result.implementation.endswith("LOOKING"):
            assert "launch not hidden" in timing.method
            assert timing.late == ()
        else:
            assert "launch hidden" in timing.method
            late = [flag for process in timing.late for flag in process]
            assert sum(late) < len(late) / 10


def test_a_graph_is_timed_for_capturable_calls_without_gradients(timed: list[Result]) -> None:
    """The method mentions the graph; up to noise, a replay of the graph is not slower than the call."""
    graphs = [(r.case.rpartition("/")[2], t) for r, t in list_timings(timed) if t.graph_ns]
    assert {mode for mode, _ in graphs} == {"inference"}
    for _, timing in graphs:
        assert "graph replay" in timing.method
        for graph_ns, device_ns in zip(timing.graph_ns, timing.device_ns, strict=True):
            assert statistics.median(graph_ns) < 1.1 * statistics.median(device_ns)
    assert all("graph" not in t.method for r, t in list_timings(timed) if not r.implementation.endswith("GRAPHED"))


def test_throttled_cycles_are_counted_for_all_implementations(timed: list[Result]) -> None:
    """The count of throttled calls equals a count from the stored clock readings.

    In a cycle each implementation is called at most once; all calls of one cycle have equal readings.
    """
    cycles: dict[tuple[str, int, int], tuple[int, ...]] = {}
    for result, timing in list_timings(timed):
        for one in (timing, timing.twin) if timing.twin else (timing,):
            columns = zip(one.cycles, one.clock_before_mhz, one.clock_after_mhz, one.throttle_reasons, strict=True)
            left_out = 0
            for process, samples in enumerate(columns):
                for cycle, *reading in zip(*samples, strict=True):
                    left_out += is_throttled(*reading)
                    assert cycles.setdefault((result.case, process, cycle), tuple(reading)) == tuple(reading)
            assert count_throttled_calls(one) == left_out


def test_an_allocation_over_the_limit_is_out_of_memory(plugin: Path, tmp_path: Path) -> None:
    """An allocation above --memory-limit fails even if the device has more memory."""
    words = ("conform", f"{plugin}:GREEDY", "--device", "cuda", "--case", "*/eval", "--check", "forward_parity")
    assert _run(*words, "--memory-limit", "4GiB", "--results", str(tmp_path)) == 1
    findings = [f for result in read_run(find_runs(tmp_path, [])[0]).results for f in result.findings]
    assert {f.status for f in findings} - {"unsupported", "not_run"} == {"out_of_memory"}


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """Give the function that limits the device's memory, and remove the limit after the test."""
    yield CUDA.limit_memory
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_limit_holds_in_the_process_that_set_it(limit: Callable[[int], None]) -> None:
    """An allocation below the limit succeeds, and one above it has the status ``out_of_memory``."""
    limit(2**30)
    torch.empty(2**28, dtype=torch.uint8, device="cuda")

    def act() -> dict[str, str]:
        torch.empty(2**31, dtype=torch.uint8, device="cuda")
        return {}

    assert run_for_outcome(act).status == "out_of_memory"


def test_peaks_on_a_device_are_those_of_its_allocator() -> None:
    """If two tensors exist at the same time, the peak is the sum of their bytes, although only one is returned."""

    def call() -> torch.Tensor:
        aside = torch.empty(3 * 2**20, dtype=torch.uint8, device="cuda")
        return torch.empty(5 * 2**20, dtype=torch.uint8, device="cuda").fill_(len(aside) % 2)

    assert memory.measure_peak_bytes(call, "cuda") == 8 * 2**20


def test_new_values_are_written_before_a_call_is_timed() -> None:
    """No work is left on the device when the values of the next call have been written."""
    inputs = Inputs(parameters={}, tensors={"query": torch.randn(1, 2**14, 1024, device="cuda")})
    values = FreshValues(inputs, None, CUDA)
    values.write(values.draw(), inputs)
    assert torch.cuda.current_stream().query()


def median_ns(device: CudaTimer, name: str, takes: int = 50) -> float:
    """Return the median device time of a call, in nanoseconds."""
    return statistics.median(device.take_sample(name).device_ns for _ in range(takes))


def test_a_small_copy_is_slower_from_a_cold_cache() -> None:
    """A tensor of an eighth of the cache's size is read from memory after a cache flush, else from the cache."""
    cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    source = torch.randn(cache_bytes // 32, device="cuda")
    result = torch.empty_like(source)
    device = CudaTimer({"copy": lambda: result.copy_(source)})
    device.calibrate("copy")
    cold_ns = median_ns(device, "copy")
    device._flushed = torch.empty(1, dtype=torch.uint8, device="cuda")
    assert cold_ns > 1.05 * median_ns(device, "copy")


def test_a_hidden_launch_is_not_in_the_time_of_a_call() -> None:
    """Twenty small kernels take longer with a launch that is not hidden, because the host is slower than the device."""
    tensor = torch.zeros(1024, device="cuda")

    def call() -> None:
        for _ in range(20):
            tensor.add_(1)

    device = CudaTimer({"call": call})
    call()
    device.calibrate("call")
    assert "launch hidden" in device.describe_method("call")
    hidden_ns = median_ns(device, "call")
    device._spins_ns["call"] = 0
    assert hidden_ns < median_ns(device, "call")


def test_a_spin_that_is_too_short_makes_a_sample_late() -> None:
    """A sample is late if the device reaches the call before the host has enqueued all kernels of the call."""
    tensor = torch.zeros(1024, device="cuda")

    def call() -> None:
        for _ in range(500):
            tensor.add_(1)

    device = CudaTimer({"call": call})
    call()
    device.calibrate("call")
    assert device.take_sample("call").late is False
    device._spins_ns["call"] = 1_000
    assert device.take_sample("call").late is True


def test_the_launch_of_a_call_that_waits_for_the_device_is_not_hidden() -> None:
    """The time of a call that waits for the device includes the launch, and the method says so."""
    tensor = torch.ones(1024, device="cuda")
    device = CudaTimer({"call": lambda: tensor.sum().item()})
    device.calibrate("call")
    assert "launch not hidden" in device.describe_method("call")
    assert device.take_sample("call").late is None


def test_a_replay_matches_the_call_on_new_values() -> None:
    """After new values are written into the input tensors, a replay of the graph and the call give equal results."""
    tensor = torch.randn(256, 256, device="cuda")
    device = CudaTimer({"call": lambda: (torch.softmax(tensor @ tensor, -1), None)}, capturable={"call"})
    device.calibrate("call")
    tensor.copy_(torch.randn(256, 256, device="cuda"))
    assert device.replay_matches("call")
    assert device.take_sample("call").graph_ns is not None


def test_a_graph_whose_replay_differs_is_discarded() -> None:
    """No graph is timed if a replay gives another result than the call: here each call and each replay adds 1."""
    tensor = torch.zeros(16, device="cuda")
    device = CudaTimer({"call": lambda: tensor.add_(1).clone()}, capturable={"call"})
    device.calibrate("call")
    assert not device.replay_matches("call")
    assert device.take_sample("call").graph_ns is None
    assert "no graph (the output of its replay differs in bits from the output of the call)" in device.describe_method(
        "call"
    )


def test_a_call_that_cannot_be_captured_is_timed_without_a_graph() -> None:
    """A call that cannot be captured has device times but no graph times, and the method gives the reason."""
    tensor = torch.ones(16, device="cuda")
    device = CudaTimer({"call": lambda: tensor * tensor.sum().item()}, capturable={"call"})
    device.calibrate("call")
    assert "no graph (" in device.describe_method("call")
    sample = device.take_sample("call")
    assert (sample.graph_ns, sample.device_ns > 0) == (None, True)


def test_the_clock_of_the_device_is_read_by_nvml() -> None:
    """NVML finds the device by torch's UUID; without nvidia-ml-py, ``source`` says what to install."""
    found = Clocks(str(torch.cuda.get_device_properties(0).uuid))
    reading = found.read()
    if found.source == MISSING:
        assert reading is None
    else:
        assert found.source == "NVML"
        assert reading is not None
        assert reading.sm_mhz > 0
