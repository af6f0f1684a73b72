"""Tests of ``probe``, which checks an implementation, measures its memory, and decides whether it is timed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from attnbench.interface import Policies
from attnbench.processes.candidate_requests import (
    CandidateRequest,
    Declaration,
    Declared,
    Describe,
    MeasuredPass,
    MeasurePass,
    Observe,
    Observed,
    Outcome,
)
from attnbench.processes.oracle_requests import DrawInputs, Evaluate
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import Crashed, KeepsWorking, NotConforming, OverMemoryLimit, OverWorkLimit, Raised
from attnbench.records.types import Finding, Memory, Result
from attnbench.records.value_facts import NotEvaluated
from attnbench.refusals import Interpreted, LacksDevice, OtherRefusal
from attnbench.runner import Limits, Plan
from attnbench.runner.check_outcomes import TOGETHER_FLOP
from attnbench.runner.probe import probe, run_gating_checks

CASE = "multihead/B1.L8.S8.E256.H4/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/inference"
PLAN = Plan(case=CASE, checks=("forward_parity", "global_state_untouched"), missing=None, flop=10, bytes=20)
DESCRIBED = Declaration(unsupported=None, untimed=None, predicted_s=None)
MEASURED = MeasuredPass(memory=Memory(peak_bytes=100, threads=1, method="m"), kernels=("addmm",))
SIGSEGV = Crashed(how="signal", signal="SIGSEGV")
CRASH = Outcome(status="crashed", facts=(SIGSEGV,))
NO = OtherRefusal(text="no")
OFF = NotEvaluated(raised="ValueError", message="off")


class FakeSession:
    """Session whose oracle worker passes all checks except those in ``wrong``."""

    def __init__(self, *, wrong: tuple[str, ...] = ()) -> None:
        self.limits = Limits()
        self.wrong = wrong

    def ask_oracle(self, request: DrawInputs | Evaluate) -> Any:
        """Return the path of the inputs, or the findings of the requested checks."""
        return "inputs" if isinstance(request, DrawInputs) else {check: self._judge(check) for check in request.checks}

    def _judge(self, check: str) -> Finding:
        if check in self.wrong:
            return Finding(check=check, status="failed", facts=(OFF,))
        return Finding(check=check, status="passed", warnings=("slow",), measured=1.0)


class FakeWorker:
    """Stand-in for a supervisor: it starts no process, and returns the answers given by the test.

    The answers are given by the class of the request; the default answers report no problem.
    """

    path_prefix = Path("folder/worker-0")

    def __init__(
        self,
        answers: Mapping[type[CandidateRequest[Any]], Any] | None = None,
        *,
        memory_bytes: int = 10**6,
        busy: tuple[float | None, ...] = (0.0,),
    ) -> None:
        self.memory_bytes = memory_bytes
        usual = {Describe: DESCRIBED, MeasurePass: MEASURED}
        self.answers: dict[type[CandidateRequest[Any]], Any] = {**usual, **(answers or {})}
        declared = Declared(operator="multihead", source="", policies=Policies(), compiles=False, environment={})
        self.declared = {"sdpa": declared}
        self.requests: list[type[CandidateRequest[Any]]] = []
        self.core_demands = list(busy)

    def ask(self, request: CandidateRequest[Any]) -> Any:
        """Return the answer that the test gave; the default answer to ``Observe`` is one observation per check."""
        self.requests.append(type(request))
        if isinstance(request, Observe) and Observe not in self.answers:
            return Observed(outcomes=dict.fromkeys(request.checks))
        return self.answers[type(request)]

    def compute_memory_limit_bytes(self) -> int:
        """Return the memory limit that the test gave."""
        return self.memory_bytes

    def measure_core_demand(self, window_s: float) -> float | None:
        """Return the next core demand that the test gave, in cores."""
        return self.core_demands.pop(0)


def run_probe(worker: FakeWorker, *, session: FakeSession | None = None, plan: Plan = PLAN) -> Result:
    """Run a probe of "sdpa" with fake worker and session, and return its result."""
    return probe(session or FakeSession(), worker, "sdpa", plan, run="r")  # type: ignore[arg-type]


def test_a_probe_without_failures_measures_everything() -> None:
    """If all checks pass, the result has findings, memory, kernels, FLOP and bytes, and ``untimed`` is None."""
    found = run_probe(FakeWorker())
    assert found.findings == tuple(
        Finding(check=check, status="passed", measured=1.0, warnings=("slow",)) for check in PLAN.checks
    )
    assert found.memory is not None
    assert found.memory.peak_bytes == 100
    assert (found.kernels, found.flop, found.bytes, found.suite) == (("addmm",), 10, 20, "perf")
    assert found.untimed is None


@pytest.mark.parametrize(
    ("session", "worker", "plan", "status", "fact"),
    [
        (FakeSession(), FakeWorker(), {"missing": LacksDevice(device="cuda")}, "not_run", LacksDevice(device="cuda")),
        (FakeSession(), FakeWorker({Describe: replace(DESCRIBED, unsupported=NO)}), {}, "unsupported", NO),
        (
            FakeSession(), FakeWorker({Describe: replace(DESCRIBED, predicted_s=9.0)}), {}, "not_run",
            OverWorkLimit(predicted_s=9.0, limit_s=0.75),
        ),
        (
            FakeSession(), FakeWorker(memory_bytes=2**30), {"bytes": 3 * 2**30}, "not_run",
            OverMemoryLimit(what="tensors", need_bytes=3 * 2**30, limit_bytes=2**30),
        ),
        (FakeSession(), FakeWorker({Describe: CRASH}), {}, "crashed", SIGSEGV),
    ],
)  # fmt: skip
def test_a_refused_or_too_large_case_is_not_called(
    session: FakeSession, worker: FakeWorker, plan: dict[str, Any], status: str, fact: Fact
) -> None:
    """If a case is refused or exceeds a limit, no call is made; the finding of every check says why."""
    found = run_gating_checks(
        session, worker, "sdpa", Plan(**{name: getattr(PLAN, name) for name in Plan.__slots__} | plan)
    )  # type: ignore[arg-type]
    assert found == tuple(Finding(check=check, status=status, facts=(fact,)) for check in PLAN.checks)  # type: ignore[arg-type]
    assert not {Observe, MeasurePass} & set(worker.requests)


def test_a_crash_fails_all_checks_and_is_not_repeated() -> None:
    """If the worker crashes, every check has the status "crashed"; the checks are not run again one by one."""
    worker = FakeWorker({Observe: CRASH})
    found = run_probe(worker)
    assert {finding.status for finding in found.findings} == {"crashed"}
    assert found.untimed == NotConforming(check="forward_parity", status="crashed")
    assert worker.requests.count(Observe) == 1


def test_checks_of_a_large_case_run_one_at_a_time() -> None:
    """On a large case, each check is a separate request, so that only the tensors of one check are in memory."""
    large = Plan(case=CASE, checks=PLAN.checks, missing=None, flop=TOGETHER_FLOP + 1)
    worker = FakeWorker()
    assert run_probe(worker, plan=large).untimed is None
    assert worker.requests.count(Observe) == 2


def test_memory_of_a_wrong_result_is_not_measured() -> None:
    """If a check fails, the memory of the call is not measured."""
    worker = FakeWorker()
    found = run_probe(worker, session=FakeSession(wrong=("global_state_untouched",)))
    assert (found.untimed, found.memory) == (NotConforming(check="global_state_untouched", status="failed"), None)
    assert MeasurePass not in worker.requests


def test_an_error_of_one_check_does_not_affect_the_others() -> None:
    """If one check raises, that check has the status "error", and the other checks are evaluated."""
    raised = Outcome(status="error", facts=(Raised(kind="ValueError", message="what"),))
    observed = Observed(outcomes={"forward_parity": raised, "global_state_untouched": None})
    found = run_probe(FakeWorker({Observe: observed}))
    assert [finding.status for finding in found.findings] == ["error", "passed"]
    assert found.untimed == NotConforming(check="forward_parity", status="error")


def test_the_default_memory_limit_is_most_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default limit is 90 % of the available memory; without a known available memory there is no limit."""
    monkeypatch.setattr("attnbench.runner.candidate_pool.read_available_memory_bytes", lambda: 1000)
    assert Limits().compute_memory_limit_bytes() == 900
    assert Limits(memory_bytes=5000).compute_memory_limit_bytes() == 5000
    monkeypatch.setattr("attnbench.runner.candidate_pool.read_available_memory_bytes", lambda: 0)
    assert Limits().compute_memory_limit_bytes() is None


