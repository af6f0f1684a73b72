"""Complete a suite for one implementation: ask which cases it supports, and draw cases for uncovered combinations."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import cast

from attnbench.cases import Case, CaseId, Device, Level, digest
from attnbench.interface import Operator
from attnbench.plugins.registry import display_name, load_operator
from attnbench.records.types import Completion, Result
from attnbench.runner.completion.combinations import Combinations, Flags, Row
from attnbench.runner.completion.declarations import Declaration, Declarations
from attnbench.runner.completion.restrictions import describe_restrictions
from attnbench.runner.completion.search import Search
from attnbench.runner.session import Plan, Supervisor

__all__ = ["complete", "settle"]

# Seconds that an implementation may take in total to declare what it supports. The key is the number of values in a
# combination; 0: no further cases are drawn. Declarations that only read the case take 2 s for pairs and 6 s for
# triples.
LIMIT_S = {0: 30.0, 1: 30.0, 2: 30.0, 3: 90.0}


def complete(
    worker: Supervisor, implementation: str, plans: Sequence[Plan], *, run: str, suite: Level, work_limit_s: float
) -> Completion:
    """Ask an implementation about a whole suite, and draw further cases for combinations that it takes.

    ``plans`` are all cases of the suite of the implementation's operator, on one device. The random seed of the draws
    is made from the operator, the version of its lists and the suite, not from the name of the implementation.
    """
    operator = load_operator(worker.operator)
    strength = _find_strength(operator, suite)
    asking = Declarations(
        worker=worker, implementation=implementation, limit_s=LIMIT_S[strength], work_limit_s=work_limit_s
    )
    declared = asking.ask([plan.case for plan in plans])
    made = _describe_list(display_name(implementation), plans, declared, run=run, suite=suite)
    if strength and len(declared) == len(plans):
        made = _complete_list(made, _Space(operator, suite), plans, declared, asking)
    return replace(made, notes=(*asking.describe_faults(), *made.notes))


def settle(
    completion: Completion, operator: str, declared: Mapping[str, str | None], results: Iterable[Result]
) -> Completion:
    """Return a completion, corrected after the run: a supported case that was refused or not run covers nothing.

    ``declared`` are the declarations of the completion. A case without a result counts as run: if the run is of a part
    of the suite, the cases of other parts have no result.
    """
    statuses = {one.case: {finding.status for finding in one.findings} for one in results}
    lost = {case: found for case, found in statuses.items() if found <= {"unsupported", "not_run"}}
    supported = [case for case, reason in declared.items() if reason is None]
    refused = sum("unsupported" in lost[case] for case in supported if case in lost)
    settled = replace(completion, refused_when_called=refused)
    if not completion.strength or not any(case in lost for case in supported):
        return settled
    space = _Space(load_operator(operator), cast("Level", completion.suite))
    return replace(settled, covered=space.combinations.count(space.cover(set(supported) - set(lost))))


def _find_strength(operator: Operator, suite: Level) -> int:
    return 0 if operator.covering is None else operator.covering.strengths.get(suite, 0)


def _describe_list(
    implementation: str, plans: Sequence[Plan], declared: Sequence[Declaration], *, run: str, suite: Level
) -> Completion:
    """Return a completion with the declarations about the suite's cases, and without further cases."""
    refused: defaultdict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(declared):
        if one.unsupported is not None:
            refused[one.unsupported].append(place)
    raised = [place for place, one in enumerate(declared) if one.raised is not None]
    return Completion(
        run=run,
        implementation=implementation,
        suite=suite,
        list_digest=digest(plan.case for plan in plans),
        listed=len(plans),
        refused={reason: tuple(places) for reason, places in refused.items()},
        unanswered=(*raised, *range(len(declared), len(plans))),
    )


