"""Max length: the longest sequence that an implementation computes within a memory limit and a time limit per call.

The length is doubled until it does not fit, then bisected. All lengths run in the implementation's own worker. A length
whose predicted memory exceeds the limit is not run. Every length that is tried has a Result of the suite ``frontier``
with one finding, which says whether the length fits.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.analysis.max_length import FITS
from attnbench.cases import CaseId
from attnbench.plugins.registry import display_name
from attnbench.processes.candidate_requests import Describe, LongPass, Outcome, TryPass
from attnbench.processes.oracle_requests import DrawInputs
from attnbench.records.outcome_facts import CallOverLimit, LimitedMemory, OverMemoryLimit
from attnbench.records.types import FRONTIER, Finding, Memory, Result
from attnbench.runner.candidate_pool import Supervisor
from attnbench.runner.check_outcomes import make_finding
from attnbench.runner.parallelism import run_each
from attnbench.runner.probe import run_gating_checks
from attnbench.runner.profile import MODES, list_profile_cases
from attnbench.runner.progress import Progress
from attnbench.runner.refusal import find_refusal
from attnbench.runner.session import Plan, Session

__all__ = ["SHORTEST", "generate_lengths", "predict_bytes", "try_lengths"]

# ``SHORTEST``: shortest length, in tokens; an implementation must conform at this length. ``LONGEST``: longest length,
# 16 Mi tokens; at this length, one float32 tensor of width 256 takes 16 GiB.
SHORTEST, LONGEST = 64, 1 << 24
# Doubling ends at a length that does not fit, although half of it fits. The bisection starts with the interval between
# these two lengths. It ends when the interval is at most 1/``PARTS`` of its first size, or at most the shortest length.
PARTS = 8
# Number of measured lengths from which the memory at the next length is predicted: three points determine a parabola.
POINTS = 3

Stored = Mapping[tuple[str, str], Result]


def generate_lengths(*, shortest: int = SHORTEST, longest: int = LONGEST) -> Generator[int, bool, None]:
    """Yield the lengths to try; the caller sends back whether the length fits."""
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


def predict_bytes(known: Mapping[int, int], length: int) -> int | None:
    """Predict the memory at a length, in bytes, by a parabola through the three longest lengths in ``known``.

    ``known`` maps lengths to measured bytes. Return None if ``known`` has fewer than three lengths.

    The memory of attention is a quadratic polynomial of the length. The prediction is exact as long as the same buffers
    are allocated at every length. If a buffer stops growing, the prediction is too large rather than too small.
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


def try_lengths(
    session: Session,
    implementations: Sequence[str],
    shortest: Sequence[Plan],
    *,
    run: str,
    progress: Progress,
    done: Stored | None = None,
) -> Iterator[Result]:
    """Search for the max length of every implementation; yield the result of each length that is tried.

    ``shortest`` are plans at the shortest length, one for each pass. Results in ``done`` are used again.

    Raises: PluginError where an implementation cannot be loaded.
    """
    progress.begin("max length", len(implementations) * len(shortest))

    def job(name: str, plans: Sequence[Plan], worker: Supervisor) -> Iterator[Result]:
        for plan in plans:
            if plan.operator == worker.operator:
                yield from _Search(session, worker, name, plan, run, progress, done or {}).try_lengths()
                progress.done(plan.case)
            else:
                progress.done()

    yield from run_each(session, [(name, shortest) for name in implementations], job)


