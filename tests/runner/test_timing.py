"""Tests of timing processes, each of which times all implementations of a case. The tests start no process.

An implementation with a fault is excluded, and processes are added if a speed verdict is unknown.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnbench.analysis.speed_verdict import decide_speed
from attnbench.interface import Policies
from attnbench.plugins.registry import PluginError
from attnbench.processes.candidate_requests import Declared, Defence, Outcome, TakeSamples, TimedSamples
from attnbench.processes.oracle_requests import DrawInputs, Evaluate
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import (
    CannotLoad,
    ClockChanged,
    Crashed,
    EndedProcesses,
    ExcludedFromTiming,
    NotConforming,
    ProcessChanged,
    Raised,
    SamplesChanged,
    SlowsOthers,
    TimedOut,
)
from attnbench.records.types import Finding, Result, Timing
from attnbench.records.value_facts import TimedCallChecked, phrase
from attnbench.runner import timing, timing_processes
from attnbench.runner.candidate_pool import Limits, Supervisor, WorkerKind
from attnbench.runner.profile import _select_ready
from attnbench.runner.progress import NoProgress, Progress
from attnbench.runner.session import Plan, Session
from attnbench.runner.timed_case import add_process
from attnbench.runner.timing import EVALUATED, GROUP_S, SMALL_FLOP, time_cases
from attnbench.runner.timing_processes import STEP, Effort
from made_facts import OFF

CASE = "multihead/B1.L{}.S8.E8.H2/bias/mask=none/regime=plain/seed=0/float32/cpu/inference"
CHECKS = ("forward_parity", "global_state_untouched")
CALL_NS = 1_000_000
PASSED = Finding(check="any", status="passed")
GONE = Crashed(how="closed")
RAISED = Raised(kind="ValueError", message="no")
WRONG = Finding(check="any", status="failed", facts=(OFF,))
# Type of a function that decides whether a fake process fails: it gets the names of the implementations and the number
# of the process, and returns the fault or None.
Fault = Callable[[list[str], int], Outcome | None]


@dataclass(slots=True, kw_only=True)
class FakeSession:
    """Session with fake timing processes, which answer at once; it records the requests to these processes."""

    # For the number of a process and the name of an implementation: the time of a call, in multiples of CALL_NS.
    factor: Callable[[int, str], float] = lambda process, name: 1.0
    # For the same: whether the threads wait for a core in all of its calls.
    waits: Callable[[int, str], bool] = lambda process, name: False
    fault: Fault = lambda names, process: None
    load_fault: Callable[[list[str]], bool] = lambda names: False
    evaluate: Callable[[str], Finding] = lambda name: PASSED
    limits: Limits = field(default_factory=Limits)
    started: list[list[str]] = field(default_factory=list)
    requests: list[TakeSamples] = field(default_factory=list)
    shared_by: list[int] = field(default_factory=list)
    closed: int = 0

    @property
    def workers(self) -> "FakeSession":
        """The pool, which is this object."""
        return self

    def get(self, names: list[str], _: WorkerKind) -> "FakeProcess":
        """Return a fake process with these implementations; raise PluginError if ``load_fault`` says so."""
        if self.load_fault(names):
            raise PluginError(f"cannot load {', '.join(names)}")
        self.started.append(list(names))
        return FakeProcess(self, names)

    def ask_oracle(self, request: DrawInputs | Evaluate) -> Any:
        """Return the path of the inputs, or the findings of the requested checks."""
        if isinstance(request, DrawInputs):
            return "inputs"
        (file,) = request.observations
        return {check: replace(self.evaluate(file), check=check) for check in request.checks}


class FakeProcess(Supervisor):
    """Timing process whose times and faults are given by its FakeSession."""

    path_prefix = Path("nowhere")

    def __init__(self, fake: FakeSession, names: list[str]) -> None:
        self._fake = fake
        declared = Declared(operator="multihead", source="", policies=Policies(), compiles=False, environment={})
        self.declared = dict.fromkeys(names, declared)
        self._closed = False
        self._child = None

    def close(self) -> None:
        """Add one to the number of closed processes of the session."""
        self._fake.closed += 1

    def ask(self, request: TakeSamples, *, counts: bool = True, shared_by: int = 1) -> TimedSamples | Outcome:
        """Return nine samples of each implementation, or the fault of this process if it has one."""
        assert not counts
        self._fake.shared_by.append(shared_by)
        self._fake.requests.append(request)
        names, process = request.implementations, request.seed
        fault = self._fake.fault(names, process)
        if fault is not None:
            return fault
        samples = {name: self._take(process, name) for name in names}
        control = self._take(process, request.baseline) if request.baseline else None
        sampled_ns = sum(sum(own.samples_ns[0]) for own in (*samples.values(), *([control] if control else [])))
        return TimedSamples(
            samples=samples, twin=control, observations={name: name for name in names}, between_ns=5,
            elapsed_ns=sampled_ns + 5,
        )  # fmt: skip

    def _take(self, process: int, name: str) -> Timing:
        return _make_samples(self._fake.factor(process, name), waits=self._fake.waits(process, name))


def _make_samples(factor: float, *, waits: bool) -> Timing:
    time_ns = round(factor * CALL_NS)
    return Timing(
        samples_ns=((time_ns,) * 9,),
        waited_ns=((time_ns * waits,) * 9,),
        switches=((0,) * 9,),
        cycles=(tuple(range(9)),),
        threads=1,
        values="fresh",
        trainable=True,
        build_ns=(5,),
        first_call_ns=(7,),
    )


@dataclass(slots=True)
class RecordingProgress:
    """Progress that records, at the start of each step, how many steps of the stage are left."""

    left: list[int] = field(default_factory=list)
    todo: int = 0

    def begin(self, title: str, total: int, *, parallel: int = 1) -> None:
        """Set the number of steps of a new stage; the stage before must be complete."""
        del title, parallel
        assert self.todo == 0
        self.todo = total

    def now(self, text: str) -> None:
        """Record the start of a step."""
        del text
        self.left.append(self.todo)

    def done(self, label: str | None = None) -> None:
        """Count a finished step."""
        del label
        self.todo -= 1


def make_ready(names: Sequence[str], cases: int) -> dict[tuple[str, str], Result]:
    """Make results that passed their probe, by implementation and case."""
    findings = tuple(Finding(check=check, status="passed") for check in CHECKS)
    return {
        (name, case): Result(run="r", implementation=name, case=case, findings=findings)
        for case in (CASE.format(n) for n in range(cases))
        for name in names
    }


def start(
    fake: FakeSession,
    names: Sequence[str],
    effort: Effort,
    *,
    cases: int = 1,
    against: str | None = None,
    progress: Progress | None = None,
    without: frozenset[Defence] = frozenset({"alone"}),
    flop: int = 1,
    stored: Sequence[Result] = (),
) -> Iterator[Result]:
    """Start to time cases in fake processes; by default no baseline is timed alone. ``stored``: results to resume."""
    plans = [Plan(case=CASE.format(n), checks=CHECKS, missing=None, flop=flop) for n in range(cases)]
    session: Session = fake  # type: ignore[assignment]
    ready = make_ready(names, cases) | {(one.implementation, one.case): one for one in stored}
    return time_cases(
        session, plans, ready, progress=progress or NoProgress(), effort=effort, against=against, without=without
    )


def run(
    fake: FakeSession,
    names: Sequence[str],
    *,
    cases: int = 1,
    processes: int = 7,
    most: int | None = None,
    budget_s: float = 1.0,
    case_s: float | None = None,
    against: str | None = None,
    progress: Progress | None = None,
    without: frozenset[Defence] = frozenset({"alone"}),
    flop: int = 1,
) -> dict[tuple[str, int], Result]:
    """Time cases in fake processes; return the results by implementation and number of the case."""
    effort = Effort(processes=processes, most=most, budget_s=budget_s, case_s=case_s)
    results = start(fake, names, effort, cases=cases, against=against, progress=progress, without=without, flop=flop)
    return {(r.implementation, int(r.case.split(".L")[1].split(".")[0])): r for r in results}


def make_fault(*guilty: str, status: str = "crashed") -> Fault:
    """Make the function ``Fault`` that reports a fault if a process calls any of these implementations."""

    def fault(names: list[str], process: int) -> Outcome | None:
        del process
        return Outcome(status=status, facts=(GONE,)) if set(guilty) & set(names) else None

    return fault


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_the_culprit_is_found_by_bisection(count: int, place: int) -> None:
    """The implementation that crashes among n is found with at most ⌊log₂ n⌋ + 2 new processes.

    One more process times the others in place of the first process. The other n − 1 implementations are timed.
    """
    names = ["torch_mha", *(f"n{i}" for i in range(1, count))]
    guilty = names[place]
    fake = FakeSession(fault=make_fault(guilty))
    found = run(fake, names)
    assert found[guilty, 0].timing is None
    assert found[guilty, 0].untimed == ExcludedFromTiming(fault=GONE)
    for name in names:
        if name != guilty:
            timing = found[name, 0].timing
            assert timing is not None
            assert len(timing.samples_ns) == 7
            assert set(timing.interleaved_with) == set(names) - {name, guilty}
    searched = len(fake.started) - 8
    assert searched <= count.bit_length() + 1
    assert fake.closed == len(fake.started)


def test_two_culprits_are_found_one_after_the_other() -> None:
    """If two of eight implementations crash processes, these two are excluded, and the other six are timed."""
    found = run(FakeSession(fault=make_fault("n1", "n6")), ["torch_mha", *(f"n{i}" for i in range(1, 8))])
    assert {name for (name, _), result in found.items() if result.timing is None} == {"n1", "n6"}


def test_an_implementation_that_raises_is_excluded_without_a_search() -> None:
    """If an implementation raises, the answer of the process names it, so no process is started to find it."""
    fault: Fault = lambda names, process: (  # noqa: E731
        Outcome(status="error", facts=(RAISED,), culprit="n2") if "n2" in names and process == 3 else None
    )
    fake = FakeSession(fault=fault)
    found = run(fake, ["torch_mha", "n1", "n2"])
    assert found["n2", 0].untimed == ExcludedFromTiming(fault=RAISED)
    assert len(fake.started) == 7


def test_an_implementation_that_changes_the_process_leaves_it_with_the_process() -> None:
    """If an implementation changed the process, the others are timed in a fresh one, although it is named."""
    # The process is the same until another one is started.
    changed: set[tuple[int, int]] = set()

    def fault(names: list[str], process: int) -> Outcome | None:
        own = process, len(fake.started)
        changed.update({own} if "n2" in names else ())
        what = phrase("garbage_collection")
        fact = ProcessChanged(what=what)
        left = Outcome(status="failed", facts=(fact,), culprit="n2" if "n2" in names else None)
        return left if own in changed else None

    fake = FakeSession(fault=fault)
    found = run(fake, ["torch_mha", "n2"])
    assert {name for (name, _), result in found.items() if result.timing is None} == {"n2"}


def test_a_crash_that_is_not_reproduced_excludes_no_implementation() -> None:
    """If a process crashes once and not again, the case is timed again, and all implementations have a timing."""
    crashes = [Outcome(status="crashed", facts=(GONE,))]
    found = run(FakeSession(fault=lambda names, process: crashes.pop() if crashes else None), ["torch_mha", "n1"])
    assert all(result.timing is not None for result in found.values())


def test_a_fault_of_all_together_is_reported_for_all() -> None:
    """If a fault occurs only when all implementations run together, none of them is timed on that case.

    They are timed on the other case.
    """

    def fault(names: list[str], process: int) -> Outcome | None:
        del process
        wanted = len(names) == 3 and fake.requests[-1].case == CASE.format(0)
        return Outcome(status="timeout", facts=(TimedOut(limit_s=1.0),)) if wanted else None

    fake = FakeSession(fault=fault)
    found = run(fake, ["torch_mha", "n1", "n2"], cases=2)
    reason = ExcludedFromTiming(fault=TimedOut(limit_s=1.0), attributed=False)
    assert {found[name, 0].untimed for name in ("torch_mha", "n1", "n2")} == {reason}
    assert all(found[name, 1].timing is not None for name in ("torch_mha", "n1", "n2"))


def test_an_implementation_that_ended_three_processes_is_excluded() -> None:
    """An implementation that ended three processes is not timed on the remaining cases, as each would cost a search."""
    fake = FakeSession(fault=make_fault("n1", status="timeout"))
    found = run(fake, ["torch_mha", "n1", "n2"], cases=6)
    assert [found["n1", i].untimed for i in range(6)] == [
        *[ExcludedFromTiming(fault=GONE)] * 3, *[EndedProcesses(count=3)] * 3
    ]  # fmt: skip
    assert all(found["n2", i].timing is not None for i in range(6))


def test_an_implementation_that_cannot_be_loaded_with_others_is_excluded() -> None:
    """An implementation whose process cannot load it together with others is excluded; the others are timed.

    It can be loaded alone: the checks before timing, which have a process per implementation, passed.
    """
    fake = FakeSession(load_fault=lambda names: "n1" in names)
    found = run(fake, ["torch_mha", "n1", "n2"], cases=2)
    cannot = ExcludedFromTiming(fault=CannotLoad(message="cannot load n1"))
    assert {found["n1", i].untimed for i in range(2)} == {cannot}
    assert all(found["n2", i].timing is not None for i in range(2))


def test_an_output_that_is_wrong_in_a_timed_call_has_no_timing() -> None:
    """If forward_parity fails on a timed call, the result has no timing and the failed finding of forward_parity.

    The findings of other checks, which were made before timing, stay.
    """

    def evaluate(name: str) -> Finding:
        failed = Finding(check="forward_parity", status="failed", facts=(OFF,))
        return failed if name == "n1" else PASSED

    found = run(FakeSession(evaluate=evaluate), ["torch_mha", "n1"])
    assert found["torch_mha", 0].timing is not None
    wrong = found["n1", 0]
    assert wrong.untimed == NotConforming(check="forward_parity", status="failed")
    assert wrong.findings[0].facts == (OFF, TimedCallChecked(calls=9))
    assert [(finding.check, finding.status) for finding in wrong.findings] == [
        ("forward_parity", "failed"), ("global_state_untouched", "passed")
    ]  # fmt: skip


def test_only_checks_of_outputs_judge_timed_calls() -> None:
    """Of the checks that are run before timing, only forward_parity, which compares outputs, judges a timed call."""
    fake = FakeSession()
    run(fake, ["torch_mha", "n1"])
    assert {tuple(request.checks) for request in fake.requests} == {("forward_parity",)}


@dataclass(slots=True, kw_only=True)
class SharedSession(FakeSession):
    """Fake session in which calls of the baseline take ``slowed`` times as long beside one of ``guilty``."""

    guilty: frozenset[str] = frozenset()
    slowed: float = 4.0
    # Number of requests after which the machine itself becomes slower by ``slowed``, whatever runs on it.
    drifts_after: int | None = None

    def __post_init__(self) -> None:
        """Make the times of the baseline depend on the implementations beside it."""

        def factor(process: int, name: str) -> float:
            del process
            drifted = self.drifts_after is not None and len(self.requests) > self.drifts_after
            beside = self.guilty & set(self.requests[-1].implementations)
            return self.slowed if drifted or (beside and name == "torch_mha") else 1.0

        self.factor = factor


@pytest.mark.parametrize("guilty", ["n1", "n2", "n3"])
def test_an_implementation_that_slows_the_baseline_is_excluded(guilty: str) -> None:
    """An implementation beside which the baseline is four times as slow as alone is excluded, with both times.

    The others are timed in processes without it.
    """
    fake = SharedSession(guilty=frozenset({guilty}))
    names = ["torch_mha", "n1", "n2", "n3"]
    found = run(fake, names, processes=3, without=frozenset())
    slows = SlowsOthers(baseline="torch_mha", beside_ns=4 * CALL_NS, alone_ns=CALL_NS)
    assert found[guilty, 0].untimed == ExcludedFromTiming(fault=slows)
    for name in set(names) - {guilty}:
        timing = found[name, 0].timing
        assert timing is not None
        assert {own for process in timing.samples_ns for own in process} == {CALL_NS}
    assert len(fake.started) == fake.closed


def test_one_process_times_the_baseline_alone_on_all_cases() -> None:
    """The comparison with the baseline alone starts one further process, however many cases there are."""
    fake = SharedSession()
    run(fake, ["torch_mha", "n1"], cases=4, processes=3, without=frozenset())
    assert fake.started.count(["torch_mha"]) == 1
    assert len(fake.started) == 3 + 1 == fake.closed


def test_a_fault_of_the_baseline_alone_ends_its_process() -> None:
    """If the baseline cannot be timed alone, a later comparison starts a new process, and nobody is accused."""
    fake = SharedSession()
    faults = iter([Outcome(status="crashed", facts=(GONE,))])
    fake.fault = lambda names, process: next(faults, None) if names == ["torch_mha"] else None
    found = run(fake, ["torch_mha", "n1"], processes=3, without=frozenset())
    assert all(result.timing is not None for result in found.values())
    assert fake.started.count(["torch_mha"]) == 2
    assert len(fake.started) == fake.closed


def test_a_slower_machine_accuses_nobody() -> None:
    """If the baseline becomes slower alone as well, the machine has become slower, and all are timed."""
    fake = SharedSession(drifts_after=3)
    found = run(fake, ["torch_mha", "n1", "n2"], processes=5, without=frozenset())
    assert all(result.timing is not None for result in found.values())


def test_the_slowdown_of_a_baseline_needs_its_time_alone() -> None:
    """Without the defence, an implementation that slows the baseline is timed beside it."""
    found = run(SharedSession(guilty=frozenset({"n1"})), ["torch_mha", "n1"], processes=3)
    assert found["n1", 0].timing is not None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"between_ns": -1}, SamplesChanged),
        ({"between_ns": 60_000_000_000, "elapsed_ns": 60_000_000_000}, ClockChanged),
    ],
)
def test_times_that_do_not_add_up_are_a_fault(change: dict[str, int], expected: type[Fact]) -> None:
    """If samples do not add up to the elapsed time, or the clock differs from this process's, nothing is timed.

    Both are found for the implementation that causes them.
    """

    class Wrong(FakeProcess):
        def ask(self, request: TakeSamples, *, counts: bool = True, shared_by: int = 1) -> TimedSamples | Outcome:
            answer = super().ask(request, counts=counts, shared_by=shared_by)
            if "n1" not in request.implementations or not isinstance(answer, TimedSamples):
                return answer
            added = {name: getattr(answer, name) + change[name] for name in change}
            return msgspec.structs.replace(answer, **added)

    class WrongSession(FakeSession):
        def get(self, names: list[str], _: WorkerKind) -> FakeProcess:
            self.started.append(list(names))
            return Wrong(self, names)

    found = run(WrongSession(), ["torch_mha", "n1"], processes=3)
    assert found["n1", 0].timing is None
    untimed = found["n1", 0].untimed
    assert isinstance(untimed, ExcludedFromTiming)
    assert isinstance(untimed.fault, expected)
    assert found["torch_mha", 0].timing is not None


def test_each_process_has_an_order_of_its_own() -> None:
    """The seed of the order of calls in a process is the number of the process: 0, 1, 2."""
    fake = FakeSession()
    run(fake, ["torch_mha", "n1"], processes=3)
    assert [request.seed for request in fake.requests] == [0, 1, 2]


def make_factor(process: int, name: str) -> float:
    """Return 2 for "slow"; for "open", 1.02 and 0.98 in turn, so that its verdict stays unknown; 1 for other names."""
    return {"slow": 2.0, "open": 0.98 + 0.04 * ((process + 1) % 2)}.get(name, 1.0)


def test_processes_are_added_where_a_verdict_is_unknown() -> None:
    """While a verdict is unknown, five processes at a time are added, until there are ``most`` processes.

    They time only the implementations with an unknown verdict, and the baseline.
    """
    fake = FakeSession(factor=make_factor)
    found = run(fake, ["slow", "torch_mha", "open"], processes=10, most=30)
    assert [request.implementations for request in fake.requests[:10]] == [["slow", "torch_mha", "open"]] * 10
    assert [request.implementations for request in fake.requests[10:]] == [["torch_mha", "open"]] * 20
    assert fake.started[10:] == [["torch_mha", "open"]] * 20
    lengths = {}
    for name in ("slow", "torch_mha", "open"):
        timing = found[name, 0].timing
        assert timing is not None
        lengths[name] = [len(process) for process in timing.samples_ns]
        assert len(timing.build_ns) == len(timing.first_call_ns) == (10 if name == "slow" else 30)
    assert lengths == {"slow": [9] * 10 + [0] * 20, "torch_mha": [9] * 30, "open": [9] * 30}
    base = found["torch_mha", 0].timing
    assert base is not None
    assert base.twin is not None
    assert len(base.twin.samples_ns) == 30


def test_no_process_is_added_once_it_is_decided_what_to_use() -> None:
    """If the answer is open after 10 processes and decided after 15, only five processes are added."""

    def factor(process: int, name: str) -> float:
        return 1.0 if name == "torch_mha" else 0.9 if process < 2 else 1.2

    fake = FakeSession(factor=factor)
    run(fake, ["torch_mha", "own"], processes=10, most=30)
    assert len(fake.requests) == 10 + STEP


@pytest.mark.parametrize("most", [None, 10])
def test_no_process_is_added_beyond_the_limit(most: int | None) -> None:
    """If ``most`` is None or the number of planned processes, no process is added for an unknown verdict."""
    fake = FakeSession(factor=make_factor)
    run(fake, ["torch_mha", "open"], processes=10, most=most)
    assert len(fake.requests) == 10


def time_own(fake: FakeSession, effort: Effort) -> tuple[Timing, Timing]:
    """Return the timings of the implementation "own" and of the reference, which are timed together."""
    found = {result.implementation: result.timing for result in start(fake, ["torch_mha", "own"], effort)}
    own, base = found["own"], found["torch_mha"]
    assert own is not None
    assert base is not None
    return own, base


@pytest.mark.parametrize(
    ("disturbed", "requests", "state"),
    [
        ((), 7, "faster"),
        ((0,), 12, "faster"),
        ((0, 1), 12, "faster"),
        ((0, 1, 8, 9, 10), 12, "inconclusive"),
        # Two of seven are undisturbed; at this share, only three of twelve would be.
        ((0, 1, 2, 3, 4), 7, "inconclusive"),
    ],
)
def test_processes_are_added_where_other_work_disturbed_some(
    disturbed: Sequence[int], requests: int, state: str
) -> None:
    """They are added up to ``most``, if the share of undisturbed processes would then be enough."""
    fake = FakeSession(factor=lambda process, name: 0.5 if name == "own" else 1.0)
    fake.waits = lambda process, name: process in disturbed
    effort = Effort(processes=7, most=12, budget_s=1.0)
    own, base = time_own(fake, effort)
    assert len(fake.requests) == requests
    assert decide_speed(own, base).state == state


@pytest.mark.parametrize(
    ("waiting", "requests", "state"),
    [((0,), 12, "faster"), ((0, 11), 12, "faster"), ((0, 10, 11), 12, "inconclusive"), ((0, 1), 7, "inconclusive")],
)
def test_an_implementation_cannot_choose_its_processes(waiting: Sequence[int], requests: int, state: str) -> None:
    """If only its own calls wait in more than a fifth of the processes, it gets no further ones, and no verdict."""
    fake = FakeSession(factor=lambda process, name: 0.5 if name == "own" else 1.0)
    fake.waits = lambda process, name: name == "own" and process in waiting
    effort = Effort(processes=7, most=12, budget_s=1.0)
    own, base = time_own(fake, effort)
    assert len(fake.requests) == requests
    assert decide_speed(own, base).state == state


def test_losing_processes_does_not_hide_that_an_implementation_is_slower() -> None:
    """An implementation that is slower in ten of thirteen processes is slower, whatever it did in the others."""
    fake = FakeSession(factor=lambda process, name: 1.5 if name == "own" else 1.0)
    fake.waits = lambda process, name: name == "own" and process > 9
    effort = Effort(processes=13, budget_s=1.0)
    own, base = time_own(fake, effort)
    assert decide_speed(own, base).state == "slower"


@pytest.mark.parametrize(("names", "requests"), [(["torch_mha", "open"], 12), (["torch_mha", "open", "own"], 7)])
def test_processes_are_added_until_it_is_decided_what_to_use(names: list[str], requests: int) -> None:
    """If another implementation is the fastest beyond doubt, an unknown verdict against the reference stays."""
    fake = FakeSession(factor=lambda process, name: 0.5 if name == "own" else make_factor(process, name))
    list(start(fake, names, Effort(processes=7, most=12, budget_s=1.0)))
    assert len(fake.requests) == requests


def test_a_comparison_adds_processes_for_the_verdicts_against_its_baseline() -> None:
    """With a baseline of the user, all verdicts that are open get further processes."""
    fake = FakeSession(factor=lambda process, name: 0.5 if name == "own" else make_factor(process, name))
    run(fake, ["torch_mha", "open", "own"], processes=7, most=12, against="torch_mha")
    assert len(fake.requests) == 12


def test_without_a_baseline_no_process_is_added() -> None:
    """If the baseline is not timed, there are no speed verdicts, and no processes are added for them."""
    fake = FakeSession(factor=make_factor)
    run(fake, ["open", "slow"], processes=10, most=30)
    assert len(fake.requests) == 10


def test_any_implementation_may_be_the_baseline() -> None:
    """The implementation that ``against`` names is timed twice, as A/A control, and the others are compared with it."""
    fake = FakeSession(factor=make_factor)
    found = run(fake, ["own", "torch_mha", "open"], processes=10, most=15, against="own")
    assert {request.baseline for request in fake.requests} == {"own"}
    with_control = {name for (name, _), result in found.items() if result.timing and result.timing.twin}
    assert with_control == {"own"}
    assert len(fake.requests) == 15
    assert fake.started[-1] == ["own", "open"]


def test_results_come_after_each_process() -> None:
    """The results of a case are yielded when a process has timed it, with all samples so far."""
    fake = FakeSession()
    results = start(fake, ["torch_mha"], Effort(processes=3, budget_s=GROUP_S / 2), cases=4)
    first = [next(results) for _ in range(3)]
    assert [one.case for one in first] == [CASE.format(0), CASE.format(1), CASE.format(0)]
    assert [one.timing.processes for one in first if one.timing] == [1, 1, 2]
    assert len(fake.requests) == 3
    assert len(list(results)) == 4 * 3 - 3


def test_an_excluded_implementation_is_told_once() -> None:
    """Its result, without samples, follows the process that shows its fault; the others keep their samples."""
    fake = FakeSession(factor=make_factor)
    fake.evaluate = lambda name: WRONG if name == "slow" and len(fake.requests) > 1 else PASSED
    found = list(start(fake, ["torch_mha", "slow"], Effort(processes=3, budget_s=1.0)))
    counts = [(one.implementation, one.timing.processes if one.timing else 0) for one in found]
    assert counts == [("torch_mha", 1), ("slow", 1), ("slow", 0), ("torch_mha", 2), ("torch_mha", 3)]


def test_decided_cases_get_no_further_processes() -> None:
    """A case on which it is decided what to use is not timed again beside the other cases of its group."""
    fake = FakeSession()
    fake.factor = lambda process, name: make_factor(
        process, name if fake.requests[-1].case == CASE.format(0) else "slow" if name == "open" else name
    )
    found = list(start(fake, ["torch_mha", "open"], Effort(processes=10, most=30, budget_s=1.0), cases=2))
    counts = {one.case: one.timing.processes for one in found if one.timing}
    assert counts == {CASE.format(0): 30, CASE.format(1): 10}


def keep_last(results: Iterable[Result]) -> list[Result]:
    """Return the last result of each implementation and case, which has all samples."""
    return list({(one.implementation, one.case): one for one in results}.values())


def interrupt_in_process(number: int, case: str, **effort: Any) -> dict[str, list[int]]:
    """Interrupt timing in a process on a case; return the numbers of processes of the yielded timings by case."""
    fake = FakeSession()

    def interrupt(names: list[str], process: int) -> Outcome | None:
        if process == number and fake.requests[-1].case == case:
            raise KeyboardInterrupt
        return None

    fake.fault = interrupt
    found: list[Result] = []
    results = start(fake, ["torch_mha", "slow"], Effort(processes=7, budget_s=1.0, **effort), cases=2)
    with pytest.raises(KeyboardInterrupt):
        found.extend(results)
    assert len(fake.started) == fake.closed
    counts: dict[str, list[int]] = {}
    for result in keep_last(found):
        assert result.timing is not None
        counts.setdefault(result.case, []).append(len(result.timing.samples_ns))
    return counts


def test_an_interrupted_case_keeps_the_samples_that_it_has() -> None:
    """After an interrupt, the cases under way have the samples of the processes that timed them."""
    assert interrupt_in_process(3, CASE.format(1)) == {CASE.format(0): [4, 4], CASE.format(1): [3, 3]}
    assert interrupt_in_process(0, CASE.format(1)) == {CASE.format(0): [1, 1]}
    assert interrupt_in_process(0, CASE.format(0)) == {}


def resume(names: Sequence[str], stored: Sequence[Result], cases: int) -> tuple[FakeSession, list[Result]]:
    """Time cases again in seven processes, with stored results of them; return the session and the results."""
    fake, effort = FakeSession(factor=make_factor), Effort(processes=7, budget_s=1.0)
    return fake, keep_last(start(fake, names, effort, cases=cases, progress=RecordingProgress(), stored=stored))


def test_a_resumed_run_adds_the_processes_that_an_interrupted_case_lacks() -> None:
    """Four processes had timed case 0 and three case 1: the others follow, and the result is that of one run."""
    names = ["torch_mha", "slow"]
    fake = FakeSession(factor=make_factor)
    fake.fault = lambda own, process: interrupt() if (process, fake.requests[-1].case) == (3, CASE.format(1)) else None
    interrupted: list[Result] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted.extend(start(fake, names, Effort(processes=7, budget_s=1.0), cases=2))
    resumed, found = resume(names, interrupted, 2)
    asked = [(request.seed, request.case) for request in resumed.requests]
    assert asked == [(3, CASE.format(1)), *((n, CASE.format(case)) for n in (4, 5, 6) for case in (0, 1))]
    whole = start(FakeSession(factor=make_factor), names, Effort(processes=7, budget_s=1.0), cases=2)
    by_name = {(one.implementation, one.case): one.timing for one in whole}
    assert {(one.implementation, one.case): one.timing for one in found} == by_name


def interrupt() -> None:
    """Interrupt, as Ctrl-C does."""
    raise KeyboardInterrupt


def test_a_resumed_large_case_is_judged_as_often_as_processes_are_left() -> None:
    """Two cases were interrupted after four processes and none: each is judged in three of its other processes."""
    names = ["torch_mha", "slow"]
    stored = list(start(FakeSession(factor=make_factor), names, Effort(processes=4, budget_s=1.0)))
    judged: list[str] = []
    fake = FakeSession(factor=make_factor)
    fake.evaluate = lambda name: (judged.append(fake.requests[-1].case), PASSED)[1]
    list(start(fake, names, Effort(processes=7, budget_s=1.0), cases=2, flop=SMALL_FLOP + 1, stored=stored))
    assert judged.count(CASE.format(0)) == judged.count(CASE.format(1)) == EVALUATED * len(names)


@pytest.mark.parametrize(
    "change", ["fewer processes", "another partner", "no timing", "no control", "no values", "frozen"]
)
def test_samples_that_are_not_interleaved_are_taken_anew(change: str) -> None:
    """If the stored timings of a case were not made together, all processes time the case again."""
    names = ["torch_mha", "slow"]
    effort = Effort(processes=3, budget_s=1.0)
    base, slow = keep_last(start(FakeSession(factor=make_factor), names, effort))
    assert base.timing is not None
    assert slow.timing is not None
    if change == "fewer processes":
        slow = replace(slow, timing=replace(slow.timing, samples_ns=slow.timing.samples_ns[:2]))
    elif change == "another partner":
        slow = replace(slow, timing=replace(slow.timing, interleaved_with=("torch_mha", "third")))
    elif change == "no timing":
        slow = replace(slow, timing=None)
    elif change == "frozen":
        slow = replace(slow, timing=replace(slow.timing, trainable=False))
    elif change == "no values":
        base = replace(base, timing=replace(base.timing, values=""))
    else:
        base = replace(base, timing=replace(base.timing, twin=None))
    resumed, _ = resume(names, [base, slow], 1)
    assert [request.seed for request in resumed.requests] == list(range(7))
    kept, _ = resume(names, list(start(FakeSession(factor=make_factor), names, effort)), 1)
    assert [request.seed for request in kept.requests] == [3, 4, 5, 6]


def test_a_resumed_case_has_only_the_time_that_is_left() -> None:
    """With a time limit for each case, the time of the stored samples counts as spent."""
    names = ["torch_mha", "slow"]
    stored = keep_last(start(FakeSession(factor=make_factor), names, Effort(processes=3, budget_s=1.0)))
    spent_s = sum(sum(map(sum, one.timing.samples_ns)) for one in stored if one.timing) / 1e9
    for limit_s, requests in ((spent_s, 0), (100.0, 4)):
        fake = FakeSession(factor=make_factor)
        list(start(fake, names, Effort(processes=7, budget_s=1.0, case_s=limit_s), stored=stored))
        assert len(fake.requests) == requests


@pytest.mark.parametrize(
    ("made", "asked", "again"),
    [
        ({"processes": 10, "most": 30}, {"processes": 10, "most": 30}, False),
        ({"processes": 10}, {"processes": 10}, False),
        ({"processes": 9}, {"processes": 10}, True),
        ({"processes": 15}, {"processes": 10, "most": 30}, True),
    ],
)
def test_a_resumed_run_times_incomplete_cases_again(made: dict[str, Any], asked: dict[str, Any], again: bool) -> None:
    """A case is timed again if it has fewer processes than planned, or fewer than it may have and no verdict."""
    names = ["torch_mha", "slow", "open"]
    found = run(FakeSession(factor=make_factor), names, **made)
    stored = {(name, CASE.format(0)): found[name, 0] for name in names}
    ready = _select_ready(stored, Effort(budget_s=1.0, **asked), None)
    assert list(ready) == (list(stored) if again else [])


def test_a_resumed_run_times_decided_cases_once() -> None:
    """A case whose verdicts are all known needs no further processes."""
    found = run(FakeSession(factor=make_factor), ["torch_mha", "slow"], processes=10)
    stored = {(name, CASE.format(0)): result for (name, _), result in found.items()}
    assert _select_ready(stored, Effort(processes=10, most=30, budget_s=1.0), None) == {}
    stored["slow", CASE.format(0)] = replace(stored["slow", CASE.format(0)], timing=None)
    assert _select_ready(stored, Effort(processes=10, most=30, budget_s=1.0), None) == stored


def test_a_case_without_implementations_starts_no_process() -> None:
    """If no implementation passed its probe on a case, no process is started."""
    fake = FakeSession()
    assert run(fake, []) == {}
    assert fake.started == []


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_processes_start_together_and_each_is_used_once(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are started in groups of ``STARTS``, but no more than needed in total; each is used once and closed."""
    monkeypatch.setattr(timing_processes, "STARTS", cores)
    fake = FakeSession()
    run(fake, ["torch_mha", "other"], processes=7)
    assert [request.seed for request in fake.requests] == list(range(7))
    assert len(fake.started) == fake.closed == 7


