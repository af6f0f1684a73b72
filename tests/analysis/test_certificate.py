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
    Suite,
    describe_certificate,
    make_certificate,
)
from attnbench.api.jobs import Choice
from attnbench.cases import digest
from attnbench.cli.certifying import write_certificate
from attnbench.cli.recording import Recording
from attnbench.interface import Policies
from attnbench.processes.candidate_requests import Declared
from attnbench.processes.oracle_requests import GetListVersion, ListSuite
from attnbench.records.environment import describe_machine
from attnbench.records.run_file import RunFile
from attnbench.records.types import Finding, Result, Run
from attnbench.runner import Session

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
    assert one["refused"] == {"why unsupported": 21}
    assert one["expected_failures"] == [
        {"check": "check_2", "case": case, "reason": "why expected_failure"} for case in CASES
    ]
    json.dumps(certificate)


@pytest.mark.parametrize(
    ("statuses", "doubts"),
    [
        (("passed",), []),
        (("passed", "expected_failure", "unsupported"), []),
        (("passed", "failed"), ["21 findings failed"]),
        (("passed", "unexpected_pass"), ["21 findings failed"]),
        (("passed", "timeout", "crashed"), ["42 findings failed"]),
        (("passed", "not_run"), ["21 findings have the status not_run (why not_run)"]),
        (("unsupported",), ["nothing passed", "no case was checked, and a verdict needs 20"]),
    ],
)
def test_only_complete_runs_without_failures_are_conformant(statuses: tuple[str, ...], doubts: list[str]) -> None:
    """The certificate's list of doubts has failures, checks that were not run, and the absence of any passed check."""
    certificate = make(*statuses)
    assert certificate["implementations"][0]["doubts"] == doubts
    assert certificate["conformant"] is (not doubts)


def make_without_data(*reasons: str, sources: str = "") -> dict[str, Any]:
    """Make a certificate of a run in which each case whose reason is not empty was not run, for lack of data."""
    results = [
        Result(
            run="r",
            implementation="a",
            case=case,
            findings=(
                Finding(check="x", status="not_run", reason=reason) if reason else Finding(check="x", status="passed"),
            ),
        )
        for case, reason in zip_longest(CASES, reasons, fillvalue="")
    ]
    run = replace(RUN, sources={"a": sources})
    declared = {"a": replace(DECLARED["a"], code=Code(sha256="abc"))}
    return make_certificate(run, SUITE, CASES, declared, results, without_data={CASES[1]: "no data: pip install data"})


def test_a_missing_data_set_is_no_doubt_but_is_said() -> None:
    """Cases without data are listed and not certified; cases that were not run for another reason are a doubt."""
    certificate = make_without_data("", "no data: pip install data")
    (one,) = certificate["implementations"]
    assert (one["conformant"], one["checked_cases"]) == (True, 20)
    assert one["without_data"] == {"no data: pip install data": [CASES[1]]}
    assert describe_certificate(certificate) == [
        "certificate: a is conformant on 20 cases of the suite core",
        "  not certified, 1 case: no data: pip install data",
    ]
    for reasons in (("", "work limit"), ("work limit", "no data: pip install data")):
        (one,) = make_without_data(*reasons)["implementations"]
        assert "1 findings have the status not_run (work limit)" in one["doubts"]


def test_the_doubts_of_a_certificate_are_printed() -> None:
    """Doubts other than missing data are printed after the verdict on the implementation."""
    certificate = make_without_data("work limit", "no data: pip install data")
    assert describe_certificate(certificate)[0] == (
        "certificate: a is NOT conformant on 19 cases of the suite core: "
        "1 findings have the status not_run (work limit); only 19 cases were checked, and a verdict needs 20"
    )


def test_a_certificate_speaks_of_one_version_of_the_code() -> None:
    """A run whose sources changed since it began is not conformant; older runs have no hash to compare with."""
    doubt = "its source files changed while the run was recorded, so results of two versions are mixed"
    for sources, doubts in (("abc", []), ("", []), ("def", [doubt])):
        (one,) = make_without_data("", "", sources=sources)["implementations"]
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
        write_certificate(session, recorded, ["sdpa"], plans, Choice(suite="quick", device="cuda"), file)
        list_version = session.ask_oracle(GetListVersion(operator="multihead"))
    certificate = json.loads(file.getvalue())
    assert certificate["suite"]["list_hash"] == digest(listed)
    assert certificate["suite"]["list_versions"] == {"multihead": list_version}
    assert certificate["devices"] == ["cuda"]
    assert certificate["conformant"] is True
    (one,) = certificate["implementations"]
    assert (one["code"]["distribution"], one["code"]["version"]) == ("attnbench", version("attnbench"))
