"""Marking a function as a check, and saying which cases it speaks of."""

from collections.abc import Callable, Iterator

from attnbench.cases import Case
from attnbench.checks.claims import Claim
from attnbench.subject import Subject

__all__ = ["CheckFunction", "applies", "check", "draws_dropout", "eager", "has_tokens"]

CheckFunction = Callable[[Subject], Iterator[Claim]]
Condition = Callable[[Case], bool]


def check(*, when: Condition = lambda _: True) -> Callable[[CheckFunction], CheckFunction]:
    """Mark a function as a check that applies to the cases for which ``when`` holds."""

    def mark(function: CheckFunction) -> CheckFunction:
        function.when = when  # type: ignore[attr-defined]
        return function

    return mark


def applies(function: CheckFunction, case: Case) -> bool:
    """Whether a check says anything about a case."""
    condition: Condition = function.when  # type: ignore[attr-defined]
    return condition(case)


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
