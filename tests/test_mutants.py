"""Tests of the checks: each catches the mistakes that it is there for, and none fails what is right."""

from typing import TYPE_CHECKING, Any

import pytest

from attnbench.cases import DTYPES, Case, Dtype
from attnbench.checks.catalogue import checks
from attnbench.interface import Implementation
from attnbench.mutants import MUTANTS, VARIANTS, Mutant
from attnbench.records import Finding

if TYPE_CHECKING:
    from conftest import Conformance


def findings(
    conformance: "Conformance", implementation: Implementation, cases: list[Case], check: str
) -> list[Finding]:
    """Findings of one check on the cases that it applies to, up to the first that did not pass."""
    found = []
    for case in cases:
        if implementation.unsupported(case) is None and check in conformance.applicable(case):
            found.append(conformance.finding(implementation, case, check))
            if found[-1].status != "passed":
                break
    return found


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fails_the_check_that_it_names(
    conformance: "Conformance", drawn_cases: list[Case], mutant: Mutant
) -> None:
    """The suite quick, without the sentence encoder, shows every mistake; the finding says which requirement broke."""
    last = findings(conformance, mutant.implementation, drawn_cases, mutant.caught_by)[-1]
    assert last.status == "failed"
    requirement = checks()[mutant.caught_by].requirement
    assert last.reason.startswith(f"{requirement} But ")


def test_every_check_has_a_mutant() -> None:
    """A check that catches nothing would be idle."""
    assert {mutant.caught_by for mutant in MUTANTS} == set(checks())


def test_names_are_unique_and_every_mistake_has_its_reason() -> None:
    """A mutant is named once, among the variants too, and says where it was seen or why it happens."""
    names = [mutant.name for mutant in MUTANTS] + [variant.name for variant in VARIANTS]
    assert len(set(names)) == len(names)
    assert all(mutant.why for mutant in MUTANTS)


class QueryReturned(Implementation):
    """Hands out a view of its own argument as the output."""

    def build(self, reference: Any) -> Any:
        """The reference, which is not called."""
        return reference

    def prepare(self, module: Any, case: Case, inputs: Any) -> Any:
        """A call that computes nothing."""
        return lambda **arguments: (arguments["query"][:], None)


def test_an_output_that_is_a_view_of_an_input_is_told(conformance: "Conformance", drawn_cases: list[Case]) -> None:
    """The second half of a requirement is checked too: memory shared with an input is a fault of its own."""
    case = next(case for case in drawn_cases if not case.problem.need_weights)
    assert conformance.finding(QueryReturned(), case, "outputs_are_its_own").reason == (
        "An output shares no memory with an input and is not overwritten by the next call. "
        "But the output shares memory with an input."
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_correct_variant_passes_every_check(
    conformance: "Conformance", drawn_cases: list[Case], variant: Implementation, dtype: Dtype
) -> None:
    """What rounds differently and is right passes every check that applies, on every case that it takes."""
    cases = {case.id: case for case in (case.with_fields(dtype=dtype) for case in drawn_cases)}
    taken = [case for case in cases.values() if variant.unsupported(case) is None]
    found = [
        (case.id, conformance.finding(variant, case, check)) for case in taken for check in conformance.applicable(case)
    ]
    assert [(case, finding.reason) for case, finding in found if finding.status != "passed"] == []
    assert {"forward", "gradients", "masks", "hygiene"} <= {checks()[finding.check].chapter for _, finding in found}
