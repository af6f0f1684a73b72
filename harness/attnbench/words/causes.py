"""What caused the failures of an implementation: a few words for a table, and lines below a failure on a terminal."""

from attnbench.analysis.diagnoses import Diagnosis, find_diagnosis
from attnbench.analysis.root_causes import Attribution, RootCause
from attnbench.checks.catalogue import read_checks
from attnbench.records.facts import Fact
from attnbench.records.value_facts import PolicyDeviation, ScaleOff
from attnbench.words.faults import name_diagnosis
from attnbench.words.findings import describe_facts, describe_finding
from attnbench.words.say import say, say_count
from attnbench.words.values import name_scale, name_seen

__all__ = [
    "announce_cause",
    "describe_attributions",
    "describe_cause",
    "describe_shared",
    "list_checks",
    "name_cause",
    "title_cause",
]

_ANNOUNCED = "{name} fails: {cause}, on {case}"
_SEVERAL = "{checks} checks, one cause"
_TITLE = "{checks} checks failed for one cause, on {cases}"
_TITLE_OF_ONE = "{check}: {status}{more}"
_MORE = ", and on {cases}"
_CASES = ("{count} case", "{count} cases")
_MORE_CASES = ("{count} more case", "{count} more cases")
_FINDINGS = ("{count} finding", "{count} findings")
_MORE_FINDINGS = ("{count} more finding", "{count} more findings")
_AGAINST = "Required: {requirement} Found: {fault}"
_CHECKS = "failed: {checks}"
_CHECK = "{check} on {count}"
_LEAK = "hidden tokens change results"
_SENTENCE = "{text}."
_NAMED_BY = "{text} (named by {findings})."
_SHARE = "{count} of {total} findings: {diagnosis}."
_ATTRIBUTED: dict[Attribution, str] = {
    "wrong_scale": "{findings} may follow from it, since a wrong scale changes all values",
    "masked_rows": "{findings} may have the same cause: only fully masked rows are wrong",
    "same_case": "{findings} may have the same cause: another finding of the case names it",
    "same_check": "{findings} may have the same cause: another finding of the check names it",
    "same_worst": "{findings} may have the same cause: the worst element is that of another finding of the case",
}


def name_cause(cause: RootCause) -> str:
    """Return what is wrong in a few words, such as "the softmax scale is off by +9.62 %"; else the failed check."""
    if cause.kind == "leak":
        return say(_LEAK)
    if cause.kind == "exception" and len(cause.checks) > 1:
        return describe_facts(cause.facts).removesuffix(".")
    if cause.kind in ("deviation", "diagnosis", "scale"):
        return "; ".join(map(_name_fact, cause.facts))
    return next(iter(cause.checks)) if len(cause.checks) == 1 else say(_SEVERAL, checks=len(cause.checks))


def announce_cause(cause: RootCause) -> str:
    """Return what is wrong and a case that shows it, for the terminal while a run goes on."""
    diagnosis = find_diagnosis(cause.finding)
    text = name_diagnosis(diagnosis) if diagnosis else name_cause(cause)
    return say(_ANNOUNCED, name=cause.implementation, cause=text, case=cause.case)


def title_cause(cause: RootCause) -> str:
    """Return check, status and number of cases; for several checks, their number and the number of cases."""
    if len(cause.checks) > 1:
        return say(_TITLE, checks=len(cause.checks), cases=say_count(_CASES, cause.cases))
    others = sum(cause.checks.values()) - 1
    more = say(_MORE, cases=say_count(_MORE_CASES, others)) if others else ""
    return say(_TITLE_OF_ONE, check=cause.finding.check, status=cause.finding.status, more=more)


def describe_cause(cause: RootCause) -> list[str]:
    """Return the lines below the title of a cause: requirement and fault, the checks, and the command to reproduce it.

    If several checks have the same exception, or deviate from the same policies, no requirement is told, because the
    cause belongs to none of them.
    """
    known = read_checks().get(cause.finding.check)
    text = describe_facts(cause.facts) if cause.kind == "deviation" else describe_finding(cause.finding)
    if known and cause.kind != "deviation" and (len(cause.checks) == 1 or cause.kind != "exception"):
        text = say(_AGAINST, requirement=known.requirement, fault=text)
    return [line for line in (text, list_checks(cause), cause.reproduce) if line]


def list_checks(cause: RootCause) -> str:
    """Return the checks behind a cause, each with its number of cases; an empty text for a single check."""
    if len(cause.checks) == 1:
        return ""
    return say(_CHECKS, checks=", ".join(say(_CHECK, check=check, count=n) for check, n in cause.checks.items()))


def describe_shared(cause: RootCause) -> str:
    """Return what the findings have in common, without the numbers of a single case; may be empty."""
    if cause.kind == "check":
        share = cause.share
        diagnosis = name_diagnosis(share.diagnosis) if share else ""
        return say(_SHARE, count=share.count, total=share.total, diagnosis=diagnosis) if share else ""
    if cause.kind in ("deviation", "exception"):
        return describe_facts(cause.facts)
    count = len(cause.failures) - len(cause.attributed)
    if cause.kind == "diagnosis" and cause.attributed:
        return say(_NAMED_BY, text=name_cause(cause), findings=say_count(_FINDINGS, count))
    return say(_SENTENCE, text=name_cause(cause))


def describe_attributions(cause: RootCause) -> str:
    """Return why failures that do not name the cause are counted with it; empty if there are none."""
    counts = cause.count_attributions()
    texts = (
        say(template, findings=say_count(_MORE_FINDINGS, counts[why]))
        for why, template in _ATTRIBUTED.items()
        if counts[why]
    )
    return " ".join(say(_SENTENCE, text=text) for text in texts)


def _name_fact(fact: Fact) -> str:
    if isinstance(fact, Diagnosis):
        return name_diagnosis(fact)
    if isinstance(fact, ScaleOff):
        return name_scale(fact)
    return name_seen(fact) if isinstance(fact, PolicyDeviation) else ""
