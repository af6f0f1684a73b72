"""Tests of certificates: only a complete run gets a certificate, which records how the run was made."""

import io
import json
from dataclasses import replace
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from attnbench.analysis.certificate import (
    UNMEASURED,
    CertificateError,
    Code,
    Declaration,
    Doubt,
    Suite,
    make_certificate,
)
from attnbench.cases import digest
from attnbench.cli.certifying import write_certificate
from attnbench.cli.recording import Recording
from attnbench.interface import Policies
from attnbench.jobs.job import ConformJob
from attnbench.processes.candidate_requests import Declared
from attnbench.processes.oracle_requests import GetListVersion, ListSuite
from attnbench.records.environment import describe_machine
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import MissingData, OverWorkLimit
from attnbench.records.run_file import RunFile
from attnbench.records.types import Finding, Result, Run
from attnbench.runner import Session
from attnbench.words.certificates import describe_certificate, spell_certificate

# One case more than a verdict needs.
CASES = [f"multihead/B1.L1.S1.E8.H1/-/mask=none/regime=plain/seed={seed}/float32/cpu/eval" for seed in range(21)]
RUN = Run(
    id="r",
    time="t",
    command="c",
    machine=describe_machine(),
    versions={"torch": "2.13.0"},
    threads=1,
    implementations=("a",),
)
SUITE = Suite(level="core", list_versions={"multihead": "2"}, list_hash="abc", cases=21, mutation_score=None)
DECLARED = {"a": Declaration(operator="multihead", source="https://example.org", policies={"hidden_rows": "nan"})}


def make(*statuses: str) -> dict[str, Any]:
    """Make a certificate of an implementation whose findings on each case have these statuses."""
    findings = tuple(
        Finding(check=f"check_{number}", status=status, reason="" if status == "passed" else f"why {status}")  # type: ignore[arg-type]
        for number, status in enumerate(statuses)
    )
    results = [Result(run="r", implementation="a", case=case, findings=findings) for case in CASES]
    return make_certificate(RUN, SUITE, CASES, DECLARED, results)


def test_a_certificate_records_how_it_was_made() -> None:
    """A certificate has suite, machine, versions, policies, counts, refusals, and expected failures with reasons."""
    certificate = make("passed", "unsupported", "expected_failure")
    assert certificate["conformant"] is True
    assert certificate["suite"] == {
        "level": "core", "list_versions": {"multihead": "2"}, "list_hash": "abc", "cases": 21,
        "mutation_score": UNMEASURED,
    }  # fmt: skip
    assert (certificate["run"], certificate["versions"], certificate["devices"]) == ("r", {"torch": "2.13.0"}, ["cpu"])
    assert certificate["machine"]["name"] == describe_machine().name
    (one,) = certificate["implementations"]
    assert one["policies"] == {"hidden_rows": "nan"}
    assert one["findings"] == {"passed": 21, "unsupported": 21, "expected_failure": 21}
    assert one["refused"] == [("why unsupported", 21)]
    assert [(failure["check"], failure["case"]) for failure in one["expected_failures"]] == [
        ("check_2", case) for case in CASES
    ]
    spelled = json.loads(json.dumps(spell_certificate(certificate)))["implementations"][0]
    assert spelled["refused"] == {"why unsupported": 21}
    assert spelled["expected_failures"][0]["reason"] == "why expected_failure"


@pytest.mark.parametrize(
    ("statuses", "doubts"),
    [
        (("passed",), []),
        (("passed", "expected_failure", "unsupported"), []),
        (("passed", "failed"), [Doubt(kind="failed", count=21)]),
        (("passed", "unexpected_pass"), [Doubt(kind="failed", count=21)]),
        (("passed", "timeout", "crashed"), [Doubt(kind="failed", count=42)]),
        (("passed", "not_run"), [Doubt(kind="not_run", count=21, reasons=("why not_run",))]),
        (("unsupported",), [Doubt(kind="nothing_passed"), Doubt(kind="few")]),
    ],
)
def test_only_complete_runs_without_failures_are_conformant(statuses: tuple[str, ...], doubts: list[Doubt]) -> None:
    """The certificate's list of doubts has failures, checks that were not run, and the absence of any passed check."""
    certificate = make(*statuses)
    assert certificate["implementations"][0]["doubts"] == doubts
    assert certificate["conformant"] is (not doubts)


