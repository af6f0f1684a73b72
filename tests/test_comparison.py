"""What changed between two runs, told from stored results alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from attnbench.analysis.run_diff import Change, compare_implementations, compare_runs, count_kernel_calls
from attnbench.cli import attnbench
from attnbench.records.run_file import RunFile, StoredRun
from attnbench.records.types import Finding, Machine, Memory, Result, Run, Timing

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
    (change,) = [c for c in compare_runs(base, new, threshold=0.05) if (c.implementation, c.aspect) == ("mine", aspect)]
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


def counted(**numbers: Any) -> Result:
    """A result with these exact numbers, others in the place of its own."""
    one = result("mine")
    assert one.memory is not None
    memory = {name: number for name, number in numbers.items() if name.endswith("_bytes")}
    others = {name: number for name, number in numbers.items() if name not in memory}
    return replace(one, memory=replace(one.memory, **memory), **others)


@pytest.mark.parametrize("aspect", ["peak_bytes", "saved_bytes", "workspace_bytes", "flop"])
@pytest.mark.parametrize(("more", "verdict"), [(1, "bigger"), (-1, "smaller"), (0, "same")])
def test_one_more_is_a_change(aspect: str, more: int, verdict: str) -> None:
    """Bytes and flop are exact and compared as they are, however large."""
    large = 2**40
    base, new = counted(**{aspect: large}), counted(**{aspect: large + more})
    change = found(stored(base), stored(new), aspect)
    assert change.verdict == verdict
    assert change.told == f"{large} → {large + more} {'flop' if aspect == 'flop' else 'bytes'}"
    (change,) = [
        c
        for c in compare_implementations([base, replace(new, implementation="new")], base="mine", new="new")
        if c.aspect == aspect
    ]
    assert (change.implementation, change.verdict) == ("new", verdict)


@pytest.mark.parametrize(
    ("kernels", "verdict", "told"),
    [
        (("aten::bmm ×2", "aten::add"), "same", "3 → 3 calls"),
        (("aten::add", "aten::bmm ×3"), "bigger", "3 → 4 calls: aten::bmm 2 → 3"),
        (("aten::bmm ×2",), "smaller", "3 → 2 calls: aten::add 1 → 0"),
        (("aten::bmm", "aten::add", "f ×x"), "other", "3 → 3 calls: aten::bmm 2 → 1, f ×x 0 → 1"),
    ],
)
def test_one_more_call_of_a_kernel_is_a_change(kernels: tuple[str, ...], verdict: str, told: str) -> None:
    """Kernels are told by their number of calls, whatever their order; as many of others are others."""
    base = counted(kernels=("aten::add", "aten::bmm ×2"))
    change = found(stored(base), stored(counted(kernels=kernels)), "kernel_calls")
    assert (change.verdict, change.told) == (verdict, told)


def test_calls_are_read_from_the_names_of_kernels() -> None:
    """A stored name ends in the number of its calls, where there were several."""
    assert count_kernel_calls(("a ×12", "b", "c × 2", "a")) == {"a": 13, "b": 1, "c × 2": 1}


def test_a_failure_is_wrong_and_its_end_is_mended() -> None:
    """A finding that fails now and held before is wrong; the other way round it is mended."""
    good, bad = stored(result("mine")), stored(result("mine", finding=FAILED))
    assert found(good, bad, "forward_parity").verdict == "wrong"
    assert found(bad, good, "forward_parity").verdict == "mended"


def test_times_of_two_machines_are_not_compared() -> None:
    """Another machine's times and bytes say nothing of a change."""
    other = replace(RUN, machine=replace(MACHINE, name="other-cpu"))
    assert (
        list(compare_runs(stored(result("mine")), stored(result("mine", time_ns=9000), run=other), threshold=0.05))
        == []
    )


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


# Runs that say whether they were disturbed


