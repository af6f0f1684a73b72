"""The longest sequence that an implementation gets through, within a memory and a time of one call.

Lengths are doubled until one does not fit, and then halved between. Each is tried in the implementation's own worker;
one whose memory is predicted to be out of reach is not tried. Every length that was looked at is a Result of the suite
``frontier``, with one finding: whether it fits.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnbench.analysis.max_length import FITS
from attnbench.plugins.registry import shown
from attnbench.records.types import FRONTIER, Finding, Memory, Result
from attnbench.runner.probe import gate
from attnbench.runner.profile import MODES, profile_cases
from attnbench.runner.progress import Progress
from attnbench.runner.refusal import declined
from attnbench.runner.session import Outcome, Plan, Session, Supervisor

__all__ = ["SHORTEST", "WORKER", "find_frontiers", "lengths", "predicted"]

# Module that a session's workers must run.
WORKER = "attnbench.workers.max_length_worker"
# Shortest length, which must conform, and longest that is tried, in tokens: 16 Mi tokens of width 256 are 16 GiB.
SHORTEST, LONGEST = 64, 1 << 24
# Parts of the last doubling: the longest that fits and the shortest that does not are one of them apart.
PARTS = 8
# What the memory of one length is predicted from: with three, a square of the length is met exactly.
POINTS = 3

Stored = Mapping[tuple[str, str], Result]


def lengths(*, shortest: int = SHORTEST, longest: int = LONGEST) -> Generator[int, bool, None]:
    """Lengths to try, in turn; what is sent says whether the last one fits."""
    low, high = 0, shortest
    while (yield high):
        low, high = high, 2 * high
        if high > longest:
            return
    step = max(low // PARTS, shortest)
    while high - low > step:
        middle = (low + high) // 2
        if (yield middle):
            low = middle
        else:
            high = middle


def predicted(known: Mapping[int, int], length: int) -> int | None:
    """Value of the parabola through the three longest known lengths; None where fewer are known.

    Memory of attention is a sum of a square of the length, a multiple of it and a constant: exact where buffers do not
    change in kind, and too large rather than too small where one stops growing.
    """
    if len(known) < POINTS:
        return None
    nodes = sorted(known)[-POINTS:]
    value = 0.0
    for node in nodes:
        share = 1.0
        for other in nodes:
            share *= 1 if other == node else (length - other) / (node - other)
        value += share * known[node]
    return round(value)


def find_frontiers(
    session: Session,
    implementations: Sequence[str],
    shortest: Sequence[Plan],
    *,
    run: str,
    steps: Progress,
    done: Stored | None = None,
) -> Iterator[Result]:
    """Result of every length that is tried, of every implementation and of each plan at the shortest length.

    What is ``done`` is not tried again. The session's workers must run ``WORKER``.

    Raises: PluginError where an implementation cannot be loaded.
    """
    steps.begin("frontier", len(implementations) * len(shortest))
    for name, worker in session.supervised(implementations):
        for plan in shortest:
            if plan.operator == worker.operator:
                yield from _Search(session, worker, name, plan, run, steps, done or {}).results()
                steps.done(plan.case)
            else:
                steps.done()


@dataclass(slots=True)
class _Search:
    """One implementation in one pass."""

    session: Session
    worker: Supervisor
    name: str
    # The case at the shortest length.
    plan: Plan
    run: str
    steps: Progress
    done: Stored

    def results(self) -> Iterator[Result]:
        """Result of each length that is tried; a single one where the shortest does not conform."""
        limit = self.session.limits.memory_limit_bytes()
        # Bytes of one pass above its inputs, by length.
        taken: dict[int, int] = {}
        turn = lengths()
        length = next(turn)
        while True:
            case = self._case(length)
            self.steps.now(f"{self.name} {case}")
            before = self.done.get((shown(self.name), case))
            result = before or self._tried(length, case, predicted(taken, length), limit)
            if before is None:
                yield result
            if result.memory is not None:
                taken[length] = result.memory.peak_bytes
            if result.findings[0].check != FITS:
                return
            try:
                length = turn.send(result.findings[0].status == "passed")
            except StopIteration:
                return

    def _case(self, length: int) -> str:
        """The case at a length, in the plan's dtype and on its device."""
        *_, dtype, device, mode = self.plan.case.split("/")
        name = next(name for name, called in MODES.items() if called == mode)
        cases = profile_cases(self.session, [length], [name], of=(self.plan.operator,))
        if not cases:
            raise ValueError(f"{self.plan.operator} has no case of length {length} for a profile")
        return "/".join([*cases[0].split("/")[:-3], dtype, device, mode])

    def _tried(self, length: int, case: str, need: int | None, limit: int | None) -> Result:
        """What came of one length; the shortest must pass its checks, too."""
        result = Result(run=self.run, implementation=shown(self.name), case=case, findings=(), suite=FRONTIER)
        if length == SHORTEST:
            found = gate(self.session, self.worker, self.name, self.plan)
            if any(finding.status != "passed" for finding in found):
                return replace(result, findings=found)
        if need is not None and limit is not None and need > limit:
            reason = f"predicted {_gib(need)}, over the limit of {_gib(limit)} (--memory-limit)"
            return replace(result, findings=(Finding(check=FITS, status="not_run", reason=reason),))
        told = self._asked(length, case)
        limit_s = self.session.limits.work_s
        if "status" in told:
            return replace(result, findings=(Finding(check=FITS, status=told["status"], reason=told["reason"]),))
        took_s = told["took_s"]
        if took_s > limit_s:
            reason = f"a call took {took_s:.3g} s, over the limit of {limit_s:g} s (--work-limit)"
            late = Finding(check=FITS, status="timeout", reason=reason, measured=took_s, allowed=limit_s)
            return replace(result, findings=(late,))
        peak = told["peak_bytes"]
        memory = None if peak is None else Memory(peak_bytes=peak, threads=told["threads"], method=told["method"])
        held = Finding(check=FITS, status="passed", measured=took_s, allowed=limit_s)
        return replace(result, findings=(held,), memory=memory)

    def _asked(self, length: int, case: str) -> Outcome:
        limit_s = self.session.limits.work_s
        described = self.worker.ask("describe", counts=False, implementation=self.name, case=case)
        if (refusal := declined(described, limit_s)) is not None:
            return refusal
        short, double = (self.session.judge("inputs", case=self._case(n)) for n in (SHORTEST, 2 * SHORTEST))
        asked: dict[str, Any] = {
            "implementation": self.name,
            "case": case,
            "factor": length // SHORTEST,
            "limit_s": limit_s,
        }
        asked |= {"short": short, "double": double}
        # A length that ends the process is what is looked for: it does not count as one of its deaths.
        told = self.worker.ask("attempt", counts=False, **asked)
        if told.get("status") == "out_of_memory":
            # What earlier calls left behind in the process is not this length's.
            self.worker.renew()
            told = self.worker.ask("attempt", counts=False, **asked)
        limit = self.session.limits.memory_bytes
        if told.get("status") == "out_of_memory" and limit is not None:
            told["reason"] += f", under the limit of {_gib(limit)} (--memory-limit)"
        return told


def _gib(count: int) -> str:
    return f"{count / 2**30:.3g} GiB"
