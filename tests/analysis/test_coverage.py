"""Lines about what was checked, and how many checked cases a verdict needs."""

from dataclasses import replace

import pytest

from attnbench.analysis.coverage import (
    FEWEST_CHECKED,
    count_cases,
    count_checked,
    judge_conformance,
)
from attnbench.analysis.summary import Conformance
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import DeclarationChanged, OverWorkLimit, Raised, TimedOut
from attnbench.records.types import FRONTIER, PERF, Completion, Finding, Result, Status
from attnbench.refusals import Interpreted, OtherRefusal
from attnbench.words.coverage import describe_asking, describe_completion, describe_few, list_coverage_lines
from attnbench.words.findings import describe_fact
from attnbench.words.summary import describe_conformance

MADE = Completion(
    run="r", implementation="a", suite="core", list_digest="d", listed=275, refused={"no": (1, 2)}, strength=2,
    combinations=1000, taken=318, covered_by_list=100, covered=318, cases=("x",) * 92,
    refused_when_called=0,
)  # fmt: skip


def make_result(status: Status, number: int, *, warnings: tuple[Fact, ...] = (), reason: str = "why") -> Result:
    """Return a result with one finding."""
    case = f"multihead/B1.L1.S1.E8.H1/-/mask=none/regime=plain/seed={number}/float32/cpu/eval"
    finding = Finding(check="x", status=status, reason=reason, warnings=warnings)
    return Result(run="r", implementation="a", case=case, findings=(finding,))


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (MADE, "takes 31 % of the reference's pairs; all of them covered, with 92 supplementary cases"),
        (
            replace(MADE, taken=1000, covered=10, cases=(), refused={}, refused_when_called=3),
            "takes all of the reference's pairs; 1 % of them covered; 3 cases were refused only when called",
        ),
        (replace(MADE, taken=0, covered=0, cases=()), "takes none of the reference's pairs: nothing was covered"),
        (
            replace(MADE, strength=0, listed=30, suite="quick", cases=("x",)),
            "refuses 2 of 30 cases of quick; 1 supplementary case of the pool added",
        ),
        (replace(MADE, refused={}, taken=1000, covered=1000, cases=()), ""),
        (replace(MADE, strength=0, cases=()), ""),
    ],
)
def test_a_completion_is_one_line(made: Completion, line: str) -> None:
    """The share that is taken, the share of it that was covered, and the number of supplementary cases."""
    assert describe_completion(made) == line


def test_fewer_than_20_checked_cases_are_no_verdict() -> None:
    """19 cases are too few and 20 are enough; refused cases and cases that were not run do not count."""
    passed = [make_result("passed", number) for number in range(FEWEST_CHECKED)]
    silent = [make_result("unsupported", 30), make_result("not_run", 31)]
    about = make_result("failed", 32, reason="declared unsupported (no), yet the call returned a wrong result")
    assert count_checked([*passed, *silent, about]) == FEWEST_CHECKED == 20
    assert count_checked([make_result("failed", 1), make_result("expected_failure", 2)]) == 2
    assert describe_few(20) == ""
    assert describe_few(19) == "only 19 cases were checked, and a verdict needs 20"
    assert describe_few(1) == "only 1 case was checked, and a verdict needs 20"
    assert describe_few(0) == "no case was checked, and a verdict needs 20"


def make_results(status: Status, numbers: range, suite: str, reason: str = "why") -> list[Result]:
    """Return a result of a suite with one finding for each number; equal numbers are the same case."""
    return [replace(make_result(status, number, reason=reason), suite=suite) for number in numbers]


QUICK = make_results("passed", range(24), "quick")


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (QUICK, ("yes", "quick", 24)),
        (QUICK[:3], ("only", "quick", 3)),
        # The cases of quick are cases of core, too.
        ([*QUICK, *make_results("passed", range(24, 380), "core")], ("yes", "core", 380)),
        # A few cases of core are no verdict of core.
        ([*QUICK, *make_results("passed", range(30, 35), "core")], ("yes", "quick", 24)),
        ([*QUICK[:12], *make_results("passed", range(30, 40), "core")], ("yes", "core", 22)),
        ([*QUICK, *make_results("passed", range(100, 200), "fuzz")], ("yes", "quick", 24)),
        ([*QUICK, *make_results("failed", range(50, 51), PERF)], ("no", "quick", 24)),
        ([*QUICK, *make_results("out_of_memory", range(50, 51), FRONTIER)], ("yes", "quick", 24)),
        # A profile runs few checks on its calls.
        (make_results("passed", range(30), PERF), ("only", PERF, 30)),
        ([*make_results("unsupported", range(9), "quick"), *make_results("passed", range(2), PERF)], ("only", PERF, 2)),
        (make_results("not_run", range(9), "quick"), ("unknown", "", 0)),
        (make_results("unsupported", range(9), PERF), ("refused", "", 0)),
        ([], ("unknown", "", 0)),
    ],
)
def test_a_verdict_names_the_suite_and_the_checked_cases(results: list[Result], expected: tuple[str, str, int]) -> None:
    """At least 20 cases and no failure are a yes; fewer are only so many; a failure anywhere is a no."""
    found = judge_conformance(results)
    assert (found.verdict, found.suite, found.checked) == expected


