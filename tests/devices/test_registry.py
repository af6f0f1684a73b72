"""Tests of the registered devices, and of a second device that one file emulates."""

from pathlib import Path

import pytest

from attnbench.cases import CaseId
from attnbench.devices import find_device, get_device, list_device_names, list_devices
from attnbench.records.run_file import find_runs, read_run
from attnbench.records.types import Run
from commands import run_new_process

# Numbers of the emulated device.
MEMORY_BYTES, CLOCK_MHZ = (12_345, 54_321), 1_234


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return folders from which Python imports the emulated device, and finds its entry point."""
    info = tmp_path_factory.mktemp("path") / "emulated-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: emulated\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[attnbench.devices]\nemulated = emulated:EMULATED\nbroken = absent:IT\n")
    return [info.parent, Path(__file__).parent]


def test_names_are_listed_without_importing_devices() -> None:
    """The devices of attnbench are registered; ``mps`` and ``xpu`` are marked as never run."""
    assert list_device_names() == ("cpu", "cuda", "mps", "xpu")
    assert {device.name for device in list_devices() if not device.was_run} == {"mps", "xpu"}
    assert [get_device(name).name for name in list_device_names()] == [*list_device_names()]


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    """The message names what is available; ``find_device`` returns None."""
    with pytest.raises(ValueError, match=r"unknown device 'tpu'; available: cpu, cuda, mps, xpu"):
        get_device("tpu")
    assert find_device("tpu") is None


@pytest.mark.extended
def test_a_broken_device_affects_only_the_runs_that_name_it(search: list[Path], tmp_path: Path) -> None:
    """``broken`` is registered beside ``emulated``, but cannot be imported."""
    done = run_new_process("conform", "torch_mha", "--device", "broken", cwd=tmp_path, search=search)
    assert done.returncode == 2
    assert "cannot import the device 'broken'" in done.stderr
    assert "Traceback" not in done.stderr


def run_on_device(search: list[Path], folder: Path, *words: str) -> Run:
    """Run a command on the emulated device, and return the stored run."""
    done = run_new_process(*words, "--device", "emulated", "--results", "results", cwd=folder, search=search)
    assert done.returncode == 0, done.stderr
    return read_run(find_runs(folder / "results", [])[0])


def test_conform_works_on_a_second_device(search: list[Path], tmp_path: Path) -> None:
    """Cases get the name of the device, the reference passes, and the machine has the model of the device."""
    words = ("--case", "*/autocast", "--case", "*/mask=pad/*/train")
    run = run_on_device(search, tmp_path, "conform", "torch_mha", *words)
    assert {CaseId.parse(result.case).device for result in run.results} == {"emulated"}
    assert {finding.status for result in run.results for finding in result.findings} <= {"passed", "unsupported"}
    assert (run.run.machine.gpu, run.run.machine.driver) == ("Emulated 1", "1.0")


@pytest.mark.extended
def test_profile_takes_time_memory_and_clock_from_a_second_device(search: list[Path], tmp_path: Path) -> None:
    """The timer, the clock, the counter of memory and the sizes of the ceilings are those of the device."""
    words = ("--lengths", "64", "--passes", "forward", "--processes", "2", "--case-budget", "0.2")
    run = run_on_device(search, tmp_path, "profile", "torch_mha", *words)
    (result,) = run.results
    assert result.timing is not None
    assert result.memory is not None
    assert result.timing.clock == "emulated"
    assert result.timing.method == "device (emulated, torch_mha) and end-to-end wall"
    assert {mhz for process in result.timing.clock_before_mhz for mhz in process} == {CLOCK_MHZ}
    assert (result.memory.peak_bytes, result.memory.reserved_bytes) == MEMORY_BYTES
    assert result.memory.method == "emulated counter"
    assert {ceiling.device for ceiling in run.ceilings} == {"emulated"}
