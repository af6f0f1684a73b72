"""What changed between two runs, told from stored results alone."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from attnbench.cli import attnbench
from attnbench.comparison import Change, changes
from attnbench.records import Finding, Machine, Memory, Result, Run, Timing
from attnbench.results import RunFile, StoredRun

CASE = "multihead/B1.L8.S8.E16.H2/bias+batch_first/mask=none/regime=plain/seed=0/float32/cpu/inference"
MACHINE = Machine(name="some-cpu", cpu="Some CPU", cores=2, memory_bytes=2**34)
RUN = Run(id="base", time="2026-01-01T00:00:00+00:00", command="", machine=MACHINE, versions={}, threads=1)
PASSED = Finding(check="forward_parity", status="passed")
FAILED = Finding(check="forward_parity", status="failed", reason="wrong")
# Ten processes; the interval of their ratios runs from the second to the ninth.
REFERENCE_NS = tuple((1000, 1000, 1000) for _ in range(10))


def result(name: str, *, time_ns: int = 1000, peak_bytes: int = 64, finding: Finding = PASSED) -> Result:
    """A result that took so long in each of ten processes."""
    timing = Timing(samples_ns=tuple((time_ns + i,) * 3 for i in range(10)), threads=1)
    memory = Memory(peak_bytes=peak_bytes, saved_bytes=None, threads=1, method="m")
    measured = finding.status == "passed"
    return Result(
        run="base",
        implementation=name,
        case=CASE,
        findings=(finding,),
        timing=timing if measured else None,
        memory=memory if measured else None,
    )


def stored(*results: Result, run: Run = RUN) -> StoredRun:
    """Run in which the reference takes 1000 ns beside these."""
    reference = replace(result("torch_mha"), timing=Timing(samples_ns=REFERENCE_NS, threads=1))
    return StoredRun(run=run, results=(reference, *results), path=Path("run.jsonl"))


def found(base: StoredRun, new: StoredRun, aspect: str) -> Change:
    """Change of one aspect of ``mine``."""
    (change,) = [c for c in changes(base, new, threshold=0.05) if (c.implementation, c.aspect) == ("mine", aspect)]
    return change


@pytest.mark.parametrize(("time_ns", "verdict"), [(1200, "slower"), (800, "faster"), (1000, "same"), (1050, "unknown")])
def test_time_is_judged_by_its_ratio_to_the_reference(time_ns: int, verdict: str) -> None:
    """Beyond the threshold it is slower or faster, well within it the same, and unknown where that cannot be told."""
    assert found(stored(result("mine")), stored(result("mine", time_ns=time_ns)), "time").verdict == verdict


def test_a_slower_machine_is_no_slower_implementation() -> None:
    """Where the reference takes twice as long too, nothing changed."""
    twice = stored(result("mine", time_ns=2000))
    reference = replace(twice.results[0], timing=Timing(samples_ns=tuple((2000,) * 3 for _ in range(10)), threads=1))
    assert (
        found(stored(result("mine")), replace(twice, results=(reference, *twice.results[1:])), "time").verdict == "same"
    )


@pytest.mark.parametrize(("peak_bytes", "verdict"), [(65, "bigger"), (63, "smaller"), (64, "same")])
def test_one_byte_is_a_change(peak_bytes: int, verdict: str) -> None:
    """Bytes are exact and compared as they are."""
    change = found(stored(result("mine")), stored(result("mine", peak_bytes=peak_bytes)), "peak_bytes")
    assert change.verdict == verdict
    assert change.told == f"64 → {peak_bytes} bytes"


def test_a_failure_is_wrong_and_its_end_is_mended() -> None:
    """A finding that fails now and held before is wrong; the other way round it is mended."""
    good, bad = stored(result("mine")), stored(result("mine", finding=FAILED))
    assert found(good, bad, "forward_parity").verdict == "wrong"
    assert found(bad, good, "forward_parity").verdict == "mended"


def test_times_of_two_machines_are_not_compared() -> None:
    """Another machine's times and bytes say nothing of a change."""
    other = replace(RUN, machine=replace(MACHINE, name="other-cpu"))
    assert list(changes(stored(result("mine")), stored(result("mine", time_ns=9000), run=other), threshold=0.05)) == []


@pytest.mark.parametrize(("peak_bytes", "code"), [(64, 0), (65, 1)])
def test_the_command_fails_where_something_became_worse(tmp_path: Path, peak_bytes: int, code: int) -> None:
    """Exit code 0 where nothing became worse, 1 where something did."""
    for name, new in (
        ("20260101-000000-aaaa", result("mine")),
        ("20260102-000000-bbbb", result("mine", peak_bytes=peak_bytes)),
    ):
        with RunFile.create(tmp_path, replace(RUN, id=name)) as file:
            for one in stored(new).results:
                file.append(replace(one, run=name))
    words = ["compare", "20260101-000000-aaaa", "20260102-000000-bbbb", "--results", str(tmp_path)]
    outcome = CliRunner().invoke(attnbench, words, standalone_mode=False, catch_exceptions=False)
    assert outcome.return_value == code
