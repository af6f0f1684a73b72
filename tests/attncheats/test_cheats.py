"""Tests of cheats: each is stopped by the defence that it names, and succeeds without it; oddities are never accused.

Every timing runs in a process of its own. A cheat succeeds if its time, in multiples of the reference's time, is well
below that of the honest labour which it claims to do.
"""

import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from attnbench.interface import Policies
from attnbench.plugins.adapters import load_implementation
from attnbench.processes.candidate_requests import Defence, TimedSamples
from attnbench.processes.oracle_requests import DrawInputs, Evaluate
from attnbench.records.outcome_facts import ExcludedFromTiming, SlowsOthers
from attnbench.records.types import Result
from attnbench.runner.candidate_pool import Limits
from attnbench.runner.progress import NoProgress
from attnbench.runner.session import Session
from attnbench.runner.timing import JUDGED, time_cases
from attnbench.runner.timing_faults import SLOWED, SLOWED_NS
from attnbench.runner.timing_processes import Effort, _find_wrong_total
from attnbench.words.findings import describe_facts, describe_finding
from attnbench.workers.oracle_worker import OracleWorker
from attncheats.catalogue import CHEATS, ODDITIES
from attncheats.cheat import Cheat, Oddity
from timed_children import TimedChild, time_in_child
from timed_runs import PASSED

pytestmark = pytest.mark.long

