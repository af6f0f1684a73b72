"""Tests of ``profile``: samples are interleaved, bytes are exact, and only correct implementations are timed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import (
    Crashed,
    ExcludedFromTiming,
    NotConforming,
    OverWorkLimit,
    ProcessChanged,
    Raised,
)
from attnbench.records.types import Result
from attnbench.records.value_facts import TimedCallChecked, ValuesOff
from attnbench.runner import Effort, Limits, NoProgress, Plan, Session, list_gating_checks, list_profile_cases, profile

pytestmark = pytest.mark.extended

LENGTHS = (8, 16)
PROCESSES = 2
BUDGET_S = 0.05

SOURCE = '''
import ctypes

import torch

from attnbench.interface import Implementation


class Own(Implementation):
    """The reference, with a function that acts on its result."""

    def __init__(self, change):
        self.change = change
        self.calls = 0
        self.kept = None

    def build(self, reference):
        return reference

    def prepare(self, module, case, inputs):
        return lambda **arguments: self.change(self, module(**arguments))


def allocate(self, result):
    torch.empty(1_000_000, dtype=torch.float32)
    return result


def add_one_at_16(self, result):
    output, weights = result
    return (output + 1 if output.shape[1] == 16 else output), weights


def is_late(self, result):
    self.calls += result[0].shape[1] == 16
    return self.calls > 20


def crash_late(self, result):
    return ctypes.string_at(0) if is_late(self, result) else result


def add_one_late(self, result):
    output, weights = result
    return (output + 1 if is_late(self, result) else output), weights


def cache_late(self, result):
    """From call 21 of this length on, return the result of call 20."""
    if is_late(self, result):
        return self.kept
    self.kept = result
    return result


def raise_late(self, result):
    if is_late(self, result):
        raise ArithmeticError("enough of it")
    return result


def use_float64_late(self, result):
    if is_late(self, result):
        torch.set_default_dtype(torch.float64)
    return result


ALLOCATES = Own(allocate)
WRONG_AT_16 = Own(add_one_at_16)
LATE = {
    "CRASHES": Own(crash_late), "WRONG": Own(add_one_late), "CACHES": Own(cache_late), "RAISES": Own(raise_late),
    "CHANGES": Own(use_float64_late),
}
globals().update(LATE)
'''
# For each implementation whose fault begins after 20 calls at length 16: the fact for which it is not timed there.
LATE: dict[str, type[Fact]] = {
    "CRASHES": Crashed,
    "RAISES": Raised,
    "CHANGES": ProcessChanged,
    "WRONG": NotConforming,
    "CACHES": NotConforming,
}


class CountingProgress(NoProgress):
    """Progress that counts, for each stage, the steps that were announced and the steps that were done."""

    def __init__(self) -> None:
        self.announced: dict[str, int] = {}
        self.made: dict[str, int] = {}
        self._stage = ""

    def begin(self, title: str, total: int, *, parallel: int = 1) -> None:
        """Record the number of announced steps of a new stage."""
        self._stage = title
        self.announced[title], self.made[title] = total, 0

    def done(self, label: str | None = None) -> None:
        """Count a step of the current stage as done."""
        self.made[self._stage] += 1


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Session whose work limit allows ``naive_loop`` at length 8, and not at length 16."""
    with Session(limits=Limits(work_s=0.005, threads=1)) as opened:
        yield opened


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a file that contains SOURCE."""
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(SOURCE)
    return str(file)


def plan_forward(session: Session) -> list[Plan]:
    """Plan the forward passes of multi-head attention at lengths 8 and 16."""
    return session.plan(list_profile_cases(session, LENGTHS, ["forward"], of=("multihead",)), list_gating_checks())


def run_profile(
    session: Session,
    names: Sequence[str],
    *,
    done: dict[tuple[str, str], Result] | None = None,
    processes: int = PROCESSES,
    budget_s: float = BUDGET_S,
) -> tuple[list[Result], CountingProgress]:
    """Run a profile at lengths 8 and 16, and return its results, in order, and its progress."""
    progress = CountingProgress()
    results = profile(
        session,
        names,
        plan_forward(session),
        run="r",
        progress=progress,
        effort=Effort(processes=processes, budget_s=budget_s),
        done=done,
    )
    return list(results), progress


def index_results(results: Sequence[Result]) -> dict[tuple[str, int], Result]:
    """Return the last result of each implementation and length; keys name the implementation without its file."""
    return {
        (result.implementation.rpartition(":")[2], int(result.case.split("/L")[0].split(".L")[1].split(".")[0])): result
        for result in results
    }


@pytest.fixture(scope="module")
def profiled(session: Session, own: str) -> tuple[list[Result], CountingProgress]:
    """Profile of two correct implementations, one that is wrong at length 16, and one that is too slow at length 16."""
    return run_profile(session, ["sdpa", f"{own}:ALLOCATES", f"{own}:WRONG_AT_16", "naive_loop"])


def test_samples_are_interleaved_in_the_same_processes(profiled: tuple[list[Result], CountingProgress]) -> None:
    """On each case, every timing process calls all implementations that are correct on the case, interleaved."""
    found = index_results(profiled[0])
    for name, others in (("sdpa", ("own.py:ALLOCATES",)), ("ALLOCATES", ("sdpa",))):
        timing = found[name, 16].timing
        assert timing is not None
        assert timing.interleaved_with == others
        assert timing.threads == 1
        assert len(timing.samples_ns) == PROCESSES
        assert all(len(process) >= 3 and min(process) > 0 for process in timing.samples_ns)
        assert [len(process) for process in timing.waited_ns] in (
            [len(process) for process in timing.samples_ns],
            [0] * PROCESSES,
        )
    assert found["sdpa", 8].timing is not None
    assert found["sdpa", 8].timing.interleaved_with == ("own.py:ALLOCATES", "own.py:WRONG_AT_16", "naive_loop")


def test_bytes_are_exact(profiled: tuple[list[Result], CountingProgress]) -> None:
    """A call that allocates a million numbers has a peak of 4,000,000 bytes above its output."""
    found = index_results(profiled[0])
    for length in LENGTHS:
        memory = found["ALLOCATES", length].memory
        assert memory is not None
        assert memory.peak_bytes == 4_000_000 + length * 256 * 4
        assert memory.saved_bytes is None


def test_no_speed_without_correctness(profiled: tuple[list[Result], CountingProgress]) -> None:
    """An implementation that is right at length 8 and wrong at 16 is timed at 8 only; ``untimed`` gives the reason."""
    found = index_results(profiled[0])
    right, wrong = found["WRONG_AT_16", 8], found["WRONG_AT_16", 16]
    assert right.timing is not None
    assert right.untimed is None
    assert wrong.timing is None
    assert wrong.memory is None
    assert wrong.untimed == NotConforming(check="forward_parity", status="failed")


def test_a_call_beyond_the_work_limit_is_untimed_with_the_prediction(
    profiled: tuple[list[Result], CountingProgress],
) -> None:
    """``naive_loop`` is timed at length 8 and not started at length 16, where its predicted time exceeds the limit."""
    found = index_results(profiled[0])
    assert found["naive_loop", 8].timing is not None
    slow = found["naive_loop", 16]
    assert slow.timing is None
    assert isinstance(slow.untimed, OverWorkLimit)
    assert (slow.untimed.predicted_s, slow.untimed.limit_s) == (pytest.approx(0.0154, rel=0.01), 0.005)
    assert {finding.status for finding in slow.findings} == {"not_run"}


def test_all_steps_that_are_announced_are_done(profiled: tuple[list[Result], CountingProgress]) -> None:
    """As many steps are done as were announced, so that a progress bar reaches its end."""
    assert profiled[1].announced == {"probe": 8, "time": 4}
    assert profiled[1].made == profiled[1].announced


def test_stored_results_are_not_repeated(
    session: Session, own: str, profiled: tuple[list[Result], CountingProgress]
) -> None:
    """A resumed profile repeats no stored checks and no stored timing.

    If the stored result has no timing, the implementation is only timed, and each of two processes gives a result.
    """
    names = ["sdpa", f"{own}:ALLOCATES"]
    stored = {(r.implementation, r.case): r for r in profiled[0]}
    assert run_profile(session, names, done=stored)[0] == []
    probed = {key: replace(result, timing=None) for key, result in stored.items()}
    results, progress = run_profile(session, names, done=probed)
    assert [r.implementation for r in results] == ["sdpa", "own.py:ALLOCATES"] * 4
    assert all(r.timing is not None and r.memory == stored[r.implementation, r.case].memory for r in results)
    assert progress.made == {"probe": 4, "time": 4}


@pytest.fixture(scope="module")
def late(session: Session, own: str) -> dict[tuple[str, int], Result]:
    """Profile of two correct implementations and of those in LATE, whose fault begins after 20 calls at length 16."""
    names = ["torch_mha", "sdpa", *(f"{own}:{name}" for name in LATE)]
    # The budget is enough for more than 20 calls of each implementation, also on a busy machine.
    results, _ = run_profile(session, names, processes=1, budget_s=20 * BUDGET_S)
    return index_results(results)


@pytest.mark.parametrize("name", LATE)
def test_an_implementation_with_a_late_fault_is_not_timed(late: dict[tuple[str, int], Result], name: str) -> None:
    """An implementation that crashes, raises, changes settings or becomes wrong while it is timed has no timing."""
    result = late[name, 16]
    assert result.timing is None
    untimed = result.untimed
    assert isinstance(untimed.fault if isinstance(untimed, ExcludedFromTiming) else untimed, LATE[name])
    assert late[name, 8].timing is not None


@pytest.mark.parametrize("name", ["WRONG", "CACHES"])
def test_a_wrong_output_after_timing_is_a_failure(late: dict[tuple[str, int], Result], name: str) -> None:
    """If an output was right in the probe and is wrong after timing, ``forward_parity`` fails."""
    (failed,) = [finding for finding in late[name, 16].findings if finding.status != "passed"]
    assert (failed.check, failed.status) == ("forward_parity", "failed")
    # A few of the 4096 elements may be right by chance: every call has random values of its own.
    off, checked = failed.facts[0], failed.facts[-1]
    assert isinstance(off, ValuesOff)
    assert 4000 <= off.count <= off.total == 4096
    assert isinstance(checked, TimedCallChecked)
    assert late[name, 16].memory is None
    assert {finding.status for finding in late[name, 8].findings} == {"passed"}


def test_the_others_are_timed_again_without_faulty_implementations(late: dict[tuple[str, int], Result]) -> None:
    """If a fault appears during timing, the correct implementations are timed again without the faulty one."""
    for length, others in ((8, {f"own.py:{name}" for name in LATE}), (16, set[str]())):
        for name, other in (("torch_mha", "sdpa"), ("sdpa", "torch_mha")):
            timing = late[name, length].timing
            assert timing is not None
            assert set(timing.interleaved_with) == {other} | others
            assert {finding.status for finding in late[name, length].findings} == {"passed"}


def test_the_baseline_has_an_a_a_control(late: dict[tuple[str, int], Result]) -> None:
    """The baseline has a copy, whose times are stored as ``twin``, to compare the baseline with itself (A/A control).

    In a cycle each implementation is called at most once, and only one of baseline and copy is called. No other
    implementation has a copy.
    """
    base, other = late["torch_mha", 8].timing, late["sdpa", 8].timing
    assert base is not None
    assert other is not None
    assert base.twin is not None
    for control, own, others in zip(base.twin.cycles, base.cycles, other.cycles, strict=True):
        assert not set(control) & set(own)
        assert set(others) <= set(control) | set(own)
    assert other.twin is None


def test_the_time_of_the_first_call_is_measured_separately(late: dict[tuple[str, int], Result]) -> None:
    """A timing has, for each process, the time to build the module and the time of the first call."""
    for name in ("torch_mha", "sdpa"):
        timing = late[name, 8].timing
        assert timing is not None
        assert len(timing.build_ns) == len(timing.first_call_ns) == 1
        assert min(timing.build_ns + timing.first_call_ns) > 0
