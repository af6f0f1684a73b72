"""The score of the timing's defences: each cheat is timed with all of them, and without those that it names."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnbench.processes.candidate_requests import Defence
from attnbench.records.facts import Reason
from attnbench.records.types import Finding, Result, Timing
from attnbench.runner.candidate_pool import Limits
from attnbench.runner.profile import list_gating_checks
from attnbench.runner.progress import NoProgress, Progress
from attnbench.runner.session import Session
from attnbench.runner.timing import time_cases
from attnbench.runner.timing_processes import Effort
from attncheats.cheat import Cheat, Oddity

__all__ = ["CheatOutcome", "Timed", "try_cheats"]

REFERENCE = "torch_mha"
# The implementation that does the honest work which every cheat claims to do.
HONEST = "attncheats.honest:PlainLabour"
# A small case, of which a call takes a few hundred microseconds.
CASE = "multihead/B2.L64.S64.E64.H4/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/{}"
# In the larger case, a call takes a few milliseconds: a second core, or a busy thread, matters to it.
LARGE_CASE = CASE.replace("L64.S64.E64", "L256.S256.E128")
LARGE_FOR: frozenset[Defence] = frozenset({"processor", "threads", "totals"})
# Threads of every call, and the effort of each timing. A cheat that slows the clock is found once it hides more time
# than a busy machine delays a reply, so the timings of large cases take longer.
THREADS = 1
EFFORT, LARGE_EFFORT = Effort(processes=2, budget_s=0.2), Effort(processes=2, budget_s=0.4)
# A cheat looks faster than it is if its time is below this part of the time of the honest work.
ROOM = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What came of timing an implementation beside the reference."""

    # Why the implementation, or the reference, has no time; None if both have one.
    untimed: Reason | None
    # Its time, in multiples of the reference's; None without a time.
    ratio: float | None
    # Its time, in multiples of that of the honest work in the same run, or of the reference's if the honest work has no
    # time; None without a time.
    of_honest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheatOutcome:
    """A cheat or an honest oddity, and what came of it."""

    tried: Cheat | Oddity
    # With all defences.
    defended: Timed
    # Without the defences that the cheat names; None for an oddity.
    undefended: Timed | None

    @property
    def is_stopped(self) -> bool:
        """Whether the cheat has no time with all defences, or one that does not look faster than honest work."""
        return not self._gets_through(self.defended)

    @property
    def succeeds_undefended(self) -> bool:
        """Whether the cheat looks faster than it is without the defences that it names."""
        return self.undefended is not None and self._gets_through(self.undefended)

    @property
    def is_accused(self) -> bool:
        """Whether an honest oddity has no time."""
        return isinstance(self.tried, Oddity) and self.defended.ratio is None

    def _gets_through(self, timed: Timed) -> bool:
        return timed.of_honest is not None and timed.of_honest < ROOM


def try_cheats(tried: Sequence[Cheat | Oddity], *, progress: Progress) -> Iterator[CheatOutcome]:
    """Time each cheat with all defences and without those that it names, and each oddity with all defences."""
    progress.begin("cheats", len(tried))
    with Session(limits=Limits(threads=THREADS)) as session:
        for one in tried:
            case = _choose_case(one)
            progress.now(one.name)
            without = one.defences if isinstance(one, Cheat) else frozenset()
            yield CheatOutcome(
                tried=one,
                defended=_time(session, one.place, case),
                undefended=_time(session, one.place, case, without) if without else None,
            )
            progress.done(one.name)


def _choose_case(tried: Cheat | Oddity) -> str:
    if isinstance(tried, Oddity):
        return CASE.format("inference")
    return (LARGE_CASE if tried.stopped_by in LARGE_FOR else CASE).format(tried.mode)


def _time(session: Session, place: str, case: str, without: frozenset[Defence] = frozenset()) -> Timed:
    """Time an implementation beside the reference and the honest work, without some defences."""
    ready = {(own, case): _make_ready(own, case) for own in (REFERENCE, HONEST, place)}
    plans = session.plan([case], list_gating_checks())
    effort = LARGE_EFFORT if case.startswith(LARGE_CASE.partition("{")[0]) else EFFORT
    results = time_cases(session, plans, ready, progress=NoProgress(), effort=effort, without=without)
    found = {result.implementation: result for result in results}
    own, reference, honest = (found[one].timing for one in (place, REFERENCE, HONEST))
    if own is None or reference is None:
        return Timed(untimed=found[place].untimed or found[REFERENCE].untimed, ratio=None, of_honest=None)
    return Timed(untimed=None, ratio=_divide(own, reference), of_honest=_divide(own, honest or reference))


def _divide(own: Timing, other: Timing) -> float:
    """Return the ratio of two times that were measured in the same processes."""
    ratios = [
        statistics.median(ours) / statistics.median(theirs)
        for ours, theirs in zip(own.samples_ns, other.samples_ns, strict=True)
    ]
    return statistics.median(ratios)


def _make_ready(implementation: str, case: str) -> Result:
    """Return a result of an implementation that passed its checks, so that it may be timed."""
    passed = Finding(check="forward_parity", status="passed")
    return Result(run="cheats", implementation=implementation, case=case, findings=(passed,))