REFERENCE = "attnzoo.torch_mha:TORCH_MHA"
HONEST = ODDITIES["plain_labour"]
CASE = "multihead/B2.L{0}.S{0}.E{1}.H4/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/{2}"
CHECKS = {"inference": ("forward_parity",), "train": ("forward_parity", "input_gradients", "parameter_gradients")}
BUDGET_S = 0.1
# The same for cheats that slow the clock: they are found once they hide more time than a busy machine delays a reply.
TOTALS_S = 0.4
# A cheat succeeds if its time is below this part of the time of the honest labour.
ROOM = 0.75
# Number of attempts. A wrong answer is not judged if one of the few right ones is chosen, and times vary.
ATTEMPTS = 4
# The same for a cheat without the defence that stops it: a busy machine may expose it, or take its gain.
UNDEFENDED_ATTEMPTS = 16
# Defences that one process cannot show: the runner compares several processes.
OF_THE_RUNNER = ("alone",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What came of timing an implementation beside the reference."""

    # Why the implementation is excluded; empty if it is not.
    stopped: str
    # Median times of a call of the reference and of the implementation, in nanoseconds; nothing without samples.
    medians_ns: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        """Median time of the implementation, in multiples of the reference's."""
        reference_ns, own_ns = self.medians_ns
        return own_ns / reference_ns


@dataclass(slots=True)
class Timer:
    """Times implementations beside the reference, each time in a process of its own, and judges them as the runner."""

    folder: Path
    oracle: OracleWorker
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _honest: dict[tuple[str, bool], float] = field(default_factory=dict)

    def time(
        self,
        *places: str,
        mode: str = "inference",
        large: bool = False,
        without: frozenset[Defence] = frozenset(),
        budget_s: float = BUDGET_S,
    ) -> Seen:
        """Time the reference and another implementation, with or without some defences."""
        case = CASE.format(*((256, 128) if large else (64, 64)), mode)
        answer, elapsed_ns = time_in_child(
            TimedChild(
                places=(REFERENCE, *places),
                case=case,
                inputs=self.oracle.draw_inputs(DrawInputs(case=case)),
                checks=CHECKS[mode],
                observation=str(self.folder / f"seen-{next(self._numbers)}"),
                budget_s=budget_s,
                without=without,
            )
        )
        if not isinstance(answer, TimedSamples):
            return Seen(stopped=describe_facts(answer.facts))
        wrong = None if "totals" in without else _find_wrong_total(answer, elapsed_ns)
        failed = [] if "judging" in without else self._judge(case, mode, answer)
        return Seen(
            stopped="; ".join([describe_facts(wrong.facts)] if wrong else failed),
            medians_ns=tuple(statistics.median(answer.samples[place].samples_ns[0]) for place in (REFERENCE, *places)),
        )

    def _judge(self, case: str, mode: str, answer: TimedSamples) -> list[str]:
        """Return the reasons of the checks that the judged calls fail."""
        reasons = []
        for file in answer.observations.values():
            request = Evaluate(
                implementation="a_cheat", case=case, checks=list(CHECKS[mode]), observations=[file], policies=Policies()
            )
            found = self.oracle.evaluate(request).values()
            reasons += [describe_finding(one) for one in found if one.status != "passed"]
        return reasons

    def time_honest(self, mode: str, *, large: bool) -> float:
        """Return the time of the honest labour, in multiples of the reference's time."""
        if (mode, large) not in self._honest:
            seen = [self.time(HONEST.place, mode=mode, large=large) for _ in range(3)]
            assert [one.stopped for one in seen] == ["", "", ""]
            self._honest[mode, large] = statistics.median(one.ratio for one in seen)
        return self._honest[mode, large]


@pytest.fixture(scope="module")
def timer(tmp_path_factory: pytest.TempPathFactory) -> Timer:
    """Timer with an oracle worker in this process."""
    folder = tmp_path_factory.mktemp("cheats")
    return Timer(folder, OracleWorker(folder))


def select(*, of_the_runner: bool) -> list[Cheat]:
    """Return the cheats that defences of the runner stop, or the others."""
    return [cheat for cheat in CHEATS.values() if (cheat.stopped_by in OF_THE_RUNNER) is of_the_runner]


def name_one(one: Cheat | Oddity) -> str:
    """Return the name of a cheat or oddity, which is the id of a test."""
    return one.name


def test_there_are_enough_cheats_and_oddities() -> None:
    """The lists are long enough to be a measure, names are unique, and a worker can load each by its place."""
    assert len(CHEATS) >= 28
    assert len(ODDITIES) >= 12
    assert not CHEATS.keys() & ODDITIES.keys()
    for one in (*CHEATS.values(), *ODDITIES.values()):
        assert load_implementation(one.place).name == one.name
    for cheat in CHEATS.values():
        assert cheat.source.startswith(("https://", "constructed: "))


def retry(succeeds: Callable[[], bool], attempts: int = ATTEMPTS) -> bool:
    """Return whether one of several attempts succeeds."""
    return any(succeeds() for _ in range(attempts))


@pytest.mark.extended
@pytest.mark.parametrize("cheat", select(of_the_runner=False), ids=name_one)
def test_a_cheat_is_stopped_by_its_defence(timer: Timer, cheat: Cheat) -> None:
    """With all defences, the cheat is excluded or no faster than honest; without those that it names, it succeeds.

    A cheat that takes cores gains nothing on a busy machine, and one that turns off the reference's fast path gains
    nothing where the other path is as fast. Without the defence, such a cheat must only not be excluded. With it, the
    cheat is no faster than the honest labour at the same load: both are timed one after the other.
    """
    takes_cores = cheat.stopped_by in ("processor", "threads")
    may_gain_nothing = takes_cores or cheat.name == "fast_path_off"
    large = takes_cores or cheat.stopped_by == "totals"
    limit = ROOM * timer.time_honest(cheat.mode, large=large)

    def gets_through(without: frozenset[Defence] = frozenset()) -> bool:
        budget_s = TOTALS_S if cheat.stopped_by == "totals" else BUDGET_S
        seen = timer.time(cheat.place, mode=cheat.mode, large=large, without=without, budget_s=budget_s)
        if seen.stopped or (without and may_gain_nothing):
            return not seen.stopped
        if seen.ratio >= limit:
            return False
        return bool(without) or seen.ratio < ROOM * timer.time(HONEST.place, mode=cheat.mode, large=large).ratio

    assert retry(lambda: not gets_through())
    assert retry(lambda: gets_through(cheat.defences), UNDEFENDED_ATTEMPTS)


@pytest.mark.extended
@pytest.mark.parametrize("oddity", ODDITIES.values(), ids=name_one)
def test_an_oddity_is_not_accused(timer: Timer, oddity: Oddity) -> None:
    """An honest oddity is timed with all defences, and the results of its timed calls pass."""
    assert timer.time(oddity.place).stopped == ""


@pytest.mark.extended
@pytest.mark.parametrize("cheat", select(of_the_runner=True), ids=name_one)
def test_a_cheat_slows_the_reference_beside_it(timer: Timer, cheat: Cheat) -> None:
    """In one process without its other defences, the cheat succeeds; the reference alone is faster than is allowed."""
    limit = ROOM * timer.time_honest("inference", large=False)
    seen = timer.time(cheat.place, without=cheat.also_by)
    assert seen.stopped == ""
    assert seen.ratio < limit
    assert timer.time(cheat.place).stopped
    (alone_ns,) = timer.time().medians_ns
    assert seen.medians_ns[0] > SLOWED * alone_ns + SLOWED_NS


@pytest.mark.extended
def test_the_runner_excludes_a_cheat_that_slows_the_reference() -> None:
    """The runner compares the reference's time with that in a process of its own, and excludes the cheat."""
    case, names = CASE.format(64, 64, "inference"), [REFERENCE, CHEATS["slow_method_of_others"].place]
    ready = {(name, case): Result(run="run-1", implementation=name, case=case, findings=(PASSED,)) for name in names}
    with Session(limits=Limits(threads=1)) as session:
        plans = session.plan([case], JUDGED)
        effort = Effort(processes=1, budget_s=BUDGET_S)
        results = {
            one.implementation: one
            for one in time_cases(
                session,
                plans,
                ready,
                progress=NoProgress(),
                effort=effort,
                against=REFERENCE,
                without=CHEATS["slow_method_of_others"].also_by,
            )
        }
    assert results[REFERENCE].timing is not None
    untimed = results[names[1]].untimed
    assert isinstance(untimed, ExcludedFromTiming)
    assert isinstance(untimed.fault, SlowsOthers)
