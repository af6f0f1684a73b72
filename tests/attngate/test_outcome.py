"""Tests of the rule of a gate: which outcome follows from what was measured."""

from dataclasses import replace

import msgspec
import pytest

from attnbench.analysis.run_diff import Change, Gone, Verdict, compare_implementations
from attnbench.analysis.speed_verdict import share_level
from attnbench.api.revisions import Version
from attnbench.records.types import Finding
from attnbench.refusals import OtherRefusal
from attngate.outcome import ALARMS, Outcome, Rule, conclude, find_lost, refine
from attngate.paired_results import is_unfit
from attngate.planning import GateJob, plan_effort
from attngate.texts import describe_outcome
from timed_runs import PASSED, case_of, time_calls

VERSIONS = (Version(name="main", commit="0123456789abcdef"), Version(name="the working tree"))


def judge(ratio: float, rule: Rule, *, processes: int = 20, level: float = 0.0002) -> list[Verdict]:
    """Return the verdicts of a gate on the time of a new side whose calls take ``ratio`` times those of the base."""
    base, new = time_calls("base", processes=processes), time_calls("new", ratio, processes=processes)
    found = compare_implementations([base, new], base="base", new="new", effect=rule.slower, level=level)
    return [one.verdict for one in refine(found, rule, frozenset()) if one.aspect == "time"]


@pytest.mark.parametrize(
    ("ratio", "slower", "verdict"),
    [(1.03, 0.02, "slower"), (1.015, 0.02, "same"), (1.03, 0.05, "same"), (0.9, 0.02, "faster")],
)
def test_a_slowdown_counts_from_its_threshold(ratio: float, slower: float, verdict: str) -> None:
    """A time is slower only if its whole interval is above the threshold."""
    assert judge(ratio, Rule(slower=slower)) == [verdict]


def test_few_processes_give_no_verdict_at_the_level_of_many_comparisons() -> None:
    """A level for many comparisons needs more processes than that of one."""
    assert judge(1.5, Rule(), processes=10) == ["unknown"]
    assert judge(1.5, Rule(), processes=10, level=0.011) == ["slower"]


def test_what_is_not_slower_is_no_gap() -> None:
    """A time whose interval is below the upper threshold alone is known not to be slower."""
    base = time_calls("base", processes=20)
    new = replace(time_calls("new", 0.9, 1.0, processes=20))
    found = list(compare_implementations([base, new], base="base", new="new", effect=0.02, level=0.0002))
    (time,) = (one for one in refine(found, Rule(), frozenset()) if one.aspect == "time")
    assert time.verdict == "not_slower"
    assert conclude_from([time.verdict]).outcome == "holds"


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [((1.011, 1.04), "slower"), ((1.005, 1.04), "unknown"), ((1.025, 1.012), "unknown"), ((1.015,), "not_slower")],
)
def test_a_slowdown_needs_an_estimate_and_an_interval(ratios: tuple[float, ...], verdict: str) -> None:
    """The estimate reaches the threshold, and the whole interval is above half of it."""
    effort, rule = plan_effort(GateJob(), Rule(), 8)
    base, new = time_calls("base", processes=21), time_calls("new", *ratios, ratios[-1], processes=21)
    found = compare_implementations([base, new], base="base", new="new", effect=effort.effect, level=effort.level)
    assert [one.verdict for one in refine(found, rule, frozenset()) if one.aspect == "time"] == [verdict]


@pytest.mark.parametrize(
    ("ratios", "is_open"),
    [((0.9, 1.0), False), ((1.0, 1.05), True), ((1.05,), False), ((1.0,), False), ((1.015,), False),
     ((1.012, 1.025), True)],
)  # fmt: skip
def test_processes_are_added_only_while_a_slowdown_is_possible(ratios: tuple[float, ...], *, is_open: bool) -> None:
    """A case stays open while its interval reaches from half the threshold, or less, to above the threshold."""
    effort, _ = plan_effort(GateJob(), Rule(), 8)
    timings = {name: time_calls(name, *own, processes=15).timing for name, own in (("base", ()), ("new", ratios))}
    known = {name: timing for name, timing in timings.items() if timing is not None}
    assert bool(effort.list_open(known, "base", verdicts=True)) is is_open


