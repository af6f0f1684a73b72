"""Certificates: the results of implementations on a whole suite.

A certificate also contains the suite's mutation score and a description of the machine.

Two certificates can be compared if the hashes of their case lists are equal.

History of VERSION
1  first version
2  new fields of an implementation: code, checked_cases, without_data
3  new field of a completion: pool_hash; no field restrictions
4  new field of an implementation: invariance
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import msgspec

from attnbench.analysis.coverage import FEWEST_CHECKED, count_checked
from attnbench.analysis.invariance import GradedProperty, list_grades
from attnbench.cases import CaseId
from attnbench.records.facts import Fact, Reason
from attnbench.records.run_file import StoredRun
from attnbench.records.types import FAILURES, Completion, Finding, Result, Run, Status

__all__ = ["VERSION", "CertificateError", "Code", "Declaration", "Doubt", "Suite", "make_certificate"]

VERSION = 4
UNMEASURED = "not measured for this list"


class CertificateError(Exception):
    """Raised if a run is incomplete, and therefore gets no certificate; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why an implementation is not conformant.

    ``count`` is a number of findings; of ``few``, of checked cases. ``reasons``: why checks were not run.
    """

    kind: Literal["failed", "nothing_passed", "not_run", "completion_failed", "completion_not_run", "few", "sources"]
    count: int = 0
    reasons: tuple[Reason, ...] = ()


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
class Code:
    """The code of an implementation, as a certificate identifies it."""

    # ``distribution``: the Python distribution that ships the implementation. ``version``: the version of the
    # distribution. Each is None for a file that no distribution ships.
    distribution: str | None = None
    version: str | None = None
    # ``commit``: commit of the git checkout that contains the files. ``dirty``: whether the checkout differs from the
    # commit. Each is None for files outside a checkout.
    commit: str | None = None
    dirty: bool | None = None
    # ``sha256``: SHA-256 of the names and contents of ``files``. ``files``: paths of the source files, relative to the
    # folder of the package or of the single file.
    sha256: str = ""
    files: Sequence[str] = ()
    # Versions of the other distributions that the files import.
    imports: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What an implementation declares (operator, source and policies), and its code."""

    operator: str
    source: str
    policies: Mapping[str, Any]
    code: Code = field(default_factory=Code)


def make_certificate(
    run: Run,
    suite: Suite,
    cases: Sequence[str],
    declared: Mapping[str, Declaration],
    results: Iterable[Result],
    *,
    without_data: Mapping[str, Fact] | None = None,
    completions: Mapping[str, Completion] | None = None,
    invariance: Mapping[str, StoredRun] | None = None,
) -> dict[str, Any]:
    """Make the certificate of a run, as dicts and lists; ``words.certificates`` writes doubts and reasons as texts.

    ``cases`` are case ids. On each of these cases, every implementation of the case's operator needs
    a result. ``declared`` maps the display name of every implementation to its declaration.
    ``completions`` maps display names to completions; the cases of a completion need a result, too.
    ``without_data`` maps the id of each case that needs an optional data set, which this machine
    lacks, to this fact. Such a case does not count against an implementation: the
    certificate lists the case as not certified.
    ``invariance`` maps display names to the runs that measured the invariance of the same code.

    Raises: CertificateError if a result is missing.
    """
    completions = completions or {}
    own = {name: _select_cases(one, cases) for name, one in declared.items()}
    further = {name: completions[name].cases if name in completions else () for name in declared}
    by_name = _group_results(run, results, {name: [*own[name], *further[name]] for name in declared})
    described = [
        _describe_implementation(
            name,
            declared[name],
            [by_name[name][case] for case in own[name]],
            completions.get(name),
            [by_name[name][case] for case in further[name]],
            without_data=without_data or {},
            recorded_sources=run.sources.get(name, ""),
        )
        | {"invariance": _describe_invariance(name, (invariance or {}).get(name))}
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


def _group_results(
    run: Run, results: Iterable[Result], needed: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Result]]:
    """Return the results by implementation and case.

    ``needed`` maps the display name of every implementation to the cases of which it needs a result.

    Raises: CertificateError if a result is missing.
    """
    by_name: dict[str, dict[str, Result]] = {name: {} for name in needed}
    for result in results:
        if result.implementation in by_name:
            by_name[result.implementation][result.case] = result
    for name, found in by_name.items():
        missing = [case for case in needed[name] if case not in found]
        if missing:
            raise CertificateError(
                f"no certificate: {len(missing)} of {len(needed[name])} cases have no result of {name} (the first is "
                f"{missing[0]}); continue with: attnbench conform --resume {run.id} --certificate FILE"
            )
    return by_name


