"""Tests of changes between two runs, or between two implementations of one run, from stored results."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from attnbench.analysis.run_diff import (
    Change,
    ComparedRatios,
    ComparedTimes,
    Counted,
    NotTimed,
    OtherCalls,
    UnusableRatios,
    compare_implementations,
    compare_runs,
    count_kernel_calls,
)
from attnbench.cli import attnbench
from attnbench.records.run_file import RunFile, StoredRun
from attnbench.records.types import Finding, Machine, Memory, Result, Run, Timing, find_pass

CASE = "multihead/B1.L8.S8.E16.H2/bias+batch_first/mask=none/regime=plain/seed=0/float32/cpu/inference"
MACHINE = Machine(name="some-cpu", cpu="Some CPU", cores=2, memory_bytes=2**34)
RUN = Run(id="base", time="2026-01-01T00:00:00+00:00", command="", machine=MACHINE, versions={}, threads=1)
PASSED = Finding(check="forward_parity", status="passed")
FAILED = Finding(check="forward_parity", status="failed", reason="wrong")
# Times of the reference in ten processes, three calls in each.
REFERENCE_NS = tuple((1000, 1000, 1000) for _ in range(10))


def make_result(name: str, *, time_ns: int = 1000, peak_bytes: int = 64, finding: Finding = PASSED) -> Result:
    """Make a result that takes ``time_ns`` in each of ten processes."""
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


def make_run(*results: Result, run: Run = RUN) -> StoredRun:
    """Make a run with these results, and with the reference, which takes 1000 ns."""
    reference = replace(make_result("torch_mha"), timing=Timing(samples_ns=REFERENCE_NS, threads=1))
    return StoredRun(run=run, results=(reference, *results), path=Path("run.jsonl"))


def find_change(base: StoredRun, new: StoredRun, aspect: str) -> Change:
    """Return the change of one aspect of the implementation ``mine``."""
    (change,) = [c for c in compare_runs(base, new, threshold=0.05) if (c.implementation, c.aspect) == ("mine", aspect)]
    return change


@pytest.mark.parametrize(("time_ns", "verdict"), [(1200, "slower"), (800, "faster"), (1000, "same"), (1050, "unknown")])
def test_time_is_compared_by_its_ratio_to_the_reference(time_ns: int, verdict: str) -> None:
    """Beyond the threshold, time is slower or faster; well within the threshold, same; near the threshold, unknown."""
    assert (
        find_change(make_run(make_result("mine")), make_run(make_result("mine", time_ns=time_ns)), "time").verdict
        == verdict
    )


def test_times_on_other_values_are_not_compared() -> None:
    """If only the calls of the new run had input values of their own, the verdict on time is inconclusive."""
    now = make_result("mine", time_ns=1200)
    assert now.timing is not None
    fresh = replace(now, timing=replace(now.timing, values="fresh"))
    change = find_change(make_run(make_result("mine")), make_run(fresh), "time")
    assert change.verdict == "inconclusive"
    assert change.fact == OtherCalls(kind="values")


def test_forward_times_with_frozen_parameters_are_compared_only_with_each_other() -> None:
    """Without gradients, torch computes some calls in another way if parameters are frozen."""
    now = make_result("mine", time_ns=1200)
    assert now.timing is not None
    trainable = replace(now, timing=replace(now.timing, trainable=True))
    change = find_change(make_run(make_result("mine")), make_run(trainable), "time")
    assert find_pass(now.case) == "forward"
    assert (change.verdict, change.fact) == ("inconclusive", OtherCalls(kind="parameters"))


def test_a_slower_machine_does_not_make_an_implementation_slower() -> None:
    """If both the implementation and the reference take twice as long, the verdict is same."""
    twice = make_run(make_result("mine", time_ns=2000))
    reference = replace(twice.results[0], timing=Timing(samples_ns=tuple((2000,) * 3 for _ in range(10)), threads=1))
    assert (
        find_change(
            make_run(make_result("mine")), replace(twice, results=(reference, *twice.results[1:])), "time"
        ).verdict
        == "same"
    )


def make_counted(**numbers: Any) -> Result:
    """Make a result in which ``numbers`` (bytes, flop or kernels) replace the default numbers."""
    one = make_result("mine")
    assert one.memory is not None
    memory = {name: number for name, number in numbers.items() if name.endswith("_bytes")}
    others = {name: number for name, number in numbers.items() if name not in memory}
    return replace(one, memory=replace(one.memory, **memory), **others)


@pytest.mark.parametrize("aspect", ["peak_bytes", "saved_bytes", "workspace_bytes", "flop"])
@pytest.mark.parametrize(("more", "verdict"), [(1, "bigger"), (-1, "smaller"), (0, "same")])
def test_one_more_byte_or_flop_is_a_change(aspect: str, more: int, verdict: str) -> None:
    """Bytes and flop are compared exactly, however large they are."""
    large = 2**40
    base, new = make_counted(**{aspect: large}), make_counted(**{aspect: large + more})
    change = find_change(make_run(base), make_run(new), aspect)
    assert change.verdict == verdict
    assert change.fact == Counted(was=large, is_now=large + more)
    (change,) = [
        c
        for c in compare_implementations([base, replace(new, implementation="new")], base="mine", new="new")
        if c.aspect == aspect
    ]
    assert (change.implementation, change.verdict) == ("new", verdict)


@pytest.mark.parametrize(
    ("kernels", "verdict", "total", "different"),
    [
        (("aten::bmm ×2", "aten::add"), "same", 3, ()),
        (("aten::add", "aten::bmm ×3"), "bigger", 4, (("aten::bmm", 2, 3),)),
        (("aten::bmm ×2",), "smaller", 2, (("aten::add", 1, 0),)),
        (("aten::bmm", "aten::add", "f ×x"), "other", 3, (("aten::bmm", 2, 1), ("f ×x", 0, 1))),
    ],
)
def test_one_more_call_of_a_kernel_is_a_change(
    kernels: tuple[str, ...], verdict: str, total: int, different: tuple[tuple[str, int, int], ...]
) -> None:
    """Calls are counted per kernel, in any order. If only the total is equal, the verdict is ``other``."""
    base = make_counted(kernels=("aten::add", "aten::bmm ×2"))
    change = find_change(make_run(base), make_run(make_counted(kernels=kernels)), "kernel_calls")
    assert (change.verdict, change.fact) == (verdict, Counted(was=3, is_now=total, kernels=different))


def test_calls_are_read_from_the_names_of_kernels() -> None:
    """The stored name of a kernel that was called several times ends in the number of calls."""
    assert count_kernel_calls(("a ×12", "b", "c × 2", "a")) == {"a": 13, "b": 1, "c × 2": 1}


def test_a_new_failure_is_wrong_and_a_former_one_is_mended() -> None:
    """The verdict is ``wrong`` if a check passed before and fails now, and ``mended`` in the opposite case."""
    good, bad = make_run(make_result("mine")), make_run(make_result("mine", finding=FAILED))
    assert find_change(good, bad, "forward_parity").verdict == "wrong"
    assert find_change(bad, good, "forward_parity").verdict == "mended"


def test_times_of_two_machines_are_not_compared() -> None:
    """Times and bytes from two machines are not compared, so they show no change."""
    other = replace(RUN, machine=replace(MACHINE, name="other-cpu"))
    assert (
        list(
            compare_runs(
                make_run(make_result("mine")),
                make_run(make_result("mine", time_ns=9000), run=other),
                threshold=0.05,
            )
        )
        == []
    )


@pytest.mark.parametrize(("peak_bytes", "code"), [(64, 0), (65, 1)])
def test_the_command_fails_if_anything_became_worse(tmp_path: Path, peak_bytes: int, code: int) -> None:
    """The exit code is 1 if anything became worse, otherwise 0."""
    for name, new in (
        ("20260101-000000-aaaa", make_result("mine")),
        ("20260102-000000-bbbb", make_result("mine", peak_bytes=peak_bytes)),
    ):
        with RunFile.create(tmp_path, replace(RUN, id=name)) as file:
            for one in make_run(new).results:
                file.append(replace(one, run=name))
    words = ["compare", "20260101-000000-aaaa", "20260102-000000-bbbb", "--results", str(tmp_path)]
    outcome = CliRunner().invoke(attnbench, words, standalone_mode=False, catch_exceptions=False)
    assert outcome.return_value == code


# Runs that record how other work disturbed calls


def make_timing(*processes_ns: int, waited_ns: int = 0, copy: Timing | None = None) -> Timing:
    """Make a timing of ten equal calls in each process; each call waited ``waited_ns`` for a core."""
    return Timing(
        samples_ns=tuple((time_ns,) * 10 for time_ns in processes_ns),
        waited_ns=tuple((waited_ns,) * 10 for _ in processes_ns),
        threads=1,
        twin=copy,
    )


@pytest.mark.parametrize(
    ("own", "copy", "verdict"),
    [
        (make_timing(*[1200] * 10), make_timing(*[1000] * 10), "slower"),
        (make_timing(*[1200] * 10, waited_ns=100), make_timing(*[1000] * 10), "inconclusive"),
        (make_timing(*[1200] * 10), make_timing(*[1100] * 10), "inconclusive"),
    ],
)
def test_a_run_that_was_disturbed_is_inconclusive(own: Timing, copy: Timing, verdict: str) -> None:
    """There is no verdict if calls waited for a core, or if the reference differs from its copy."""
    old, now = make_run(make_result("mine")), make_run(replace(make_result("mine"), timing=own))
    reference = replace(now.results[0], timing=make_timing(*[1000] * 10, copy=copy))
    change = find_change(old, replace(now, results=(reference, *now.results[1:])), "time")
    assert change.verdict == verdict
    assert isinstance(change.fact, ComparedRatios if verdict == "slower" else UnusableRatios)


# Two implementations of one run, timed interleaved


def compare_aspect(base: Result, new: Result, aspect: str) -> Change:
    """Return the change of one aspect from the implementation ``mine`` to the implementation ``new``."""
    changes = compare_implementations([base, replace(new, implementation="new")], base="mine", new="new")
    (change,) = [change for change in changes if change.aspect == aspect]
    return change


@pytest.mark.parametrize(
    ("processes_ns", "state"),
    [
        ([1020] * 10, "slower"),
        ([980] * 10, "faster"),
        ([1001] * 10, "same"),
        ([1000] * 5 + [1020] * 5, "unknown"),
    ],
)
def test_the_speed_verdict_is_the_verdict_on_time(processes_ns: list[int], state: str) -> None:
    """The verdict on time is the state of the speed verdict, which the change keeps."""
    base = replace(make_result("mine"), timing=make_timing(*[1000] * 10, copy=make_timing(*[1000] * 10)))
    change = compare_aspect(base, replace(make_result("mine"), timing=make_timing(*processes_ns)), "time")
    assert change.verdict == state
    assert isinstance(change.fact, ComparedTimes)
    assert (change.fact.found.counted, change.fact.found.of) == (10, 10)
    assert change.fact.found.ratio is not None
    assert change.fact.found.ratio.value == pytest.approx(sum(processes_ns) / 10_000)


def test_a_failed_control_is_inconclusive() -> None:
    """The A/A control compares the base with its copy; if the two differ, the change of time is inconclusive."""
    base = replace(make_result("mine"), timing=make_timing(*[1000] * 10, copy=make_timing(*[1050] * 10)))
    change = compare_aspect(base, replace(make_result("mine"), timing=make_timing(*[1050] * 10)), "time")
    assert change.verdict == "inconclusive"
    assert isinstance(change.fact, ComparedTimes)
    assert change.fact.found.reason is not None
    assert change.fact.found.reason.cause == "control"


def test_an_untimed_implementation_has_a_verdict_too() -> None:
    """The verdict is ``gone`` if only the base was timed, and ``inconclusive`` if the base was not timed."""
    timed = make_result("mine")
    untimed = replace(timed, timing=None, untimed="crashed: by itself")
    assert compare_aspect(timed, untimed, "time").verdict == "gone"
    why = "crashed: by itself"
    assert compare_aspect(timed, untimed, "time").fact == NotTimed(missing=(("new", why),))
    for new, missing in ((timed, (("mine", why),)), (untimed, (("mine", why), ("new", why)))):
        change = compare_aspect(untimed, new, "time")
        assert (change.verdict, change.fact) == ("inconclusive", NotTimed(missing=missing))


def test_only_common_cases_are_compared() -> None:
    """Cases that only one of the two implementations has are left out, and so are all other implementations."""
    mine = make_result("mine")
    others = [mine, make_result("other"), replace(mine, implementation="new", case=CASE.replace("L8", "L9"))]
    assert list(compare_implementations(others, base="mine", new="new")) == []


def test_a_new_failure_is_wrong_whatever_its_time() -> None:
    """A check that passes for the base and fails for the new implementation is wrong."""
    assert compare_aspect(make_result("mine"), make_result("mine", finding=FAILED), "forward_parity").verdict == "wrong"
    assert (
        compare_aspect(make_result("mine", finding=FAILED), make_result("mine"), "forward_parity").verdict == "mended"
    )