@pytest.mark.parametrize(("grown", "verdict"), [(0, "same"), (72, "tolerated"), (4095, "tolerated"), (4096, "bigger")])
def test_bytes_count_from_a_page(grown: int, verdict: str) -> None:
    """A growth below a page is tolerated."""
    base, new = time_calls("base"), time_calls("new")
    assert new.memory is not None
    new = replace(new, memory=replace(new.memory, peak_bytes=new.memory.peak_bytes + grown))
    found = refine(compare_implementations([base, new], base="base", new="new"), Rule(), frozenset())
    assert [one.verdict for one in found if one.aspect == "peak_bytes"] == [verdict]


def test_all_verdicts_share_the_false_alarms() -> None:
    """The levels of all comparisons and looks add up to the false alarms of a gate, and a verdict is possible."""
    for comparisons in (1, 8, 24):
        effort, rule = plan_effort(GateJob(), Rule(), comparisons)
        assert rule.level == pytest.approx(share_level(ALARMS, comparisons, rule.looks))
        assert rule.level * comparisons * effort.looks == pytest.approx(ALARMS)
        assert 2.0 ** -(effort.processes - 2) <= rule.level


def make_change(verdict: Verdict) -> Change:
    """Return a change with a verdict."""
    return Change(implementation="mine", case=case_of(), aspect="time", verdict=verdict, fact=Gone())


def conclude_from(verdicts: list[Verdict], rule: Rule | None = None, **settings: list[str]) -> Outcome:
    """Return the outcome that follows from changes with these verdicts."""
    changes = [make_change(verdict) for verdict in verdicts]
    return conclude(changes, rule or Rule(), versions=VERSIONS, implementations=["mine"], compared=1, **settings)


@pytest.mark.parametrize(
    ("verdicts", "rule", "outcome", "code"),
    [
        (["same", "faster", "smaller", "mended", "other", "tolerated", "not_slower"], Rule(), "holds", 0),
        (["same", "unknown"], Rule(), "undecided", 3),
        (["same", "inconclusive"], Rule(undecided="pass"), "undecided", 0),
        (["inconclusive", "wrong"], Rule(undecided="pass"), "worse", 1),
        (["gone"], Rule(fail_on=("wrong",)), "worse", 1),
        (["bigger", "slower"], Rule(fail_on=("wrong",)), "holds", 0),
    ],
)
def test_the_outcome_follows_from_the_verdicts(verdicts: list[Verdict], rule: Rule, outcome: str, code: int) -> None:
    """Worse before undecided, and undecided before holding; only what the rule names fails."""
    found = conclude_from(verdicts, rule)
    assert (found.outcome, found.exit_code) == (outcome, code)
    assert describe_outcome(found)


def test_what_only_one_side_registers_is_told() -> None:
    """It is no fault, and no silent gap."""
    found = msgspec.structs.replace(conclude_from(["same"]), added=("mine:attend",), removed=("mine:gone",))
    told = describe_outcome(found)
    assert "The base does not register mine:attend, so this is not compared" in told
    assert "Only the base registers mine:gone, so this is not compared" in told


def test_an_implementation_of_which_no_check_passed_is_undecided() -> None:
    """A gate without a passed check does not hold, whatever is said of times without a verdict."""
    assert conclude_from(["same"], Rule(undecided="pass"), unchecked=["mine"]).exit_code == 3


def test_a_check_that_does_not_run_any_more_is_lost() -> None:
    """A refusal of what passed is told; a refusal of what was refused is not."""
    refused = Finding(check="forward_parity", status="unsupported", facts=(OtherRefusal(text="no mask"),))
    passed, silent = replace(time_calls("mine"), timing=None, memory=None), replace(
        time_calls("mine"), timing=None, memory=None, findings=(refused,)
    )  # fmt: skip
    assert passed.findings == (PASSED,)
    assert [one.verdict for one in find_lost(passed, silent)] == ["gone"]
    assert [*find_lost(silent, silent), *find_lost(silent, passed)] == []


def test_a_missing_time_is_a_gap_unless_its_reason_is_told_elsewhere() -> None:
    """A fault of a timing process leaves a gate undecided; a failed or refused case, and a declaration, do not."""
    timed = time_calls("mine")
    lost, failed = replace(timed, timing=None), Finding(check="forward_parity", status="failed", reason="off")
    assert not is_unfit(lost, lost)
    assert not is_unfit(timed, lost)
    assert is_unfit(replace(lost, untimed=OtherRefusal(text="interpreted")), lost)
    wrong = replace(lost, memory=None, findings=(failed,))
    assert is_unfit(wrong, timed)
    assert is_unfit(timed, wrong)