def test_a_crash_during_measurement_is_the_reason_for_no_timing() -> None:
    """If the worker crashes while memory and kernels are measured, the findings stay, and the call is not timed."""
    found = run_probe(FakeWorker({MeasurePass: CRASH}))
    assert {finding.status for finding in found.findings} == {"passed"}
    assert found.untimed == SIGSEGV
    assert found.memory is None


def test_a_call_that_is_declared_untimed_is_not_timed() -> None:
    """If an implementation declares a reason in ``untimed``, the call is not timed, for that reason."""
    declared = Interpreted(interpreter="Triton")
    assert run_probe(FakeWorker({Describe: replace(DESCRIBED, untimed=declared)})).untimed == declared


@pytest.mark.parametrize(
    ("busy", "untimed"),
    [
        ((0.1,), None),
        ((None,), None),
        # A high core demand is measured again, because the threads may just be ending.
        ((0.9, 0.1), None),
        ((0.9, 0.6, 0.6, 0.1), None),
        ((0.9, *[0.6] * 4, 1.2), KeepsWorking(cores=1.2)),
    ],
)
def test_a_call_that_leaves_threads_running_is_not_timed(busy: tuple[float | None, ...], untimed: Fact | None) -> None:
    """A call whose threads still run afterwards is not timed, because they would slow the other implementations.

    If the core demand of the worker is not known, the call is timed.
    """
    worker = FakeWorker(busy=busy)
    assert run_probe(worker).untimed == untimed
    assert worker.core_demands == []
