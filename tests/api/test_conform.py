"""``attnbench.conform`` checks an object or a name, and returns a report."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import attnbench
from attnbench import Report, conform
from attnbench.analysis.failure_groups import LEAKS
from attnbench.api import ConformanceError, WorkerPool, format_finding
from attnbench.cases import Case
from attnbench.checks.catalogue import read_checks
from attnbench.jobs.job import ConformJob, build
from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.plugins.registry import PluginError
from attnbench.records.outcome_facts import CannotLoad, Crashed, ExpectedToFail, OracleEnded, OtherOperator
from attnbench.records.types import Finding, Result
from attnbench.runner import ExpectationError, Limits, Plan

PROBLEM = MultiheadProblem(batch=2, queries=5, keys=7, embed_dim=24, num_heads=3, bias=True, batch_first=True)
CASE = Case(operator="multihead", problem=PROBLEM, mode="inference").id
OTHER = Case(operator="multihead", problem=PROBLEM, dtype="float64", mode="inference").id
LINK = "https://example.org/1"

KERNELS = """
import os

import torch


def right(q, k, v, *, mask, scale):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def wrong(q, k, v, *, mask, scale):
    return right(q, k, v, mask=mask, scale=scale) * 1.01


def exits(q, k, v):
    os._exit(3)


def loses_device(q, k, v):
    raise torch.AcceleratorError("CUDA error: misaligned address")
"""

SCRIPT = """
import sys

import attnbench
from kernels import right


def mine(q, k, v, *, mask, scale):
    return right(q, k, v, mask=mask, scale=scale) * 1.01


def check():
    report = attnbench.conform(mine, suite="quick", cases=[CASE], checks=["forward_parity"])
    print(report)
    print(sorted({"torch", "click", "pandas", "msgspec"} & set(sys.modules)))


"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory with the file kernels.py, which contains several kernels."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels.py").write_text(KERNELS)
    return tmp_path


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """Worker pool of all tests here; it replaces processes that a test ends, and is closed after the last test."""
    opened = WorkerPool(Limits(timeout_s=600, threads=1))
    yield opened
    opened.close()


PARITY = "forward_parity"


def make_plan(case: str = CASE, *checks: str) -> Plan:
    """Make a plan of checks on one case."""
    return Plan(case=case, checks=checks or (PARITY,), missing=None, flop=0)


def make_report(*findings: Finding) -> Report:
    """Make a report with these findings on one case."""
    result = Result(run="", implementation="mine.py:Mine", case=CASE, findings=findings)
    return Report(implementation="mine.py:Mine", suite="quick", results=(result,))


def make_finding(check: str, status: str = "passed", reason: str = "because") -> Finding:
    """Make a finding of a check, with a status and a reason."""
    return Finding(check=check, status=status, reason=reason)


# The package


def test_importing_the_package_imports_no_large_package() -> None:
    """``import attnbench`` imports no large package; the modules that run checks are imported when they are used."""
    program = "import attnbench, sys; print(sorted({'torch', 'click', 'pandas', 'msgspec', 'attnbench.runner'} & "
    program += "set(sys.modules))); attnbench.conform; attnbench.Report; print('attnbench.runner' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "True"]


def test_package_offers_few_names() -> None:
    """Every name in ``__all__`` exists, and an unknown name is an AttributeError."""
    assert len(attnbench.__all__) <= 17
    assert [name for name in attnbench.__all__ if not hasattr(attnbench, name)] == []
    with pytest.raises(AttributeError, match="module 'attnbench' has no attribute 'conforms'"):
        attnbench.conforms  # noqa: B018


# A run