def _select_cases(declared: Declaration, cases: Sequence[str]) -> list[str]:
    """Return those of ``cases`` that belong to the operator that an implementation computes."""
    return [case for case in cases if CaseId.parse(case).operator == declared.operator]


def _describe_implementation(
    name: str,
    declared: Declaration,
    results: Sequence[Result],
    completion: Completion | None,
    further: Sequence[Result],
    *,
    without_data: Mapping[str, Fact],
    recorded_sources: str,
) -> dict[str, Any]:
    lacking = {result.case: without_data[result.case] for result in results if _lacks_data(result, without_data)}
    findings = [(result.case, finding) for result in results for finding in result.findings]
    counts = Counter(finding.status for _, finding in findings)
    drawn = Counter(finding.status for result in further for finding in result.findings)
    doubts = list(_find_doubts([(case, finding) for case, finding in findings if case not in lacking]))
    if not counts["passed"] + drawn["passed"]:
        doubts.append(Doubt(kind="nothing_passed"))
    doubts += _find_doubts_of_completion(drawn)
    if (checked := count_checked([*results, *further])) < FEWEST_CHECKED:
        doubts.append(Doubt(kind="few", count=checked))
    if recorded_sources not in ("", declared.code.sha256):
        doubts.append(Doubt(kind="sources"))
    return {
        "implementation": name,
        "conformant": not doubts,
        "doubts": doubts,
        "operator": declared.operator,
        "source": declared.source,
        "policies": dict(declared.policies),
        "code": asdict(declared.code),
        "checked_cases": count_checked(results),
        "without_data": [
            (fact, [case for case, own in lacking.items() if own == fact]) for fact in dict.fromkeys(lacking.values())
        ],
        "findings": dict(counts),
        "refused": _count_reasons(findings, "unsupported"),
        "not_run": _count_reasons(findings, "not_run"),
        "expected_failures": [
            {"check": finding.check, "case": case, "reason": finding}
            for case, finding in findings
            if finding.status == "expected_failure"
        ],
    } | ({} if completion is None else {"completion": _describe_completion(completion, drawn)})


def _describe_invariance(name: str, measured: StoredRun | None) -> dict[str, Any] | None:
    """Return the run that measured the invariance of an implementation, and its grades; None if no run did.

    No grade makes an implementation not conformant: a property that is declared, but does not hold, fails the run that
    measured it.
    """
    if measured is None:
        return None
    grades: list[GradedProperty] = [one for one in list_grades(measured.results) if one.implementation == name]
    return {"run": measured.run.id, "threads": measured.run.threads, "grades": grades}


def _describe_completion(completion: Completion, counts: Counter[Status]) -> dict[str, Any]:
    """Return what a certificate says of a completion; the suite's ``list_hash`` does not include its cases."""
    return {
        "completion_hash": completion.completion_hash or None,
        "pool_hash": completion.pool_digest or None,
        "cases": len(completion.cases),
        "findings": dict(counts),
        "strength": completion.strength,
        "combinations": completion.combinations,
        "taken": completion.taken,
        "covered_by_list": completion.covered_by_list,
        "covered": completion.covered,
        "refused_when_called": completion.refused_when_called,
        # ``words.certificates`` writes in its place what the completion says.
        "summary": completion,
    }


def _lacks_data(result: Result, without_data: Mapping[str, Fact]) -> bool:
    """Whether a case was not run because this machine lacks an optional data set."""
    fact = without_data.get(result.case)
    return fact is not None and all((f.status, f.facts) == ("not_run", (fact,)) for f in result.findings)


def _find_doubts_of_completion(counts: Counter[Status]) -> Iterable[Doubt]:
    """Yield why the results on the cases of a completion make an implementation not conformant."""
    failed = sum(counts[status] for status in FAILURES)
    if failed:
        yield Doubt(kind="completion_failed", count=failed)
    if counts["not_run"]:
        yield Doubt(kind="completion_not_run", count=counts["not_run"])


def _find_doubts(findings: Sequence[tuple[str, Finding]]) -> Iterable[Doubt]:
    """Yield why an implementation is not conformant; nothing if it is conformant."""
    counts = Counter(finding.status for _, finding in findings)
    failed = sum(counts[status] for status in FAILURES)
    if failed:
        yield Doubt(kind="failed", count=failed)
    if counts["not_run"]:
        reasons = tuple(reason for reason, _ in _count_reasons(findings, "not_run"))
        yield Doubt(kind="not_run", count=counts["not_run"], reasons=reasons)


def _count_reasons(findings: Iterable[tuple[str, Finding]], status: str) -> list[tuple[Reason, int]]:
    """Return the number of findings that have the given status, by what is known of them first."""
    own = (finding for _, finding in findings if finding.status == status)
    return Counter(finding.facts[0] if finding.facts else finding.reason for finding in own).most_common()
