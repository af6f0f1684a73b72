"""A certificate: what a whole suite said of implementations, with all that says what it is worth.

Two certificates can be compared where the hashes of their case lists are equal.

History of VERSION
1  first version
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from attnbench.records.types import FAILURES, Finding, Result, Run, Status

__all__ = ["VERSION", "CertificateError", "Declared", "Suite", "certificate"]

VERSION = 1
UNMEASURED = "not measured for this list"


class CertificateError(Exception):
    """A run that no certificate can be made of; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A whole suite: its level, the version of its lists by operator, the hash of its list, and its size."""

    level: str
    list_versions: Mapping[str, str]
    list_hash: str
    cases: int
    # Share of the mutants that it catches and more, as it was measured for this very list; None: it was not.
    mutation_score: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What an implementation says of itself."""

    operator: str
    source: str
    policies: Mapping[str, Any]


def certificate(
    run: Run, suite: Suite, cases: Sequence[str], declared: Mapping[str, Declared], results: Iterable[Result]
) -> dict[str, Any]:
    """The certificate of a run, in plain containers.

    ``cases`` are those that were to be run; ``declared`` holds every implementation, by the name that is shown.

    Raises: CertificateError where a result is lacking.
    """
    by_name: dict[str, dict[str, Result]] = {name: {} for name in declared}
    for result in results:
        if result.implementation in by_name:
            by_name[result.implementation][result.case] = result
    for name, found in by_name.items():
        own = _own(declared[name], cases)
        lacking = [case for case in own if case not in found]
        if lacking:
            raise CertificateError(
                f"no certificate: {len(lacking)} of {len(own)} cases have no result of {name}, the first is "
                f"{lacking[0]}; go on with --resume {run.id}"
            )
    told = [
        _implementation(name, declared[name], [by_name[name][case] for case in _own(declared[name], cases)])
        for name in by_name
    ]
    return {
        "certificate": VERSION,
        "conformant": all(one["conformant"] for one in told),
        "suite": {
            "level": suite.level,
            "list_versions": dict(suite.list_versions),
            "list_hash": suite.list_hash,
            "cases": suite.cases,
            "mutation_score": UNMEASURED if suite.mutation_score is None else dict(suite.mutation_score),
        },
        "run": run.id,
        "time": run.time,
        "commit": run.commit,
        "versions": run.versions,
        "threads": run.threads,
        "machine": msgspec.to_builtins(run.machine),
        "devices": sorted({case.split("/")[-2] for case in cases}),
        "implementations": told,
    }


def _own(declared: Declared, cases: Sequence[str]) -> list[str]:
    """Cases of the operator that an implementation computes."""
    return [case for case in cases if case.partition("/")[0] == declared.operator]


def _implementation(name: str, declared: Declared, results: Sequence[Result]) -> dict[str, Any]:
    findings = [(result.case, finding) for result in results for finding in result.findings]
    counts = Counter(finding.status for _, finding in findings)
    doubts = list(_doubts(counts))
    return {
        "implementation": name,
        "conformant": not doubts,
        "doubts": doubts,
        "operator": declared.operator,
        "source": declared.source,
        "policies": dict(declared.policies),
        "findings": dict(counts),
        "refused": _reasons(findings, "unsupported"),
        "not_run": _reasons(findings, "not_run"),
        "expected_failures": [
            {"check": finding.check, "case": case, "reason": finding.reason}
            for case, finding in findings
            if finding.status == "expected_failure"
        ],
    }


def _doubts(counts: Counter[Status]) -> Iterable[str]:
    """Why an implementation is not called conformant."""
    failed = sum(counts[status] for status in FAILURES)
    if failed:
        yield f"{failed} findings failed"
    if not counts["passed"]:
        yield "nothing passed"
    if counts["not_run"]:
        yield f"{counts['not_run']} findings were not run"


def _reasons(findings: Iterable[tuple[str, Finding]], status: str) -> dict[str, int]:
    """How many findings of a status there are, by reason."""
    return dict(Counter(finding.reason for _, finding in findings if finding.status == status).most_common())
