"""The report of a conformance run, as Python values and as text."""

from collections import Counter
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Self

from attnbench.analysis.coverage import count_checked
from attnbench.analysis.summarize import summarize
from attnbench.analysis.summary import Summary
from attnbench.checks.catalogue import read_checks
from attnbench.plugins.registry import display_name
from attnbench.records.run_file import StoredRun
from attnbench.records.types import (
    FAILURES,
    Completion,
    End,
    Finding,
    Machine,
    Result,
    Run,
    Status,
    format_reproduce_line,
)
from attnbench.report.terminal import format_summary
from attnbench.words.coverage import describe_asking, describe_few
from attnbench.words.findings import describe_finding

__all__ = ["ConformanceError", "Failure", "Report", "format_finding"]


class ConformanceError(AssertionError):
    """Raised if an implementation does not conform; the message is the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A finding that makes a run fail, with its implementation and case."""

    implementation: str
    case: str
    finding: Finding

    @property
    def reproduce(self) -> str:
        """Command that re-runs this check on this case."""
        return format_reproduce_line(self.implementation, self.case, self.finding.check)

    def __str__(self) -> str:
        return format_finding(self.implementation, self.case, self.finding)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """Results of one implementation on the cases of a suite."""

    # Name by which the implementation is loaded; the command in ``Failure.reproduce`` uses this name.
    implementation: str
    suite: str
    results: tuple[Result, ...]
    # What the implementation declared, and its supplementary cases; None if it was not asked before the run.
    completion: Completion | None = None
    # Whether every case of the suite was run with every check. If so, a verdict needs 20 checked cases.
    whole: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding, in the order of the cases."""
        return tuple(finding for result in self.results for finding in result.findings)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Findings that failed, each with its case and the command that reproduces the failure."""
        return tuple(
            Failure(implementation=self.implementation, case=result.case, finding=finding)
            for result in self.results
            for finding in result.findings
            if finding.status in FAILURES
        )

    @property
    def counts(self) -> Counter[Status]:
        """Number of findings of each status."""
        return Counter(finding.status for finding in self.findings)

    @property
    def ok(self) -> bool:
        """Whether at least one check passed or failed as expected, and no check failed in any other way.

        It is False if too few cases of a whole suite were checked (``undecided``).
        """
        counts = self.counts
        held = counts["passed"] + counts["expected_failure"]
        return bool(held) and not self.undecided and not any(counts[status] for status in FAILURES)

    @property
    def undecided(self) -> str:
        """Why too few cases were checked for a verdict; empty if they are enough, or if cases were selected."""
        return describe_few(count_checked(self.results)) if self.whole else ""

    def raise_if_failed(self) -> Self:
        """Return the report itself if it is ``ok``.

        Raises: ConformanceError where the report is not ``ok``; the message is the report.
        """
        if not self.ok:
            raise ConformanceError(f"{display_name(self.implementation)} does not conform\n{self}")
        return self

    @property
    def summary(self) -> Summary:
        """The verdict on conformance and the causes of failures, as a table with one row."""
        # The command to reproduce a failure needs the name by which the implementation is loaded.
        results = tuple(replace(result, implementation=self.implementation, run="") for result in self.results)
        machine = Machine(name="", cpu="", cores=0, memory_bytes=0)
        run = Run(id="", time="", command="", machine=machine, versions={}, threads=1, suite=self.suite)
        end = End(run="", time="", outcome="finished", exit_code=0)
        return summarize([StoredRun(run=run, results=results, path=Path(), end=end)])

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        notes = describe_asking(self.completion) if self.completion else ()
        return "\n".join((format_summary(self.summary), *notes))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def format_finding(implementation: str, case: str, finding: Finding) -> str:
    """Format a failed finding: the fault, the requirement, and the command that re-runs the check."""
    known = read_checks().get(finding.check)
    requirement = known.requirement if known else finding.check
    status = "" if finding.status == "failed" else f"{finding.status.replace('_', ' ')}: "
    return (
        f"{status}{describe_finding(finding)}\n"
        f"  requirement  {requirement}\n"
        f"  reproduce    {format_reproduce_line(implementation, case, finding.check)}"
    )