NO_DATA = MissingData(remedy="no data: pip install data")
OVER_WORK = OverWorkLimit(predicted_s=2.0, limit_s=1.0)


def make_without_data(*facts: Fact | None, sources: str = "") -> dict[str, Any]:
    """Make a certificate of a run in which each case with a fact was not run; the second case needs data."""
    results = [
        Result(
            run="r",
            implementation="a",
            case=case,
            findings=(
                Finding(check="x", status="not_run", facts=(fact,)) if fact else Finding(check="x", status="passed"),
            ),
        )
        for case, fact in zip_longest(CASES, facts)
    ]
    run = replace(RUN, sources={"a": sources})
    declared = {"a": replace(DECLARED["a"], code=Code(sha256="abc"))}
    return make_certificate(run, SUITE, CASES, declared, results, without_data={CASES[1]: NO_DATA})


def test_a_missing_data_set_is_no_doubt_but_is_said() -> None:
    """Cases without data are listed and not certified; cases that were not run for another reason are a doubt."""
    certificate = make_without_data(None, NO_DATA)
    (one,) = certificate["implementations"]
    assert (one["conformant"], one["checked_cases"]) == (True, 20)
    assert one["without_data"] == [(NO_DATA, [CASES[1]])]
    assert describe_certificate(spell_certificate(certificate)) == [
        "certificate: a is conformant on 20 cases of the suite core",
        "  not certified, 1 case: no data: pip install data",
    ]
    for facts in ((None, OVER_WORK), (OVER_WORK, NO_DATA)):
        (one,) = make_without_data(*facts)["implementations"]
        assert Doubt(kind="not_run", count=1, reasons=(OVER_WORK,)) in one["doubts"]


def test_a_certificate_speaks_of_one_version_of_the_code() -> None:
    """A run whose sources changed since it began is not conformant; older runs have no hash to compare with."""
    for sources, doubts in (("abc", []), ("", []), ("def", [Doubt(kind="sources")])):
        (one,) = make_without_data(sources=sources)["implementations"]
        assert one["doubts"] == doubts
        assert one["code"]["sha256"] == "abc"


def test_an_incomplete_run_has_no_certificate() -> None:
    """The error names a case without a result, and has the option that continues the run."""
    result = Result(run="r", implementation="a", case=CASES[0], findings=(Finding(check="x", status="passed"),))
    with pytest.raises(CertificateError) as raised:
        make_certificate(RUN, SUITE, CASES, DECLARED, [result])
    assert str(raised.value) == (
        f"no certificate: 20 of 21 cases have no result of a (the first is {CASES[1]}); "
        "continue with: attnbench conform --resume r --certificate FILE"
    )


def test_the_list_of_a_certificate_is_that_of_the_suite(tmp_path: Path) -> None:
    """The certificate has the hash of the level's list of cases, even if the cases ran on another device."""
    file = io.StringIO()
    with Session() as session, RunFile.create(tmp_path, RUN) as stored:
        session.declared["sdpa"] = Declared(
            operator="multihead", source="", policies=Policies(), compiles=False, environment={}
        )
        listed = session.ask_oracle(ListSuite(operator="multihead", level="quick"))
        plans = session.plan(case.replace("/cpu/", "/cuda/") for case in listed)
        found = (Finding(check="x", status="passed"),)
        results = {("sdpa", p.case): Result(run="r", implementation="sdpa", case=p.case, findings=found) for p in plans}
        recorded = Recording(run=RUN, file=stored, results=results)
        write_certificate(session, recorded, ["sdpa"], plans, ConformJob(device="cuda"), file)
        list_version = session.ask_oracle(GetListVersion(operator="multihead"))
    certificate = json.loads(file.getvalue())
    assert certificate["suite"]["list_hash"] == digest(listed)
    assert certificate["suite"]["list_versions"] == {"multihead": list_version}
    assert certificate["devices"] == ["cuda"]
    assert certificate["conformant"] is True
    (one,) = certificate["implementations"]
    assert (one["code"]["distribution"], one["code"]["version"]) == ("attnbench", version("attnbench"))
