"""Tests that files of earlier versions stay readable: a run, a certificate and a list of cases that fuzz found."""

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from attnbench.cases import Case
from attnbench.cli.conform_command import command
from attnbench.plugins.registry import load_problem_types
from attnbench.records.run_file import read_run
from attnbench.report import write

DATA = Path(__file__).parents[1] / "data"
# Fields of a certificate whose values differ from run to run.
OF_THE_RUN = ("certificate", "run", "time", "commit", "versions", "machine", "threads")
# Fields of a suite that change with the version of its list of cases.
OF_THE_LIST = ("list_versions", "list_hash", "cases")
# Fields of an implementation that certificates of version 1 lack, or lack on the suite quick.
ADDED = ("code", "checked_cases", "without_data", "completion", "invariance")


@pytest.mark.parametrize("table", sorted((DATA / "report-schema-2").glob("*.csv")), ids=lambda path: path.stem)
def test_a_stored_run_has_the_same_tables(table: Path, tmp_path: Path) -> None:
    """A report on the stored run has the numbers of the stored report, digit for digit; columns may have been added."""
    write([read_run(DATA / "run-schema-2.jsonl")], tmp_path)
    before, after = (
        list(csv.DictReader(io.StringIO(path.read_text("utf-8")))) for path in (table, tmp_path / table.name)
    )
    assert [{name: new[name] for name in old} for old, new in zip(before, after, strict=True)] == before


@pytest.mark.extended
def test_a_certificate_equals_a_stored_one(tmp_path: Path) -> None:
    """A new certificate equals the stored certificate of the same command, except for the fields in OF_THE_RUN.

    Policies and fields of an implementation that were added since are left out, and so are the version and the list.
    """
    before, after = DATA / "certificate-1.json", tmp_path / "after.json"
    words = ["per_head", "core_sdpa", "--suite", "quick", "--certificate", str(after), "--results", str(tmp_path)]
    assert CliRunner().invoke(command, words, standalone_mode=False).return_value == 0
    old, new = (json.loads(path.read_text()) for path in (before, after))
    assert list(new) == list(old)
    for was, now in zip(old["implementations"], new["implementations"], strict=True):
        assert [name for name in ADDED if name in was] == []
        assert all(now.pop(name) is not None for name in ADDED)
        now["policies"] = {name: value for name, value in now["policies"].items() if name in was["policies"]}
        for field in ("findings", "refused"):  # checks were added since
            counts, counts_before = now.pop(field), was.pop(field)
            assert all(counts[key] >= count for key, count in counts_before.items())
    for certificate in (old, new):
        for name in OF_THE_LIST:
            del certificate["suite"][name]
    assert {key: value for key, value in new.items() if key not in OF_THE_RUN} == {
        key: value for key, value in old.items() if key not in OF_THE_RUN
    }


def test_found_cases_are_read_as_before() -> None:
    """Every line of the stored ``found.txt`` can be parsed as a case, and the id of the case is the line."""
    lines = (DATA / "found.txt").read_text().splitlines()
    assert [Case.parse(line, load_problem_types()).id for line in lines] == lines