def timing(*processes_ns: int, waited_ns: int = 0, twin: Timing | None = None) -> Timing:
    """Ten calls in each process, all alike, that waited so long for a core."""
    return Timing(
        samples_ns=tuple((time_ns,) * 10 for time_ns in processes_ns),
        waited_ns=tuple((waited_ns,) * 10 for _ in processes_ns),
        threads=1,
        twin=twin,
    )


@pytest.mark.parametrize(
    ("own", "twin", "verdict"),
    [
        (timing(*[1200] * 10), timing(*[1000] * 10), "slower"),
        (timing(*[1200] * 10, waited_ns=100), timing(*[1000] * 10), "inconclusive"),
        (timing(*[1200] * 10), timing(*[1100] * 10), "inconclusive"),
    ],
)
def test_a_run_that_was_disturbed_is_inconclusive(own: Timing, twin: Timing, verdict: str) -> None:
    """Where calls waited for a core, or the reference differs from itself, there is no verdict."""
    old, now = stored(result("mine")), stored(replace(result("mine"), timing=own))
    reference = replace(now.results[0], timing=timing(*[1000] * 10, twin=twin))
    change = found(old, replace(now, results=(reference, *now.results[1:])), "time")
    assert change.verdict == verdict
    assert ("× the reference's time" in change.told) == (verdict == "slower")


# Two that took turns


def took_turns(base: Result, new: Result, aspect: str) -> Change:
    """Change of one aspect from ``mine`` to ``new``."""
    told = compare_implementations([base, replace(new, implementation="new")], base="mine", new="new")
    (change,) = [change for change in told if change.aspect == aspect]
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
def test_the_contest_is_the_judge(processes_ns: list[int], state: str) -> None:
    """A ratio stands beside the state of the contest, with the processes that count."""
    base = replace(result("mine"), timing=timing(*[1000] * 10, twin=timing(*[1000] * 10)))
    change = took_turns(base, replace(result("mine"), timing=timing(*processes_ns)), "time")
    assert change.verdict == state
    assert "× the base's time, 10 of 10 processes count" in change.told
    assert change.told.startswith(f"{sum(processes_ns) / 10_000:.3f} [")


def test_a_base_that_differs_from_itself_decides_nothing() -> None:
    """The null arm of a comparison is the base, once more."""
    base = replace(result("mine"), timing=timing(*[1000] * 10, twin=timing(*[1050] * 10)))
    change = took_turns(base, replace(result("mine"), timing=timing(*[1050] * 10)), "time")
    assert (change.verdict, change.told) == (
        "inconclusive",
        "1.050 [1.050, 1.050] × the base's time, 10 of 10 processes count: A/A control failed: the baseline "
        "differs from its copy by 5.0 %",
    )


def test_who_is_not_timed_has_its_verdict_too() -> None:
    """The new side is gone where the base took its turns; without a base nothing can be said."""
    timed = result("mine")
    untimed = replace(timed, timing=None, untimed="crashed: by itself")
    assert took_turns(timed, untimed, "time").verdict == "gone"
    assert took_turns(timed, untimed, "time").told == "new was not timed: crashed: by itself"
    for new, told in (
        (timed, "mine was not timed: crashed: by itself"),
        (untimed, "mine was not timed: crashed: by itself; new was not timed: crashed: by itself"),
    ):
        change = took_turns(untimed, new, "time")
        assert (change.verdict, change.told) == ("inconclusive", told)


def test_what_one_side_lacks_is_not_compared() -> None:
    """A case that only one of them has, and others that took turns as well, say nothing."""
    mine = result("mine")
    others = [mine, result("other"), replace(mine, implementation="new", case=CASE.replace("L8", "L9"))]
    assert list(compare_implementations(others, base="mine", new="new")) == []


def test_a_wrong_result_is_wrong_whatever_it_takes() -> None:
    """A check that the base holds and the new one fails."""
    assert took_turns(result("mine"), result("mine", finding=FAILED), "forward_parity").verdict == "wrong"
    assert took_turns(result("mine", finding=FAILED), result("mine"), "forward_parity").verdict == "mended"