def test_a_script_checks_its_own_function(here: Path) -> None:
    """A script's function is checked in a separate process, which can import the same modules as the script."""
    (here / "tools").mkdir()
    (here / "kernels.py").rename(here / "tools/kernels.py")
    (here / "tools/script.py").write_text(f"CASE = {CASE!r}\n{SCRIPT}if __name__ == '__main__':\n    check()\n")
    done = subprocess.run([sys.executable, "tools/script.py"], capture_output=True, text=True, check=True, cwd=here)
    lines = done.stdout.splitlines()
    assert "tools/script.py:mine  NO: forward_parity; 1 check" in lines
    assert f"  attnbench reproduce '{CASE}' --check forward_parity tools/script.py:mine" in lines
    # torch is imported in the script's own process only because kernels.py imports it. msgspec encodes the requests.
    assert lines[-1] == "['msgspec', 'torch']"


@pytest.mark.extended
def test_a_script_without_a_main_guard_is_an_error(here: Path) -> None:
    """A call of ``conform`` at the top level is an error, because a worker that imports the script would repeat it."""
    (here / "script.py").write_text(f"CASE = {CASE!r}\n{SCRIPT}check()\n")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False, cwd=here)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("put the call under if __name__ == '__main__':")


def test_expected_failures_and_unexpected_passes_are_reported(here: Path) -> None:
    """The report counts an unexpected pass as a failure, but not an expected failure."""
    expected = {("forward_parity", CASE): ("1 % off", LINK), "inputs_untouched": ("never", LINK)}
    names = ("forward_parity", "inputs_untouched")
    found = conform("kernels.py:wrong", suite="quick", cases=CASE, checks=names, expected_failures=expected, threads=1)
    assert [one.status for one in found.findings] == ["expected_failure", "unexpected_pass"]
    assert found.findings[0].facts[0] == ExpectedToFail(reason="1 % off", link=LINK)
    assert not found.ok
    assert [failure.finding.check for failure in found.failures] == ["inputs_untouched"]


@pytest.mark.parametrize(
    ("selection", "fault"),
    [
        ({"suite": "quikc"}, "suite: needs one of quick, core, .*, got quikc"),
        ({"suite": "fuzz"}, "suite: needs one of quick, core, .*, got fuzz"),
        ({"checks": ("forward",)}, "checks: unknown check 'forward'; did you mean .*available: forward_parity"),
        ({"cases": ("*no such*",)}, r"'\*no such\*' matches none of \d+ cases of the suite"),
        ({"cases": ("no such",)}, "a case id has 9 parts"),
        ({"cases": (CASE,), "checks": ("mask_gradients",)}, "nothing to run: none of the selected checks applies"),
    ],
)
def test_an_empty_or_unknown_selection_is_an_error(pool: WorkerPool, selection: dict[str, object], fault: str) -> None:
    """The error names the value given and the available ones."""
    with pytest.raises(ValueError, match=fault):
        pool.make_plans(build(ConformJob, selection))


def test_invalid_expected_failures_are_errors(pool: WorkerPool, here: Path) -> None:
    """Errors are: a file that does not exist, a mapping without links, and an entry that matches no check or case."""
    for given, error, fault in (
        ("missing.toml", ExpectationError, r"cannot read expected failures from missing\.toml"),
        (
            {"forward_parity": "it is off"},
            ValueError,
            r"must map a pattern of check names, or a pair \(pattern of check names, pattern of case ids\), to a "
            r"pair \(reason, link\)",
        ),
        ({"forward_partiy": ("typo", LINK)}, ExpectationError, r"no check 'forward_partiy'; did you mean"),
        ({("mask_gradients", CASE): ("none", LINK)}, ExpectationError, "matches 'mask_gradients' applies to a case"),
    ):
        with pytest.raises(error, match=fault):
            pool.collect_expectations(["kernels.py:right"], given, [make_plan()])


def test_a_name_that_cannot_be_loaded_is_an_error(here: Path) -> None:
    """The error about a name that does not exist suggests a similar one."""
    with pytest.raises(PluginError, match=r"kernels\.py has no attribute 'wright'; did you mean"):
        conform("kernels.py:wright", suite="quick", cases=CASE)


