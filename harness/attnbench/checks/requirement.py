"""Marking a function as a check, and saying which cases it speaks of."""

from collections.abc import Callable, Iterator

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Observation
from attnbench.interface import CaseTransforms, Operator

__all__ = ["CheckFunction", "applies", "case_transforms_of", "check", "draws_dropout", "eager", "has_tokens"]

CheckFunction = Callable[[Candidate], Iterator[Observation]]
Condition = Callable[[Case], bool]


def check(
    *, when: Condition = lambda _: True, case_transforms: bool = False, first: bool = False
) -> Callable[[CheckFunction], CheckFunction]:
    """Mark a function as a check that applies to the cases for which ``when`` holds.

    ``siblings`` says that it asks the operator to put the problem otherwise, or knows queries, keys and values by name;
    ``first`` that it looks at what the first call does, and comes before the others of its case.
    """
    del first  # it is read from the source, by whoever has no torch

    def mark(function: CheckFunction) -> CheckFunction:
        function.when = when  # type: ignore[attr-defined]
        function.case_transforms = case_transforms  # type: ignore[attr-defined]
        return function

    return mark


def applies(function: CheckFunction, case: Case, operator: Operator) -> bool:
    """Whether a check says anything about a case of an operator."""
    condition: Condition = function.when  # type: ignore[attr-defined]
    if function.case_transforms and operator.case_transforms is None:  # type: ignore[attr-defined]
        return False
    return condition(case)


def case_transforms_of(candidate: Candidate) -> CaseTransforms:
    """The operator's problems put otherwise, for a check that is marked as one that asks for them."""
    found = candidate.operator.case_transforms
    assert found is not None
    return found


def draws_dropout(case: Case) -> bool:
    """Whether the case's outputs are random."""
    return bool(case.problem.dropout) and case.training


def has_tokens(case: Case) -> bool:
    """Whether there is any query, and any key for it."""
    problem = case.problem
    return bool(min(problem.sequences, problem.queries, problem.keys))


def eager(case: Case) -> bool:
    """Whether the case's outputs are the oracle's, computed in its dtype throughout, by the code as it is written."""
    return not draws_dropout(case) and not case.autocast and case.compiler is None