class _Space:
    """The combinations that an operator's suite contains, and the conversion between cases and rows."""

    def __init__(self, operator: Operator, suite: Level) -> None:
        self._operator = operator
        self._problems = {operator.name: operator.problem}
        self.combinations = _list_combinations(operator.name, _find_strength(operator, suite))
        self.seed = f"{operator.name} {operator.list_version} {suite}"

    def find_row(self, case: Case) -> Row:
        """Return the row of a case; if the row is not allowed, return a row of unlisted values."""
        combinations = self.combinations
        row = combinations.encode(combinations.covering.case_to_row(case))
        # A suite also has cases whose rows are not allowed, such as dropout in training, whose outputs are random.
        if combinations.covering.is_allowed(combinations.decode(row)):
            return row
        return (combinations.unlisted,) * len(row)

    def parse_row(self, case: str) -> Row:
        """Return the row of a case id."""
        return self.find_row(Case.parse(case, self._problems))

    def make_case(self, row: Row, device: Device) -> Case | None:
        """Return the case of a complete row, or None if there is no such case."""
        try:
            return self.combinations.covering.row_to_case(self.combinations.decode(row)).with_fields(device=device)
        except ValueError:
            return None

    def cover(self, cases: Iterable[str]) -> Flags:
        """Return the combinations that these cases contain."""
        covered = self.combinations.make_flags(self.combinations.strength)
        self.combinations.mark(covered, map(self.parse_row, cases))
        return covered


@lru_cache(maxsize=2)
def _list_combinations(operator: str, strength: int) -> Combinations:
    covering = load_operator(operator).covering
    if covering is None:
        raise ValueError(f"{operator} has no covering array")
    return Combinations(covering, strength)


def _complete_list(
    made: Completion,
    space: _Space,
    plans: Sequence[Plan],
    declared: Sequence[Declaration],
    asking: Declarations,
) -> Completion:
    """Return ``made`` with further cases, and with the numbers of combinations that are taken and covered."""
    combinations = space.combinations
    strength, total = combinations.strength, combinations.count(combinations.allowed[combinations.strength])
    runnable = [
        plan.case
        for plan, one in zip(plans, declared, strict=True)
        if one.supported and one.within_limit and plan.missing is None
    ]
    by_list = space.cover(runnable)
    made = replace(made, strength=strength, combinations=total, covered_by_list=combinations.count(by_list))
    if all(one.supported for one in declared):
        return replace(made, taken=total, covered=made.covered_by_list)
    device = CaseId.parse(plans[0].case).device
    asked = _Asked(space, asking, "cuda" if device == "cuda" else "cpu")
    search = Search(combinations, asked.ask, space.seed)
    for plan, one in zip(plans, declared, strict=True):
        if one.supported:
            search.add_listed(space.parse_row(plan.case), runnable=plan.case in runnable)
    rows = search.run(by_list)
    cases = [asked.ids[row] for row in rows]
    most = len(plans)
    covered = by_list | space.cover(cases[:most])
    notes = []
    if len(cases) > most:
        notes.append(f"of {len(cases)} further cases, only {most} are run: as many as the suite has cases")
    if search.exhausted and not asking.stopped:
        notes.append(f"the search ended early, after {search.count} drawn cases: the share that is taken may be larger")
    taken = search.taken[strength] | by_list
    return replace(
        made,
        taken=combinations.count(taken),
        covered=combinations.count(covered),
        cases=tuple(cases[:most]),
        restrictions=tuple(describe_restrictions(combinations, search.taken[1])),
        notes=tuple(notes),
    )


class _Asked:
    """Asks an implementation about the cases of rows, and keeps the ids of these cases."""

    def __init__(self, space: _Space, asking: Declarations, device: Device) -> None:
        self._space = space
        self._asking = asking
        self._device = device
        # For each row whose case was answered, the id of the case.
        self.ids: dict[Row, str] = {}

    def ask(self, rows: Sequence[Row]) -> list[tuple[Row, bool, bool] | None]:
        """Return for each row: the row of its case, and whether the case is supported, and within the work limit.

        The entry of a row without a case is None. If the time limit passes, the list ends there.
        """
        cases = [self._space.make_case(row, self._device) for row in rows]
        declared = iter(self._asking.ask([case.id for case in cases if case is not None]))
        answers: list[tuple[Row, bool, bool] | None] = []
        for case in cases:
            if case is None:
                answers.append(None)
                continue
            one = next(declared, None)
            if one is None:
                break
            # The row of the case may differ from the drawn row. The row of the case counts.
            own = self._space.find_row(case)
            self.ids[own] = case.id
            answers.append((own, one.supported, one.within_limit))
        return answers
