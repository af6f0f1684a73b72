"""Supplementary cases, from the operator's fixed pool, for an implementation that refuses cases of a suite.

A combination of factor values, such as a pair, is taken if a supported case contains it, and covered if a case that is
run contains it. Supplementary cases cover what is taken, and make up the number of cases that a verdict needs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from attnbench.analysis.coverage import FEWEST_CHECKED
from attnbench.cases import COMPILED_MODES, CaseId, Level, digest, shard
from attnbench.plugins.registry import display_name, load_operator
from attnbench.processes.candidate_requests import DescribeAll, Outcome
from attnbench.processes.oracle_requests import ListPool
from attnbench.records.environment import count_cores
from attnbench.records.facts import Fact
from attnbench.records.types import SILENT, Completion, Result
from attnbench.refusals import TypedRefusal
from attnbench.runner.candidate_pool import Supervisor
from attnbench.runner.greedy_cover import Combinations, choose_cover, find_combinations
from attnbench.runner.refusal import check_work_limit
from attnbench.runner.session import Plan, Session

__all__ = ["Supplement", "choose_supplements", "settle_supplements"]

# Seconds that an implementation may take in total to say which cases it supports. An answer that only reads the case
# takes 0.02 to 0.2 ms; suite and pool together have at most 3,700 cases.
LIMIT_S = 30.0
# Number of values in a combination for a suite that does not cover its combinations, such as ``quick``.
PAIRS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplement:
    """The supplementary cases of one implementation, and what it declared when the run was planned."""

    completion: Completion
    # Plans of the supplementary cases. If the run is of a part of the suite, only those of this part.
    plans: tuple[Plan, ...] = ()
    # For each case, why the implementation refuses it; None: it is supported. Cases without an answer are left out.
    declared: Mapping[str, TypedRefusal | None] = field(default_factory=dict)


def choose_supplements(
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    *,
    suite: Level,
    part: tuple[int, int] | None = None,
    adds: bool = True,
    stored: Mapping[str, Completion] | None = None,
) -> dict[str, Supplement]:
    """Return the supplementary cases and the declarations of each implementation, by the name given by the user.

    ``plans`` are all cases of the suite, even if only the part ``part`` of it is run; the supplementary cases are
    divided in the same way. Without ``adds`` there are none. A completion in ``stored`` (by display name) is used again
    if it is of the same list of cases, so that a resumed run has the same cases and declarations. An implementation is
    left out if no plan is of its operator.

    Raises: PluginError where an implementation cannot be loaded.
    """
    by_operator: defaultdict[str, list[Plan]] = defaultdict(list)
    for plan in plans:
        by_operator[plan.operator].append(plan)

    def choose_one(name: str) -> Supplement | None:
        made = (stored or {}).get(display_name(name))
        own = by_operator.get(session.declared[name].operator, []) if name in session.declared else None
        if own is None or made is None or made.list_digest != digest(plan.case for plan in own):
            worker = session.workers.get([name])
            own = by_operator.get(worker.operator, [])
            try:
                made = _choose(session, worker, name, own, suite, adds=adds) if own else None
            finally:
                session.workers.keep(worker)
        if made is None:
            return None
        added = session.plan(made.cases)
        declared = made.get_declarations([plan.case for plan in own])
        return Supplement(completion=made, plans=tuple(shard(added, *part) if part else added), declared=declared)

    with ThreadPoolExecutor(max_workers=min(count_cores(), max(len(implementations), 1))) as pool:
        found = zip(implementations, pool.map(choose_one, implementations), strict=True)
        return {name: one for name, one in found if one is not None}


def settle_supplements(
    session: Session, supplements: Mapping[str, Supplement], results: Iterable[Result]
) -> dict[str, Completion]:
    """Return the completion of each implementation, by the name given by the user, corrected after its run.

    A supported case that was refused or not run covers nothing. A case without a result counts as run: if the run is of
    a part of the suite, the cases of other parts have no result.
    """
    by_name: defaultdict[str, dict[str, set[str]]] = defaultdict(dict)
    for result in results:
        by_name[result.implementation][result.case] = {finding.status for finding in result.findings}
    settled = {}
    for name, one in supplements.items():
        supported = [case for case, reason in one.declared.items() if reason is None]
        statuses = by_name[display_name(name)]
        lost = {case for case in supported if case in statuses and statuses[case] <= SILENT}
        made = replace(one.completion, refused_when_called=sum("unsupported" in statuses[case] for case in lost))
        if made.strength and lost:
            space = find_combinations(session.declared[name].operator, made.strength)
            made = replace(made, covered=space.count(case for case in supported if case not in lost))
        settled[name] = made
    return settled


def _choose(
    session: Session, worker: Supervisor, name: str, plans: Sequence[Plan], suite: Level, *, adds: bool
) -> Completion:
    """Ask an implementation about the suite and the pool, and choose its supplementary cases."""
    listed = {plan.case: plan for plan in plans}
    asking = _Asking(worker=worker, implementation=name, work_limit_s=session.limits.work_s)
    asking.ask([*listed])
    run = [case for case in asking.runnable if not listed[case].missing]
    covering = load_operator(worker.operator).covering
    whole = asking.count == len(listed)
    strength = covering.strengths.get(suite, 0) if covering and whole else 0
    pool: list[str] = []
    if whole and (len(run) < FEWEST_CHECKED or (strength and len(asking.supported) < len(listed))):
        device = CaseId.parse(plans[0].case).device
        offered = session.ask_oracle(ListPool(operator=worker.operator, level=suite, device=device))
        pool = [case for case in offered if case not in listed]
        asking.ask(pool)
    made = asking.describe([*listed], pool, suite)
    space = find_combinations(worker.operator, strength or PAIRS) if covering else None
    if adds:
        taken = [case for case in asking.runnable if case not in listed]
        made = replace(made, cases=tuple(_select(taken, run, space, covers=strength > 0)))
    if space is None or not strength:
        return made
    return replace(
        made,
        strength=strength,
        combinations=len(space),
        taken=space.count(asking.supported),
        covered_by_list=space.count(run),
        covered=space.count([*run, *made.cases]),
    )


def _select(taken: Sequence[str], run: Sequence[str], space: Combinations | None, *, covers: bool) -> list[str]:
    """Return the supplementary cases among the supported ones of the pool, beside the cases ``run`` of the suite.

    They cover all that the pool can cover (``covers``), and are enough for a verdict if the pool has enough. If they
    need not cover all, they are from the cheaper half of the pool. Compiled cases are the last resort.
    """
    fewest = max(FEWEST_CHECKED - len(run), 0)
    ordered = sorted(taken, key=lambda case: CaseId.parse(case).mode in COMPILED_MODES)
    cover: list[str] = []
    if space is not None and (covers or fewest):
        cheap = ordered if covers else ordered[: max(fewest, len(ordered) // 2)]
        cover = choose_cover({case: space.encode(case) for case in cheap}, ~space.join(run))
    chosen = list(dict.fromkeys([*cover, *ordered]))
    return chosen[: max(len(cover), fewest) if covers else fewest]


@dataclass(slots=True, kw_only=True)
class _Asking:
    """Asks one implementation which cases it supports, ``LIMIT_S`` seconds at most."""

    worker: Supervisor
    implementation: str
    work_limit_s: float
    # Number of answers, and the time that they took. Why there was no answer at all; None if there was one.
    count: int = 0
    seconds: float = 0.0
    no_answer: Fact | None = None
    # The supported cases, and those of them whose predicted time is within the work limit.
    supported: list[str] = field(default_factory=list)
    runnable: list[str] = field(default_factory=list)
    # The refusals of the refused cases, and the exceptions of the cases on which the declaration raised.
    refused: dict[str, TypedRefusal] = field(default_factory=dict)
    raised: dict[str, Outcome] = field(default_factory=dict)

    def ask(self, cases: Sequence[str]) -> None:
        """Ask about these cases; if the time limit passes, or if the worker dies, the last of them get no answer."""
        left_s = max(LIMIT_S - self.seconds, 0.0)
        answer = self.worker.ask(DescribeAll(implementation=self.implementation, cases=list(cases), limit_s=left_s))
        if isinstance(answer, Outcome):
            self.no_answer = answer.facts[0]
            return
        self.count += len(answer.by_case)
        self.seconds += answer.seconds
        for case, one in zip(cases, answer.by_case, strict=False):
            if isinstance(one, Outcome):
                self.raised[case] = one
            elif one.unsupported is not None:
                self.refused[case] = one.unsupported
            else:
                self.supported.append(case)
                if check_work_limit(one.predicted_s, self.work_limit_s) is None:
                    self.runnable.append(case)

    def describe(self, listed: Sequence[str], pool: Sequence[str], suite: Level) -> Completion:
        """Return a completion with the answers, and without supplementary cases."""
        answered = {*self.supported, *self.refused}
        refused: defaultdict[TypedRefusal, list[int]] = defaultdict(list)
        for place in (place for place, case in enumerate(listed) if case in self.refused):
            refused[self.refused[listed[place]]].append(place)
        return Completion(
            run="",
            implementation=display_name(self.implementation),
            suite=suite,
            list_digest=digest(listed),
            listed=len(listed),
            refusals=tuple((refusal, tuple(places)) for refusal, places in refused.items()),
            unanswered=tuple(place for place, case in enumerate(listed) if case not in answered),
            pool_digest=digest(pool) if pool else "",
            asked=self.count,
            unasked=len(listed) + len(pool) - self.count,
            asked_s=self.seconds,
            raised=len(self.raised),
            first_raised=next((one.facts[0] for one in self.raised.values()), None),
            no_answer=self.no_answer,
        )
