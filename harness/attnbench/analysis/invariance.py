"""Which results of measured invariance belong to the code of a run, and the grades that a certificate shows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from attnbench.cases import CaseId
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import InvarianceGrade
from attnbench.records.run_file import StoredRun
from attnbench.records.types import INVARIANCE, Result, Run, Status

__all__ = ["GradedProperty", "Quantity", "find_measured", "list_grades"]

# Output of calls without gradients, or gradients.
Quantity = Literal["output", "gradients"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedProperty:
    """What was measured of one property of one implementation: its grade, or why it has none."""

    implementation: str
    operator: str
    dtype: str
    device: str
    quantity: Quantity
    # Name of the property, such as "batch_size".
    name: str
    status: Status
    grade: InvarianceGrade | None
    facts: tuple[Fact, ...]


def list_grades(results: Iterable[Result]) -> list[GradedProperty]:
    """Return what results of the suite ``INVARIANCE`` say of each property."""
    found = []
    for result in results:
        if result.suite != INVARIANCE:
            continue
        case = CaseId.parse(result.case)
        found += [
            GradedProperty(
                implementation=result.implementation,
                operator=case.operator,
                dtype=case.dtype,
                device=case.device,
                quantity="output" if case.mode == "inference" else "gradients",
                name=finding.check,
                status=finding.status,
                grade=next((fact for fact in finding.facts if isinstance(fact, InvarianceGrade)), None),
                facts=finding.facts,
            )
            for finding in result.findings
        ]
    return found


def find_measured(run: Run, stored: Iterable[StoredRun]) -> Mapping[str, StoredRun]:
    """Return the run that measured the invariance of each implementation of a run, with equal code, on this machine.

    ``stored`` has the runs of the suite ``INVARIANCE``, the oldest first; of several, the latest is returned. A run
    with another torch counts for nothing.
    """
    found = {}
    for other in stored:
        if (other.run.machine.name, other.run.versions.get("torch")) != (run.machine.name, run.versions.get("torch")):
            continue
        for name, source in other.run.sources.items():
            if source and source == run.sources.get(name) and any(one.implementation == name for one in other.results):
                found[name] = other
    return found