def test_a_process_that_was_started_ahead_is_used_after_an_exclusion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was started before an implementation was excluded is still used, but does not call that one."""
    monkeypatch.setattr(timing_processes, "STARTS", 2)
    fake = FakeSession(
        evaluate=lambda name: PASSED if name != "wrong" else Finding(check="any", status="failed", facts=(OFF,))
    )
    found = run(fake, ["torch_mha", "other", "wrong"], processes=7)
    assert found["wrong", 0].timing is None
    assert fake.requests[1].implementations == ["torch_mha", "other"]
    assert fake.started[1] == ["torch_mha", "other", "wrong"]
    assert len(fake.started) == fake.closed == 7


def test_an_interrupted_run_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that were started ahead are closed when the run is interrupted."""
    monkeypatch.setattr(timing_processes, "STARTS", 4)

    def interrupted(names: list[str], process: int) -> Outcome | None:
        raise KeyboardInterrupt

    fake = FakeSession(fault=interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(fake, ["torch_mha", "other"])
    assert len(fake.started) == fake.closed == 4


def test_each_interleaved_implementation_adds_a_time_out() -> None:
    """A timing request of three implementations has ``shared_by`` = 3, which multiplies its time limit."""
    fake = FakeSession(factor=lambda process, name: 1.2 if name == "slow" else 1.0)
    run(fake, ["torch_mha", "slow", "other"])
    assert set(fake.shared_by) == {3}


@pytest.mark.parametrize(("flop", "planned", "added"), [(SMALL_FLOP, 7, STEP), (SMALL_FLOP + 1, EVALUATED, EVALUATED)])
def test_timed_calls_of_some_processes_are_evaluated(flop: int, planned: int, added: int) -> None:
    """Every process stores judged calls; in large cases, those of a few processes, chosen at random, are evaluated."""
    factors = {0: 0.9, 1: 1.1}
    fake = FakeSession(factor=lambda process, name: factors[process % 2] if name == "other" else 1.0)
    found = run(fake, ["torch_mha", "other"], processes=7, most=7 + STEP, flop=flop)
    assert {tuple(request.checks) for request in fake.requests} == {("forward_parity",)}
    assert len(fake.requests) == 7 + STEP
    timing = found["other", 0].timing
    assert timing is not None
    assert timing.judged == planned + added


def test_a_case_gets_as_many_processes_as_its_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a process takes 1 s, a case with a limit of 2.5 s gets two processes.

    A case with a limit of 0.1 s gets one process, because the first process always runs.
    """
    clock = itertools.count()
    monkeypatch.setattr(timing.time, "monotonic", lambda: next(clock))
    # The steps of a case for which no time is left count as done.
    for limit_s, processes, left in ((2.5, 2, [14, 13, 12, 6]), (0.1, 1, [14, 7])):
        fake, progress = FakeSession(), RecordingProgress()
        run(fake, ["torch_mha", "other"], cases=2, case_s=limit_s, most=12, progress=progress)
        counts = Counter(request.case for request in fake.requests)
        assert set(counts.values()) == {processes}
        assert {request.limit_s for request in fake.requests} == {limit_s}
        assert len(fake.started) == fake.closed
        assert progress.left == left


def test_device_times_are_stored_beside_the_others() -> None:
    """Device times are stored by process; lists are empty for processes without samples and for missing counters."""
    on_device = Timing(
        samples_ns=((30, 31),), device_ns=((20, 21),), late=((False, True),), clock_before_mhz=((1980, 1980),),
        clock_after_mhz=((1980, 1755),), throttle_reasons=((0, 4),), threads=2, method="device and wall", clock="NVML",
        values="fresh", trainable=True, build_ns=(5,), first_call_ns=(7,),
    )  # fmt: skip
    assert add_process(None, 1, on_device).fill(3) == Timing(
        samples_ns=((), (30, 31), ()), device_ns=((), (20, 21), ()), late=((), (False, True), ()),
        clock_before_mhz=((), (1980, 1980), ()), clock_after_mhz=((), (1980, 1755), ()),
        throttle_reasons=((), (0, 4), ()), threads=2, method="device and wall", clock="NVML", values="fresh",
        trainable=True, build_ns=(5,), first_call_ns=(7,),
    )  # fmt: skip


def test_what_differs_between_processes_is_stored() -> None:
    """A timing names each method of its processes once; one process with fixed values makes it one of fixed values."""
    kept = None
    for process, method in enumerate(("launch hidden", "launch not hidden", "launch hidden")):
        taken = Timing(samples_ns=((1,),), threads=1, method=method, values="fresh" if process else "fixed")
        kept = add_process(kept, process, taken)
    assert kept is not None
    assert (kept.method, kept.values) == ("launch hidden; launch not hidden", "fixed")


@pytest.mark.parametrize(
    "change",
    [{"samples_ns": ((1,), (1,))}, {"judged": 1}, {"interleaved_with": ("other",)}],
    ids=lambda one: next(iter(one)),
)
def test_a_process_sends_its_own_samples_alone(change: dict[str, Any]) -> None:
    """The reply of a process has the samples of one process, and says nothing that only the runner knows."""
    wrong = replace(Timing(samples_ns=((1,),), threads=1), **change)
    with pytest.raises(ValueError, match="the samples that it took itself"):
        TimedSamples(samples={"own": wrong}, twin=None, observations={}, elapsed_ns=1, between_ns=0)