# The report


def test_report_without_failures() -> None:
    """A report with passed, expected and refused findings is ok."""
    report = make_report(
        make_finding("forward_parity", reason=""),
        make_finding("weights_parity", "expected_failure"),
        make_finding("x", "unsupported"),
    )
    assert report.ok
    assert report.failures == ()
    assert report.counts == {"passed": 1, "expected_failure": 1, "unsupported": 1}
    assert report.raise_if_failed() is report
    (row,) = report.summary.tables[0].rows
    assert (row.subject, row.conformance.verdict, row.conformance.checked) == ("mine.py:Mine", "only", 1)
    assert row.conformance.expected == 1


@pytest.mark.parametrize("status", ["failed", "unexpected_pass", "error", "timeout", "crashed", "out_of_memory"])
def test_report_of_a_failure(status: str) -> None:
    """Each status of a failure makes the report raise, and its text has the command that reproduces the failure."""
    report = make_report(make_finding("forward_parity", reason=""), make_finding("inputs_untouched", status))
    assert not report.ok
    (failure,) = report.failures
    assert failure.reproduce == f"attnbench reproduce '{CASE}' --check inputs_untouched mine.py:Mine"
    with pytest.raises(ConformanceError) as raised:
        report.raise_if_failed()
    text = str(raised.value)
    assert text.startswith("mine.py:Mine does not conform\n")
    assert f"  {failure.reproduce}" in text.splitlines()
    (row,) = report.summary.tables[0].rows
    assert row.conformance.verdict == "no"
    assert row.conformance.failed_checks == ("inputs_untouched",)


def test_report_without_a_passed_check() -> None:
    """The report of an implementation that refuses everything is not ok."""
    report = make_report(
        make_finding("forward_parity", "unsupported"),
        *(make_finding(name, "not_run", "out of reach") for name in ("weights_parity", "repeats_itself")),
        make_finding("inputs_untouched", "not_run", "too slow"),
    )
    assert not report.ok
    (row,) = report.summary.tables[0].rows
    assert (row.conformance.verdict, row.conformance.checked) == ("refused", 0)


def test_report_has_every_cause_of_a_failure() -> None:
    """A report of many failed checks has them all, also those that its text only counts."""
    names = [name for name in read_checks() if name not in LEAKS]
    report = make_report(*(make_finding(name, "failed", f"Needed. But {name} is not.") for name in names * 2))
    assert len(report.summary.causes) == len(names)
    assert len(report.failures) == 2 * len(names)
    assert str(report).count("attnbench reproduce") < len(names)


def test_finding_in_words() -> None:
    """The text of a finding has the reason, the requirement and the command; the requirement appears only once."""
    requirement = read_checks()["forward_parity"].requirement
    one = make_finding("forward_parity", "failed", f"{requirement} But 3 of 4 elements are off.")
    assert format_finding("mine.py:Mine", CASE, one).splitlines() == [
        "3 of 4 elements are off.",
        f"  requirement  {requirement}",
        f"  reproduce    attnbench reproduce '{CASE}' --check forward_parity mine.py:Mine",
    ]
    assert format_finding("m", CASE, make_finding("forward_parity", "out_of_memory")).startswith(
        "out of memory: because\n"
    )


# The worker pool


def test_pool_keeps_its_processes_until_it_is_closed(pool: WorkerPool, here: Path) -> None:
    """All tests of an implementation use one worker process; plans that were made before are returned again."""
    job = ConformJob(cases=(CASE, OTHER), checks=(PARITY,))
    plans = pool.make_plans(job)
    assert [(one.case, one.checks) for one in plans] == [(CASE, (PARITY,)), (OTHER, (PARITY,))]
    assert pool.make_plans(job) is plans
    statuses = [pool.get_finding("kernels.py:right", one, PARITY).status for one in plans]
    children = [worker._child for worker in pool._workers.values()]
    children.append(pool._session._oracle)
    assert statuses == ["passed", "passed"]
    assert [child._ended for child in children] == [False, False]
    pool.close()
    assert [child._ended for child in children] == [True, True]


