"""Complete a suite for each implementation: plan further cases before the run, and correct the counts after it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from attnbench.cases import Level, digest, shard
from attnbench.plugins.registry import display_name
from attnbench.records.environment import count_cores
from attnbench.records.types import Completion, Result
from attnbench.runner.conform import Completed
from attnbench.runner.session import Plan, Session

__all__ = ["COMPLETED_SUITES", "complete_suites", "settle_completions"]

# Suites that are completed: ``core`` contains every pair of argument values, and ``full`` every triple.
COMPLETED_SUITES: tuple[Level, ...] = ("core", "full")


def complete_suites(
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    *,
    suite: Level,
    part: tuple[int, int] | None = None,
    draws: bool = True,
    stored: Mapping[str, Completion] | None = None,
) -> dict[str, Completed]:
    """Return the further cases and the declarations of each implementation, by the name given by the user.

    ``plans`` are all cases of the suite, even if only the part ``part`` of the suite is run. The further cases are
    divided into parts in the same way. Without ``draws`` there are no further cases, but the combinations that the
    implementation takes are counted nevertheless. A completion in ``stored`` (by display name) is used again if it is
    of the same list of cases, so that a resumed run has the same further cases and declarations. An implementation is
    left out if no plan is of its operator.

    Raises: PluginError where an implementation cannot be loaded.
    """
    # Imported here, because the package needs numpy, whose import takes 0.1 s.
    from attnbench.runner.completion import complete

    by_operator: defaultdict[str, list[Plan]] = defaultdict(list)
    for plan in plans:
        by_operator[plan.operator].append(plan)

    def complete_one(name: str) -> Completed | None:
        own = by_operator.get(session.declared[name].operator, []) if name in session.declared else None
        before = (stored or {}).get(display_name(name))
        if own is not None and before is not None and before.list_digest == digest(plan.case for plan in own):
            return _make_completed(session, before, own, part)
        worker = session.supervise(name)
        own = by_operator.get(worker.operator, [])
        try:
            made = complete(worker, name, own, run="", suite=suite, work_limit_s=session.limits.work_s) if own else None
        finally:
            session.keep(name, worker)
        if made is None:
            return None
        if not draws:
            made = replace(made, cases=(), covered=made.covered_by_list)
        return _make_completed(session, made, own, part)

    with ThreadPoolExecutor(max_workers=min(count_cores(), max(len(implementations), 1))) as pool:
        found = dict(zip(implementations, pool.map(complete_one, implementations), strict=True))
    return {name: one for name, one in found.items() if one is not None}


def _make_completed(
    session: Session, completion: Completion, listed: Sequence[Plan], part: tuple[int, int] | None
) -> Completed:
    further = session.plan(completion.cases)
    return Completed(
        completion=completion,
        plans=tuple(shard(further, *part) if part else further),
        declared=completion.get_declarations([plan.case for plan in listed]),
    )


def settle_completions(
    session: Session, completed: Mapping[str, Completed], results: Iterable[Result]
) -> dict[str, Completion]:
    """Return the completion of each implementation, corrected after its run, by the name given by the user."""
    from attnbench.runner.completion import settle

    by_name: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_name[result.implementation].append(result)
    return {
        name: settle(one.completion, session.declared[name].operator, one.declared, by_name[display_name(name)])
        for name, one in completed.items()
    }
