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
    """Asks the worker to load the mutants of ``operators``. This is the first request.

    ``folder`` is the folder for the files of inputs.
    """

    folder: str
    operators: list[str]


class FindFailingChecks(MutationRequest[dict[str, list[str]]], frozen=True, kw_only=True):
    """Asks, for each mutant in ``names``, which checks fail when the mutant runs a case.

    Mutants that refuse the case, and mutants of operators other than the case's operator, are left out.
    """

    case: str
    checks: list[str]
    names: list[str]
