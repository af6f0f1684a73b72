"""Probes: what a worker answers, or how it ends, becomes findings, memory, and a reason for no timing."""

from pathlib import Path
from typing import Any

import pytest

from attnbench.records.types import Finding, Result
from attnbench.runner import Limits, Plan
from attnbench.runner.check_outcomes import TOGETHER_FLOP
from attnbench.runner.probe import probe, run_gating_checks

CASE = "multihead/B1.L8.S8.E256.H4/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/inference"
PLAN = Plan(case=CASE, checks=("forward_parity", "global_state_untouched"), missing=None, flop=10, bytes=20)
DESCRIBED = {"unsupported": None, "untimed": None, "predicted_s": None}
MEMORY = {"peak_bytes": 100, "saved_bytes": None, "threads": 1, "method": "m"}
SEEN = {check: {"status": "observed"} for check in PLAN.checks}
DEATH = {"status": "crashed", "reason": "the process was killed by SIGSEGV"}


class Judge:
    """Session in which everything that was seen is right, but for some checks."""

    def __init__(self, *, wrong: tuple[str, ...] = ()) -> None:
        self.limits = Limits()
        self.wrong = wrong

    def ask_oracle(self, do: str, **request: Any) -> Any:
        """The path of inputs, or verdicts."""
        if do == "inputs":
            return "inputs"
        passed = {"status": "passed", "warnings": ["slow"], "measured": 1.0}
        return {c: {"status": "failed", "reason": "off"} if c in self.wrong else passed for c in request["checks"]}


class Worker:
    """Supervisor whose answers were written down before; what is not there goes well."""

    path_prefix = Path("folder/worker-0")

    def __init__(self, *, memory_bytes: int = 10**6, busy: tuple[float | None, ...] = (0.0,), **answers: Any) -> None:
        self.memory_bytes = memory_bytes
        self.answers = {"describe": DESCRIBED, "memory": MEMORY, "kernels": {"kernels": ["addmm"]}} | answers
        self.declared = {"sdpa": {"policies": {}}}
        self.asked: list[str] = []
        self.looks = list(busy)

    def ask(self, do: str, **request: Any) -> Any:
        """The answer; of checks those that were asked for."""
        self.asked.append(do)
        if do == "observe" and do not in self.answers:
            return {check: {"status": "observed"} for check in request["checks"]}
        return self.answers[do]

    def compute_memory_limit_bytes(self) -> int:
        """What was written down."""
        return self.memory_bytes

    def measure_core_demand(self, window_s: float) -> float | None:
        """What was written down for this look."""
        return self.looks.pop(0)


def probed(worker: Worker, *, session: Judge | None = None, plan: Plan = PLAN) -> Result:
    """Result of a probe."""
    return probe(session or Judge(), worker, "sdpa", plan, run="r")  # type: ignore[arg-type]


def test_what_goes_well_has_all_there_is() -> None:
    """Findings with what the judge said besides, memory, kernels, and what the case needs; nothing against a timing."""
    found = probed(Worker())
    assert found.findings == tuple(
        Finding(check=check, status="passed", measured=1.0, warnings=("slow",)) for check in PLAN.checks
    )
    assert found.memory is not None
    assert found.memory.peak_bytes == 100
    assert (found.kernels, found.flop, found.bytes, found.suite) == (("addmm",), 10, 20, "perf")
    assert found.untimed is None


