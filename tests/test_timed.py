"""Tests of the shared timing processes: who is out, who goes on, and when processes are added; none is started here."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from attnbench.measurement.sampling import Samples
from attnbench.plugins.registry import PluginError
from attnbench.records.types import Finding, Result, Timing
from attnbench.runner import timing
from attnbench.runner.progress import NoProgress, Progress
from attnbench.runner.session import Limits, Outcome, Plan, Session, Supervisor
from attnbench.runner.timed_case import _Samples
from attnbench.runner.timing import GROUP_S, STEP, Effort, time_cases

CASE = "multihead/B1.L{}.S8.E8.H2/bias/mask=none/regime=plain/seed=0/float32/cpu/inference"
CHECKS = ("forward_parity", "global_state_untouched")
CALL_NS = 1_000_000
PASSED: Outcome = {"status": "passed"}
# What a process does: it dies where one of these is among its names.
Fault = Callable[[list[str], int], Outcome | None]


@dataclass(slots=True, kw_only=True)
class Machine:
    """Stands in for a session: processes that answer at once, and all that was asked of them."""

    # Times of one call in units of the baseline's, by process and name.
    factor: Callable[[int, str], float] = lambda process, name: 1.0
    fault: Fault = lambda names, process: None
    load_fault: Callable[[list[str]], bool] = lambda names: False
    judged: Callable[[str], Outcome] = lambda name: PASSED
    limits: Limits = field(default_factory=Limits)
    started: list[list[str]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    closed: int = 0

    def supervise_together(self, names: list[str]) -> "Process":
        """A process, unless it cannot be loaded."""
        if self.load_fault(names):
            raise PluginError(f"cannot load {', '.join(names)}")
        self.started.append(list(names))
        return Process(self, names)

    def ask_oracle(self, do: str, **request: Any) -> Any:
        """Paths of inputs, and verdicts."""
        if do == "inputs":
            return "inputs"
        assert do == "judge"
        (file,) = request["observations"]
        return dict.fromkeys(request["checks"], self.judged(file))


class Process(Supervisor):
    """Answers as the machine says."""

    path_prefix = Path("nowhere")

    def __init__(self, machine: Machine, names: list[str]) -> None:
        self._machine = machine
        self.declared = {name: {"policies": {}} for name in names}
        self._closed = False
        self._child = None

    def close(self) -> None:
        """Count."""
        self._machine.closed += 1

    def ask(self, do: str, *, counts: bool = True, **request: Any) -> Outcome:
        """Samples of nine calls each."""
        assert do == "time"
        assert not counts
        self._machine.asked.append(request)
        names, process = request["implementations"], request["seed"]
        fault = self._machine.fault(names, process)
        if fault is not None:
            return fault
        samples = {name: _sample(self._machine.factor(process, name)) for name in names}
        twin = _sample(1.0) if request["baseline"] else None
        return {"samples": samples, "twin": twin, "threads": 1, "observations": {name: name for name in names}}


def _sample(factor: float) -> dict[str, Any]:
    times = [round(factor * CALL_NS)] * 9
    taken = Samples(times_ns=times, waited_ns=[0] * 9, switches=[0] * 9, cycles=list(range(9)), first_call_ns=7)
    return asdict(taken) | {"build_ns": 5}


@dataclass(slots=True)
class Told:
    """How many steps were left whenever one began."""

    left: list[int] = field(default_factory=list)
    todo: int = 0

    def begin(self, title: str, total: int, *, parallel: int = 1) -> None:
        """Of a new stage all."""
        del title, parallel
        assert self.todo == 0
        self.todo = total

    def now(self, text: str) -> None:
        """One begins."""
        del text
        self.left.append(self.todo)

    def done(self, label: str | None = None) -> None:
        """One less."""
        del label
        self.todo -= 1


def run(
    machine: Machine,
    names: Sequence[str],
    *,
    cases: int = 1,
    processes: int = 7,
    most: int | None = None,
    budget_s: float = 1.0,
    case_s: float | None = None,
    against: str | None = None,
    steps: Progress | None = None,
) -> dict[tuple[str, int], Result]:
    """Results by name and number of the case."""
    plans = [Plan(case=CASE.format(n), checks=CHECKS, missing=None, flop=1) for n in range(cases)]
    findings = tuple(Finding(check=check, status="passed") for check in CHECKS)
    ready = {
        (name, plan.case): Result(run="r", implementation=name, case=plan.case, findings=findings)
        for plan in plans
        for name in names
    }
    session: Session = machine  # type: ignore[assignment]
    effort = Effort(processes=processes, most=most, budget_s=budget_s, case_s=case_s)
    results = time_cases(session, plans, ready, progress=steps or NoProgress(), effort=effort, against=against)
    return {(r.implementation, int(r.case.split(".L")[1].split(".")[0])): r for r in results}


def dies(*guilty: str, status: str = "crashed") -> Fault:
    """A process dies that calls any of these."""

    def fault(names: list[str], process: int) -> Outcome | None:
        del process
        return {"status": status, "reason": "gone"} if set(guilty) & set(names) else None

    return fault


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_the_culprit_is_found_by_halves(count: int, place: int) -> None:
    """In as many fresh processes as halving takes, and one more at the most; all others are timed in every process."""
    names = ["torch_mha", *(f"n{i}" for i in range(1, count))]
    guilty = names[place]
    machine = Machine(fault=dies(guilty))
    found = run(machine, names)
    assert found[guilty, 0].timing is None
    assert found[guilty, 0].untimed == "crashed: in a timing process: gone"
    for name in names:
        if name != guilty:
            timing = found[name, 0].timing
            assert timing is not None
            assert len(timing.samples_ns) == 7
            assert set(timing.interleaved_with) == set(names) - {name, guilty}
    searched = len(machine.started) - 7
    assert searched <= count.bit_length() + 1
    assert machine.closed == len(machine.started)


def test_two_culprits_are_found_one_after_the_other() -> None:
    """And the rest is measured."""
    found = run(Machine(fault=dies("n1", "n6")), ["torch_mha", *(f"n{i}" for i in range(1, 8))])
    assert {name for (name, _), result in found.items() if result.timing is None} == {"n1", "n6"}


def test_who_is_named_is_not_searched_for() -> None:
    """An exception tells whose it is."""
    fault: Fault = lambda names, process: (  # noqa: E731
        {"status": "error", "reason": "raised", "culprit": "n2"} if "n2" in names and process == 3 else None
    )
    machine = Machine(fault=fault)
    found = run(machine, ["torch_mha", "n1", "n2"])
    assert found["n2", 0].untimed == "error: in a timing process: raised"
    assert len(machine.started) == 7


def test_a_death_that_happens_once_is_nobodys() -> None:
    """The case is timed again, and nobody is out."""
    deaths = [{"status": "crashed", "reason": "by chance"}]
    found = run(Machine(fault=lambda names, process: deaths.pop() if deaths else None), ["torch_mha", "n1"])
    assert all(result.timing is not None for result in found.values())


def test_a_death_of_all_together_is_told_of_all() -> None:
    """Where no part of them dies, twice, none of them is timed, and another case is."""

    def fault(names: list[str], process: int) -> Outcome | None:
        del process
        wanted = len(names) == 3 and machine.asked[-1]["case"] == CASE.format(0)
        return {"status": "timeout", "reason": "silent"} if wanted else None

    machine = Machine(fault=fault)
    found = run(machine, ["torch_mha", "n1", "n2"], cases=2)
    told = "timeout: in a timing process: silent; no subset of the implementations reproduced it"
    assert {found[name, 0].untimed for name in ("torch_mha", "n1", "n2")} == {told}
    assert all(found[name, 1].timing is not None for name in ("torch_mha", "n1", "n2"))


def test_who_ended_three_processes_is_timed_nowhere_else() -> None:
    """Every end costs a search, and a time-out costs minutes."""
    machine = Machine(fault=dies("n1", status="timeout"))
    found = run(machine, ["torch_mha", "n1", "n2"], cases=6)
    assert [found["n1", i].untimed for i in range(6)] == [
        *["timeout: in a timing process: gone"] * 3, *["crashed: it ended 3 timing processes"] * 3
    ]  # fmt: skip
    assert all(found["n2", i].timing is not None for i in range(6))


def test_who_cannot_be_loaded_beside_others_is_out() -> None:
    """Though it could be loaded alone when it was probed."""
    machine = Machine(load_fault=lambda names: "n1" in names)
    found = run(machine, ["torch_mha", "n1", "n2"], cases=2)
    assert {found["n1", i].untimed for i in range(2)} == {"crashed: in a timing process: cannot load n1"}
    assert all(found["n2", i].timing is not None for i in range(2))


def test_what_is_wrong_afterwards_has_no_timing_and_no_memory() -> None:
    """The finding of the check that was asked again stands; the others stay as they were."""

    def judged(name: str) -> Outcome:
        requirement = "The output equals the oracle's within the error budget."
        return {"status": "failed", "reason": f"{requirement} But it is off."} if name == "n1" else PASSED

    found = run(Machine(judged=judged), ["torch_mha", "n1"])
    assert found["torch_mha", 0].timing is not None
    wrong = found["n1", 0]
    assert wrong.untimed is not None
    assert wrong.untimed.startswith("failed: The output equals the oracle's within the error budget. After 9 timed")
    assert wrong.untimed.endswith("on new values: it is off.")
    assert [(finding.check, finding.status) for finding in wrong.findings] == [
        ("forward_parity", "failed"), ("global_state_untouched", "passed")
    ]  # fmt: skip


def test_only_what_comes_out_is_checked_again() -> None:
    """The checks that look at more were passed by a probe of its own."""
    machine = Machine()
    run(machine, ["torch_mha", "n1"])
    assert {tuple(request["checks"]) for request in machine.asked} == {(), ("forward_parity",)}


def test_each_process_has_an_order_of_its_own() -> None:
    """Its number is its seed."""
    machine = Machine()
    run(machine, ["torch_mha", "n1"], processes=3)
    assert [request["seed"] for request in machine.asked] == [0, 1, 2]


def near(process: int, name: str) -> float:
    """One that differs by 2 % in every second process: undecided, however often; another that is plainly slower."""
    return {"slow": 2.0, "open": 1.0 + 0.02 * (process % 2)}.get(name, 1.0)


def test_processes_are_added_where_a_contest_is_undecided() -> None:
    """In fives up to a limit; only the undecided take part, and the baseline with its twin."""
    machine = Machine(factor=near)
    found = run(machine, ["slow", "torch_mha", "open"], processes=10, most=30)
    assert [request["implementations"] for request in machine.asked[:10]] == [["slow", "torch_mha", "open"]] * 10
    assert [request["implementations"] for request in machine.asked[10:]] == [["torch_mha", "open"]] * 20
    assert machine.started[10:] == [["torch_mha", "open"]] * 20
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


def test_no_process_is_added_once_all_is_decided() -> None:
    """Here after five more: the first ten were undecided by chance."""

    def late(process: int, name: str) -> float:
        return 1.0 if name == "torch_mha" or process < 2 else 1.2

    machine = Machine(factor=late)
    run(machine, ["torch_mha", "own"], processes=10, most=30)
    assert len(machine.asked) == 10 + STEP


@pytest.mark.parametrize("most", [None, 10])
def test_no_process_is_added_where_there_may_be_no_more(most: int | None) -> None:
    """A quick run stays quick; what is undecided is told so."""
    machine = Machine(factor=near)
    run(machine, ["torch_mha", "open"], processes=10, most=most)
    assert len(machine.asked) == 10


def test_without_a_baseline_nothing_is_undecided() -> None:
    """There is no contest."""
    machine = Machine(factor=near)
    run(machine, ["open", "slow"], processes=10, most=30)
    assert len(machine.asked) == 10


def test_any_of_them_may_be_the_baseline() -> None:
    """Then it has the twin, and what is undecided against it is what decides."""
    machine = Machine(factor=near)
    found = run(machine, ["own", "torch_mha", "open"], processes=10, most=15, against="own")
    assert {request["baseline"] for request in machine.asked} == {"own"}
    twins = {name for (name, _), result in found.items() if result.timing and result.timing.twin}
    assert twins == {"own"}
    assert len(machine.asked) == 15
    assert machine.started[-1] == ["own", "open"]


def test_results_come_as_each_group_of_cases_is_done() -> None:
    """A long profile that is ended in the middle has what it had finished."""
    machine = Machine()
    plans = [Plan(case=CASE.format(n), checks=CHECKS, missing=None, flop=1) for n in range(4)]
    findings = (Finding(check="forward_parity", status="passed"),)
    ready = {
        ("torch_mha", p.case): Result(run="r", implementation="torch_mha", case=p.case, findings=findings)
        for p in plans
    }
    session: Session = machine  # type: ignore[assignment]
    effort = Effort(processes=3, budget_s=GROUP_S / 2)
    results = time_cases(session, plans, ready, progress=NoProgress(), effort=effort)
    next(results)
    assert {request["case"] for request in machine.asked} == {CASE.format(0), CASE.format(1)}
    assert len(machine.asked) == 6
    assert len(list(results)) == 3


def test_a_case_that_nobody_is_fit_for_costs_nothing() -> None:
    """No process is started."""
    machine = Machine()
    assert run(machine, []) == {}
    assert machine.started == []


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_processes_start_together_and_each_is_used_once(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are cores, never more than are left; each is closed."""
    monkeypatch.setattr(timing, "STARTS", cores)
    machine = Machine()
    run(machine, ["torch_mha", "other"], processes=7)
    assert [request["seed"] for request in machine.asked] == list(range(7))
    assert len(machine.started) == machine.closed == 7