def test_pool_runs_requested_checks_of_a_case_together(
    pool: WorkerPool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requested checks of one case run together; a check whose finding was already returned runs again."""
    runs: list[tuple[str, ...]] = []

    def check_case(session: object, worker: object, implementation: str, plan: Plan) -> list[Finding]:
        runs.append(plan.checks)
        return [make_finding(check) for check in plan.checks]

    monkeypatch.setattr("attnbench.api.worker_pool.check_case", check_case)
    monkeypatch.setattr(WorkerPool, "_start_worker", lambda *_: SimpleNamespace(operator="multihead"))
    one = make_plan(CASE, "forward_parity", "inputs_untouched", "repeats_itself")
    pool.request("another", CASE, "repeats_itself")
    pool.request("another", OTHER, "inputs_untouched")
    assert runs == []
    for check in ("forward_parity", "repeats_itself", "forward_parity"):
        assert pool.get_finding("another", one, check).check == check
    assert runs == [("forward_parity", "repeats_itself"), ("forward_parity",)]


def test_pool_continues_after_crashes(pool: WorkerPool, here: Path) -> None:
    """A crash of a worker is a finding of the test that ran; after the oracle worker ends, a new one is started."""
    assert pool.get_finding("kernels.py:exits", make_plan(), PARITY).facts == (Crashed(how="exit", code=3),)
    pool._session._oracle._process.kill()
    ended = pool.get_finding("kernels.py:right", make_plan(), PARITY)
    assert (ended.status, pool.get_finding("kernels.py:right", make_plan(), PARITY).status) == ("error", "passed")
    assert isinstance(ended.facts[0], OracleEnded)


def test_an_error_in_a_kernel_ends_the_process(pool: WorkerPool, here: Path) -> None:
    """After an error in a CUDA kernel every further call fails, so the next check runs in a new process."""
    lost = pool.get_finding("kernels.py:loses_device", make_plan(), PARITY)
    assert lost.status == "crashed"
    text = "AcceleratorError: CUDA error: misaligned address"
    assert lost.facts == (Crashed(how="exit", code=1, text=text),)
    assert pool.get_finding("kernels.py:right", make_plan(), PARITY).status == "passed"


def test_pool_reports_once_that_a_name_cannot_be_loaded(pool: WorkerPool, here: Path) -> None:
    """The first test fails with the reason; later tests of the same name get the status not_run and the same reason."""
    findings = [pool.get_finding("kernels.py:left", make_plan(case), PARITY) for case in (CASE, OTHER)]
    assert [one.status for one in findings] == ["error", "not_run"]
    (fact,) = findings[0].facts
    assert findings[1].facts == (fact,)
    assert isinstance(fact, CannotLoad)
    assert fact.message.startswith("kernels.py has no attribute 'left'")


def test_an_interrupted_pool_starts_new_processes(
    pool: WorkerPool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interrupt (by pytest's time limit, say) all processes are new, so that no late answer is read."""
    right = "kernels.py:right"
    assert pool.get_finding(right, make_plan(), PARITY).status == "passed"

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pool._workers[right], "ask", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.get_finding(right, make_plan(), PARITY)
    assert (pool._session, pool._workers) == (None, {})
    assert pool.get_finding("kernels.py:wrong", make_plan(), PARITY).status == "failed"


def test_pool_runs_no_case_of_another_operator(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the implementation does not compute a case's operator, nothing runs, and the reason names both operators."""
    monkeypatch.setattr(WorkerPool, "_start_worker", lambda *_: SimpleNamespace(operator="another"))
    (fact,) = pool.get_finding("mine", make_plan(), PARITY).facts
    assert fact == OtherOperator(operator="another", case_operator="multihead")
