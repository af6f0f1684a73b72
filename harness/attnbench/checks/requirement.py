"""The decorator that marks a function as a check, and conditions that select cases."""

from collections.abc import Callable, Iterator

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Observation
from attnbench.interface import CaseTransforms, Operator

__all__ = [
    "CheckFunction",
    "applies",
    "check",
    "draws_dropout",
    "get_case_transforms",
    "has_tokens",
    "is_eager",
    "is_small",
]

CheckFunction = Callable[[Candidate], Iterator[Observation]]
Condition = Callable[[Case], bool]
# Largest number of query-key pairs, over all sequences and heads, of a small case. Checks of how a module is called do
# not depend on the sizes.
PAIRS = 1_000


def check(
    *, when: Condition = lambda _: True, case_transforms: bool = False
) -> Callable[[CheckFunction], CheckFunction]:
    """Mark a function as a check that applies to the cases for which ``when`` holds.

    ``case_transforms=True`` marks a check that uses the operator's case transforms (the same
    problem with other sequences, queries, keys or heads), or that reads the tensors query, key and
    value. Such a check does not apply to an operator without case transforms.
    """

    def mark(function: CheckFunction) -> CheckFunction:
        function.when = when  # type: ignore[attr-defined]
        function.case_transforms = case_transforms  # type: ignore[attr-defined]
        return function

    return mark


def applies(function: CheckFunction, case: Case, operator: Operator) -> bool:
    """Whether a check applies to a case of an operator."""
    condition: Condition = function.when  # type: ignore[attr-defined]
    if function.case_transforms and operator.case_transforms is None:  # type: ignore[attr-defined]
        return False
    return condition(case)


def get_case_transforms(candidate: Candidate) -> CaseTransforms:
    """Return the operator's case transforms, for a check that is marked with ``case_transforms=True``."""
    found = candidate.operator.case_transforms
    assert found is not None
    return found


def draws_dropout(case: Case) -> bool:
    """Whether the outputs of a case are random: the case has dropout and is in training mode."""
    return bool(case.problem.dropout) and case.training


def has_tokens(case: Case) -> bool:
    """Whether a case has at least one sequence, one query and one key."""
    problem = case.problem
    return bool(min(problem.sequences, problem.queries, problem.keys))


def is_eager(case: Case) -> bool:
    """Whether a case draws no dropout mask and uses neither autocast nor a compiler."""
    return not draws_dropout(case) and not case.autocast and case.compiler is None


def is_small(case: Case, *, pairs: int = PAIRS) -> bool:
    """Whether a case is eager, has tokens of the regime ``plain``, and at most ``pairs`` query-key pairs in all."""
    return is_eager(case) and case.problem.regime == "plain" and has_tokens(case) and case.problem.pairs <= pairs
