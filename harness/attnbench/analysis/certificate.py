"""Certificates: the results of implementations on a whole suite.

A certificate also contains the suite's mutation score and a description of the machine.

Two certificates can be compared if the hashes of their case lists are equal.

History of VERSION
1  first version
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from attnbench.analysis.coverage import count_checked, describe_completion, describe_few
from attnbench.cases import CaseId
from attnbench.records.types import FAILURES, Completion, Finding, Result, Run, Status

__all__ = ["VERSION", "CertificateError", "Declaration", "Suite", "make_certificate"]

VERSION = 1
UNMEASURED = "not measured for this list"


class CertificateError(Exception):
    """A run is incomplete and has no certificate; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A whole suite: its level, and the versions, hash and number of cases of its case lists."""

    level: str
    list_versions: Mapping[str, str]
    list_hash: str
    cases: int
    # Mutation score with its details, measured for exactly the list of cases of this suite; None if
    # it was not measured.
    mutation_score: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What an implementation declares: its operator, source and policies."""

    operator: str
    source: str
    policies: Mapping[str, Any]


def make_certificate(
    run: Run,
    suite: Suite,
    cases: Sequence[str],
    declared: Mapping[str, Declaration],
    results: Iterable[Result],
    completions: Mapping[str, Completion] | None = None,
) -> dict[str, Any]:
    """Make the certificate of a run, as plain dicts and lists.

    ``cases`` are the ids of the cases on which every implementation of the case's operator needs a
    result. ``declared`` maps the display name of every implementation to its declaration, and
    ``completions`` to its completion, whose cases need a result, too.

    Raises: CertificateError if a result is missing.
    """
    by_name: dict[str, dict[str, Result]] = {name: {} for name in declared}
    for result in results:
        if result.implementation in by_name:
            by_name[result.implementation][result.case] = result
    completions = completions or {}
    further = {name: completions[name].cases if name in completions else () for name in declared}
    for name, found in by_name.items():
        own = [*_select_cases(declared[name], cases), *further[name]]
        missing = [case for case in own if case not in found]
        if missing:
            raise CertificateError(
                f"no certificate: {len(missing)} of {len(own)} cases have no result of {name} (the first is "
                f"{missing[0]}); continue with: attnbench conform --resume {run.id} --certificate FILE"
            )
    described = [
        _describe_implementation(
            name,
            declared[name],
            [by_name[name][case] for case in _select_cases(declared[name], cases)],
            completions.get(name),
            [by_name[name][case] for case in further[name]],
        )
        for name in by_name
    ]
    return {
        "certificate": VERSION,
        "conformant": all(one["conformant"] for one in described),
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
        "devices": sorted({CaseId.parse(case).device for case in cases}),
        "implementations": described,
    }


def _select_cases(declared: Declaration, cases: Sequence[str]) -> list[str]:
    """Return those of ``cases`` that belong to the operator that an implementation computes."""
    return [case for case in cases if CaseId.parse(case).operator == declared.operator]


def _describe_implementation(
    name: str,
    declared: Declaration,
    results: Sequence[Result],
    completion: Completion | None,
    further: Sequence[Result],
) -> dict[str, Any]:
    findings = [(result.case, finding) for result in results for finding in result.findings]
    counts = Counter(finding.status for _, finding in findings)
    drawn = Counter(finding.status for result in further for finding in result.findings)
    doubts = [*_find_doubts(counts), *_find_doubts_of_completion(drawn)]
    if few := describe_few(count_checked([*results, *further])):
        doubts.append(few)
    return {
        "implementation": name,
        "conformant": not doubts,
        "doubts": doubts,
        "operator": declared.operator,
        "source": declared.source,
        "policies": dict(declared.policies),
        "findings": dict(counts),
        "refused": _count_reasons(findings, "unsupported"),
        "not_run": _count_reasons(findings, "not_run"),
        "expected_failures": [
            {"check": finding.check, "case": case, "reason": finding.reason}
            for case, finding in findings
            if finding.status == "expected_failure"
        ],
    } | ({} if completion is None else {"completion": _describe_completion(completion, drawn)})


def _describe_completion(completion: Completion, counts: Counter[Status]) -> dict[str, Any]:
    """Return what is known of a completion, which is compared with nothing: ``list_hash`` leaves out its cases."""
    return {
        "completion_hash": completion.completion_hash or None,
        "cases": len(completion.cases),
        "findings": dict(counts),
        "strength": completion.strength,
        "combinations": completion.combinations,
        "taken": completion.taken,
        "covered_by_list": completion.covered_by_list,
        "covered": completion.covered,
        "restrictions": list(completion.restrictions),
        "refused_when_called": completion.refused_when_called,
        "summary": describe_completion(completion),
        "notes": list(completion.notes),
    }


def _find_doubts_of_completion(counts: Counter[Status]) -> Iterable[str]:
    """Yield the reasons why the further cases make an implementation not conformant."""
    failed = sum(counts[status] for status in FAILURES)
    if failed:
        yield f"{failed} findings on cases of the completion failed"
    if counts["not_run"]:
        yield f"{counts['not_run']} findings on cases of the completion have the status not_run"


def _find_doubts(counts: Counter[Status]) -> Iterable[str]:
    """Yield the reasons why an implementation is not conformant; no reason if it is conformant."""
    failed = sum(counts[status] for status in FAILURES)
    if failed:
        yield f"{failed} findings failed"
    if not counts["passed"]:
        yield "nothing passed"
    if counts["not_run"]:
        yield f"{counts['not_run']} findings have the status not_run"


def _count_reasons(findings: Iterable[tuple[str, Finding]], status: str) -> dict[str, int]:
    """Return the number of findings that have the given status, by reason."""
    return dict(Counter(finding.reason for _, finding in findings if finding.status == status).most_common())
