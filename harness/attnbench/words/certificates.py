"""Certificates: their doubts and reasons, and the lines that a terminal shows."""

from collections.abc import Mapping
from typing import Any

from attnbench.analysis.certificate import Doubt
from attnbench.analysis.invariance import GradedProperty
from attnbench.words.coverage import describe_asking, describe_completion, describe_few
from attnbench.words.findings import describe_facts, describe_finding, describe_reason
from attnbench.words.say import say

__all__ = ["describe_certificate", "spell_certificate"]

_DOUBTS = {
    "failed": "{count} findings failed",
    "nothing_passed": "nothing passed",
    "not_run": "{count} findings have the status not_run ({reasons})",
    "completion_failed": "{count} findings on cases of the completion failed",
    "completion_not_run": "{count} findings on cases of the completion have the status not_run",
    "sources": "its source files changed while the run was recorded, so results of two versions are mixed",
}
_VERDICT = "certificate: {name} is {verdict} on {cases} of the suite {level}{doubts}"
_CONFORMANT, _NOT_CONFORMANT = "conformant", "NOT conformant"
_BECAUSE = ": {doubts}"
_WITHOUT_DATA = "  not certified, {cases}: {reason}"
_UNMEASURED = "not measured; attnbench invariance measures it"
_CASES = ("{count} case", "{count} cases")


def spell_certificate(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """Return a certificate with texts in place of doubts, reasons and completions, as it is written to a file."""
    return {**certificate, "implementations": [_spell(one) for one in certificate["implementations"]]}


def describe_certificate(certificate: Mapping[str, Any]) -> list[str]:
    """Return lines for the terminal about a spelled certificate: verdicts with doubts, and the cases left out."""
    lines = []
    for one in certificate["implementations"]:
        doubts = say(_BECAUSE, doubts="; ".join(one["doubts"])) if one["doubts"] else ""
        verdict, cases = say(_CONFORMANT if one["conformant"] else _NOT_CONFORMANT), _count_cases(one["checked_cases"])
        level = certificate["suite"]["level"]
        name = one["implementation"]
        lines.append(say(_VERDICT, name=name, verdict=verdict, cases=cases, level=level, doubts=doubts))
        lines += [
            say(_WITHOUT_DATA, cases=_count_cases(len(own)), reason=reason)
            for reason, own in one["without_data"].items()
        ]
    return lines


def _spell(one: Mapping[str, Any]) -> dict[str, Any]:
    spelled = {
        **one,
        "doubts": list(map(_describe_doubt, one["doubts"])),
        "without_data": {describe_reason(fact): cases for fact, cases in one["without_data"]},
        "refused": {describe_reason(reason): count for reason, count in one["refused"]},
        "not_run": {describe_reason(reason): count for reason, count in one["not_run"]},
        "expected_failures": [
            {**failure, "reason": describe_finding(failure["reason"])} for failure in one["expected_failures"]
        ],
    }
    if one["invariance"] is None:
        spelled["invariance"] = say(_UNMEASURED)
    else:
        spelled["invariance"] = {**one["invariance"], "grades": list(map(_spell_grade, one["invariance"]["grades"]))}
    if "completion" in one:
        completion = one["completion"]["summary"]
        texts = {"summary": describe_completion(completion), "notes": list(describe_asking(completion))}
        spelled["completion"] = {**one["completion"], **texts}
    return spelled


def _spell_grade(one: GradedProperty) -> dict[str, Any]:
    facts = {"status": one.status, "grade": describe_facts(one.facts)}
    ulp = {"largest_ulp": one.grade.largest_ulp} if one.grade else {}
    return {"property": one.name, "quantity": one.quantity, "dtype": one.dtype, "device": one.device, **facts, **ulp}


def _describe_doubt(doubt: Doubt) -> str:
    if doubt.kind == "few":
        return describe_few(doubt.count)
    return say(_DOUBTS[doubt.kind], count=doubt.count, reasons="; ".join(map(describe_reason, doubt.reasons)))


def _count_cases(count: int) -> str:
    return say(_CASES[count != 1], count=count)
