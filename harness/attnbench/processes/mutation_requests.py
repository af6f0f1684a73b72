"""The requests that a mutation worker answers, and its replies."""

from typing import Generic, TypeVar

import msgspec

from attnbench.processes.request import Fault, Request

__all__ = ["FindFailingChecks", "MutantNames", "MutationRequest", "StartMutation"]

Reply = TypeVar("Reply", covariant=True)


class MutationRequest(Request[Reply], Generic[Reply], frozen=True, kw_only=True):
    """A request that a mutation worker answers."""


class MutantNames(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Names of the mutants, equivalent mutants and correct variants of some operators."""

    # Name of each mutant, with the check that must catch the mutant.
    mutants: dict[str, str]
    equivalents: list[str]
    variants: list[str]
    # Operator of each mutant, equivalent mutant and correct variant, by name.
    operators: dict[str, str]


class StartMutation(MutationRequest[MutantNames | Fault], frozen=True, kw_only=True):
    """Load the mutants of these operators; files of inputs are stored in ``folder``. This is the first request."""

    folder: str
    operators: list[str]


class FindFailingChecks(MutationRequest[dict[str, list[str]]], frozen=True, kw_only=True):
    """Return the checks that fail on a case, for each mutant in ``names``.

    Mutants that refuse the case, and mutants of operators other than the case's operator, are left out.
    """

    case: str
    checks: list[str]
    names: list[str]