def test_a_process_that_was_started_ahead_serves_those_who_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds who is out, too, and does not call him."""
    monkeypatch.setattr(timing, "STARTS", 2)
    machine = Machine(judged=lambda name: PASSED if name != "wrong" else {"status": "failed", "reason": "It is wrong."})
    found = run(machine, ["torch_mha", "other", "wrong"], processes=7)
    assert found["wrong", 0].timing is None
    assert machine.asked[1]["implementations"] == ["torch_mha", "other"]
    assert machine.started[1] == ["torch_mha", "other", "wrong"]
    assert len(machine.started) == machine.closed == 7


def test_nothing_is_left_running_when_a_run_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was started ahead ends with it."""
    monkeypatch.setattr(timing, "STARTS", 4)

    def interrupted(names: list[str], process: int) -> Outcome | None:
        raise KeyboardInterrupt

    machine = Machine(fault=interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(machine, ["torch_mha", "other"])
    assert len(machine.started) == machine.closed == 4


def test_each_of_those_in_turns_may_take_the_time_out() -> None:
    """Slow calls of many take longer together than one may take alone."""
    machine = Machine(factor=lambda process, name: 1.2 if name == "slow" else 1.0)
    run(machine, ["torch_mha", "slow", "other"])
    assert {request["shared_by"] for request in machine.asked} == {3}


def test_checks_are_asked_again_in_the_first_process_and_in_the_last() -> None:
    """Of those that were planned, and again of those that were added."""
    factors = {0: 1.0, 1: 1.1}
    machine = Machine(factor=lambda process, name: factors[process % 2] if name == "other" else 1.0)
    run(machine, ["torch_mha", "other"], processes=7, most=7 + STEP)
    assert [bool(request["checks"]) for request in machine.asked] == [
        process in (0, 6, 6 + STEP) for process in range(7 + STEP)
    ]


def test_a_case_gets_as_many_processes_as_its_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a second here: of two and a half, two; of none, the first all the same. Others go on."""
    clock = itertools.count()
    monkeypatch.setattr(timing.time, "monotonic", lambda: next(clock))
    # A case whose time is over leaves no step to wait for.
    for limit_s, processes, left in ((2.5, 2, [14, 13, 12, 6]), (0.1, 1, [14, 7])):
        machine, steps = Machine(), Told()
        run(machine, ["torch_mha", "other"], cases=2, case_s=limit_s, most=12, steps=steps)
        asked = Counter(request["case"] for request in machine.asked)
        assert set(asked.values()) == {processes}
        assert {request["limit_s"] for request in machine.asked} == {limit_s}
        assert len(machine.started) == machine.closed
        assert steps.left == left


def test_what_a_device_timed_is_stored_beside_the_rest() -> None:
    """Process by process; what nobody counted stays away, and who took no part in a process has nothing of it."""
    kept = _Samples()
    on_device = Samples(
        times_ns=[30, 31], device_ns=[20, 21], late=[False, True], clock_before_mhz=[1980, 1980],
        clock_after_mhz=[1980, 1755], throttle_reasons=[0, 4], first_call_ns=7, method="device and wall", clock="NVML",
    )  # fmt: skip
    kept.add(1, asdict(on_device) | {"build_ns": 5})
    assert kept.to_timing(3, 2) == Timing(
        samples_ns=((), (30, 31), ()), device_ns=((), (20, 21), ()), late=((), (False, True), ()),
        clock_before_mhz=((), (1980, 1980), ()), clock_after_mhz=((), (1980, 1755), ()),
        throttle_reasons=((), (0, 4), ()), threads=2, method="device and wall", clock="NVML", build_ns=(5,),
        first_call_ns=(7,),
    )  # fmt: skip


def test_processes_that_took_times_otherwise_are_all_told() -> None:
    """By their methods, each once."""
    kept = _Samples()
    for process, method in enumerate(("launch hidden", "launch not hidden", "launch hidden")):
        kept.add(process, asdict(Samples(times_ns=[1], method=method)) | {"build_ns": 5})
    assert kept.to_timing(3, 1).method == "launch hidden; launch not hidden"