@dataclass(slots=True)
class _Search:
    """The search for the max length of one implementation and pass."""

    session: Session
    worker: Supervisor
    name: str
    # Plan of the case at the shortest length.
    plan: Plan
    run: str
    progress: Progress
    done: Stored

    def try_lengths(self) -> Iterator[Result]:
        """Yield the result of each length that is tried now; results in ``done`` are used, but not yielded.

        If the shortest length fails a check, no other length is tried.
        """
        limit = self.session.limits.compute_memory_limit_bytes()
        # Measured peak of one pass, in bytes above its inputs; the key is the length.
        known_bytes: dict[int, int] = {}
        candidates = generate_lengths()
        length = next(candidates)
        while True:
            case = self._make_case(length)
            self.progress.now(f"{self.name} {case}")
            before = self.done.get((display_name(self.name), case))
            result = before or self._try_length(length, case, predict_bytes(known_bytes, length), limit)
            if before is None:
                yield result
            if result.memory is not None:
                known_bytes[length] = result.memory.peak_bytes
            if result.findings[0].check != FITS:
                return
            try:
                length = candidates.send(result.findings[0].status == "passed")
            except StopIteration:
                return

    def _make_case(self, length: int) -> str:
        """Return the id of the profile case with this length, in the dtype and on the device of the plan."""
        planned = CaseId.parse(self.plan.case)
        name = next(name for name, called in MODES.items() if called == planned.mode)
        cases = list_profile_cases(self.session, [length], [name], of=(self.plan.operator,))
        if not cases:
            raise ValueError(f"{self.plan.operator} has no profile case of {length} tokens")
        return str(replace(planned, problem=CaseId.parse(cases[0]).problem))

    def _try_length(self, length: int, case: str, need: int | None, limit: int | None) -> Result:
        """Run one length and return its result; the shortest length must also pass the checks of the plan.

        ``need`` is the predicted memory and ``limit`` the memory limit, in bytes; None if unknown.
        """
        result = Result(run=self.run, implementation=display_name(self.name), case=case, findings=(), suite=FRONTIER)
        if length == SHORTEST:
            found = run_gating_checks(self.session, self.worker, self.name, self.plan)
            if any(finding.status != "passed" for finding in found):
                return replace(result, findings=found)
        if need is not None and limit is not None and need > limit:
            over = OverMemoryLimit(what="predicted", need_bytes=need, limit_bytes=limit)
            return replace(result, findings=(Finding(check=FITS, status="not_run", facts=(over,)),))
        outcome = self._ask_worker(length, case)
        limit_s = self.session.limits.work_s
        if isinstance(outcome, Outcome):
            return replace(result, findings=(make_finding(FITS, outcome),))
        took_s = outcome.took_s
        if took_s > limit_s:
            facts = (CallOverLimit(took_s=took_s, limit_s=limit_s),)
            late = Finding(check=FITS, status="timeout", facts=facts, measured=took_s, allowed=limit_s)
            return replace(result, findings=(late,))
        peak, threads = outcome.peak_bytes, outcome.threads
        memory = None if peak is None else Memory(peak_bytes=peak, threads=threads, method=outcome.method)
        fits = Finding(check=FITS, status="passed", measured=took_s, allowed=limit_s)
        return replace(result, findings=(fits,), memory=memory)

    def _ask_worker(self, length: int, case: str) -> LongPass | Outcome:
        limit_s = self.session.limits.work_s
        described = self.worker.ask(Describe(implementation=self.name, case=case), counts=False)
        if (refusal := find_refusal(described, limit_s)) is not None:
            return refusal
        cases = [self._make_case(tokens) for tokens in (SHORTEST, 2 * SHORTEST)]
        short, double = (self.session.ask_oracle(DrawInputs(case=one)) for one in cases)
        request = TryPass(
            implementation=self.name,
            case=case,
            factor=length // SHORTEST,
            short=short,
            double=double,
            limit_s=limit_s,
        )
        # A crash or a time-out is expected at lengths that are too long.
        outcome = self.worker.ask(request, counts=False)
        if _is_out_of_memory(outcome):
            # Earlier calls may have left memory allocated: try again in a fresh process.
            self.worker.renew()
            outcome = self.worker.ask(request, counts=False)
        limit = self.session.limits.memory_bytes
        if isinstance(outcome, Outcome) and _is_out_of_memory(outcome) and limit is not None:
            return Outcome(status=outcome.status, facts=(*outcome.facts, LimitedMemory(limit_bytes=limit)))
        return outcome


def _is_out_of_memory(outcome: LongPass | Outcome) -> bool:
    return isinstance(outcome, Outcome) and outcome.status == "out_of_memory"