def test_a_verdict_on_interpreted_calls_says_so() -> None:
    """Where checked calls were interpreted, the verdict says that the compiled kernels did not run."""
    interpreted = [replace(one, untimed=Interpreted(interpreter="Triton")) for one in QUICK]
    assert describe_conformance(judge_conformance(QUICK)) == "yes, quick 24"
    found = judge_conformance(interpreted)
    assert describe_conformance(found) == "yes, quick 24 (interpreted), CUDA kernels not run here"
    refused = [replace(one, suite="quick") for one in make_results("unsupported", range(9), "quick")]
    assert not judge_conformance(
        [replace(one, untimed=Interpreted(interpreter="Triton")) for one in refused]
    ).interpreted


def test_a_verdict_counts_refused_cases_by_the_refusal() -> None:
    """The most frequent refusal comes first: a fact, or the reason of an older run. Missing cases are passed on."""
    fact = OverWorkLimit(predicted_s=2.0, limit_s=1.0)
    typed = [
        replace(one, findings=(replace(one.findings[0], facts=(fact,), reason=""),))
        for one in make_results("unsupported", range(30, 33), "quick")
    ]
    found = judge_conformance(
        [*QUICK, *make_results("unsupported", range(40, 41), "quick", "no"), *typed], missing=2, causes=("cause",)
    )
    assert found == Conformance(
        verdict="yes", suite="quick", checked=24, refused=((fact, 3), ("no", 1)), causes=("cause",), missing=2
    )


def test_refusals_that_leave_few_cases_are_told() -> None:
    """A run of few cases says so only if refusals are the reason."""
    passed = [make_result("passed", number) for number in range(3)]
    refused = [make_result("unsupported", number) for number in range(10, 30)]
    few = "a: 3 of 23 cases checked, 20 refused; a verdict needs 20 checked cases"
    assert list(list_coverage_lines([*passed, *refused], {})) == [few]
    assert list(list_coverage_lines([*passed, *refused[:5]], {})) == []
    assert list(list_coverage_lines(passed, {})) == []


def test_every_implementation_has_its_counts_where_the_plan_is_given() -> None:
    """A case is checked, in part where a check was refused, or refused; repeated results count once."""
    part = replace(
        make_result("passed", 2), findings=(*make_result("failed", 2).findings, *make_result("unsupported", 2).findings)
    )
    results = [make_result("passed", 1), make_result("passed", 1), part, make_result("unsupported", 3)]
    assert list(list_coverage_lines(results, {}, {"a": 5, "b": 5})) == [
        "a: 2 of 5 cases checked (1 of them in part), 1 refused, 2 not run, 1 failed",
        "b: not started",
    ]
    assert (count_cases(results).checked, count_cases(results).cases) == (2, 3)


def test_faults_of_declarations_are_one_line_each() -> None:
    """A note of an older run, exceptions and missing answers are lines; an answer that changed several times is one."""
    changed = DeclarationChanged(before=None, now=OtherRefusal(text="no"))
    results = [make_result("passed", number, warnings=(changed,) * (number < 2)) for number in range(25)]
    made = replace(
        MADE,
        notes=("it raised",),
        asked=400,
        unasked=100,
        asked_s=30.0,
        raised=3,
        first_raised=Raised(kind="ValueError", message="x"),
    )
    assert list(list_coverage_lines(results, {"a": made})) == [
        f"a {describe_completion(made)}",
        "a: it raised",
        "a: declarations raised on 3 of 400 cases that were asked, which count as refused; the first exception: "
        "ValueError: x",
        "a: unsupported(case) is slow: 400 cases took 30 s, 75 ms each; 100 further cases not asked",
        f"a: {describe_fact(changed)}; the first answer counts (2 cases, the first is {results[0].case})",
    ]
    (line,) = describe_asking(replace(MADE, unasked=5, no_answer=TimedOut(limit_s=11)))
    assert line.endswith(describe_fact(TimedOut(limit_s=11)))