@pytest.mark.parametrize(
    ("session", "worker", "plan", "status", "reason"),
    [
        (Judge(), Worker(), {"missing": "no CUDA device"}, "not_run", "no CUDA device"),
        (Judge(), Worker(describe=DESCRIBED | {"unsupported": "no"}), {}, "unsupported", "no"),
        (
            Judge(), Worker(describe=DESCRIBED | {"predicted_s": 9.0}), {}, "not_run",
            "predicted 9 s a call, over the limit of 0.75 s (--work-limit)",
        ),
        (
            Judge(), Worker(memory_bytes=2**30), {"bytes": 3 * 2**30}, "not_run",
            "its tensors alone take 3 GiB, over the limit of 1 GiB (--memory-limit)",
        ),
        (Judge(), Worker(describe=DEATH), {}, "crashed", DEATH["reason"]),
    ],
)  # fmt: skip
def test_what_is_refused_or_out_of_reach_is_not_tried(
    session: Judge, worker: Worker, plan: dict[str, Any], status: str, reason: str
) -> None:
    """Nothing is called where a word is enough; every check says why."""
    found = run_gating_checks(
        session, worker, "sdpa", Plan(**{name: getattr(PLAN, name) for name in Plan.__slots__} | plan)
    )  # type: ignore[arg-type]
    assert found == tuple(Finding(check=check, status=status, reason=reason) for check in PLAN.checks)  # type: ignore[arg-type]
    assert not {"observe", "memory"} & set(worker.asked)


def test_a_death_is_that_of_all_checks_and_is_met_once() -> None:
    """A process that ended, or hung, is not sent after the check that it was."""
    worker = Worker(observe=DEATH)
    found = probed(worker)
    assert {finding.status for finding in found.findings} == {"crashed"}
    assert found.untimed == "crashed: the process was killed by SIGSEGV"
    assert worker.asked.count("observe") == 1


def test_checks_of_a_large_case_are_seen_one_by_one() -> None:
    """Their tensors would add up."""
    large = Plan(case=CASE, checks=PLAN.checks, missing=None, flop=TOGETHER_FLOP + 1)
    worker = Worker()
    assert probed(worker, plan=large).untimed is None
    assert worker.asked.count("observe") == 2


def test_a_wrong_result_is_measured_no_further() -> None:
    """No memory and no kernels of what is not right."""
    worker = Worker()
    found = probed(worker, session=Judge(wrong=("global_state_untouched",)))
    assert (found.untimed, found.memory) == ("failed: off", None)
    assert "memory" not in worker.asked


def test_an_error_of_one_check_leaves_the_others_judged() -> None:
    """What was seen of the other checks stands."""
    raised = {"status": "error", "reason": "ValueError: what"}
    found = probed(Worker(observe=SEEN | {"forward_parity": raised}))
    assert [finding.status for finding in found.findings] == ["error", "passed"]
    assert found.untimed == "error: ValueError: what"


def test_without_a_limit_a_worker_gets_most_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is refused in words before the system begins to end processes; where it says nothing there is no limit."""
    monkeypatch.setattr("attnbench.runner.session.read_available_memory_bytes", lambda: 1000)
    assert Limits().compute_memory_limit_bytes() == 900
    assert Limits(memory_bytes=5000).compute_memory_limit_bytes() == 5000
    monkeypatch.setattr("attnbench.runner.session.read_available_memory_bytes", lambda: 0)
    assert Limits().compute_memory_limit_bytes() is None


@pytest.mark.parametrize("stage", ["memory", "kernels"])
def test_a_death_while_it_is_measured_is_the_reason_for_no_timing(stage: str) -> None:
    """Findings that passed stand; nobody takes turns with it."""
    found = probed(Worker(**{stage: DEATH}))
    assert {finding.status for finding in found.findings} == {"passed"}
    assert found.untimed == "crashed: the process was killed by SIGSEGV"
    assert (found.memory is None) == (stage == "memory")


def test_what_is_declared_untimed_is_not_timed() -> None:
    """The implementation's own word."""
    assert probed(Worker(describe=DESCRIBED | {"untimed": "interpreted"})).untimed == "interpreted"


@pytest.mark.parametrize(
    ("busy", "untimed"),
    [
        ((0.1,), None),
        ((None,), None),
        # Threads that were about to end have done so at the second look.
        ((0.9, 0.1), None),
        ((0.9, 1.2), "its threads still need 1.2 cores after the call has returned"),
    ],
)
def test_what_goes_on_after_its_call_is_not_timed(busy: tuple[float | None, ...], untimed: str | None) -> None:
    """It would take a core from those that take turns with it; where the system does not say, nobody is accused."""
    worker = Worker(busy=busy)
    assert probed(worker).untimed == untimed
    assert worker.looks == []
