"""Tests of the annotations of a gate: which there are, of which level, and that no text ends one early."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from attnbench.analysis.run_diff import Change, compare_implementations
from attnbench.api.revisions import Version
from attnbench.report.comparison.rows import make_sections
from attngate.annotations import MOST, annotate
from attngate.outcome import Fault, Rule, conclude, refine
from timed_runs import case_of, time_calls

VERSIONS = (Version(name="50%:\nbase"), Version(name="the working tree"))


def make_changes(count: int, name: str = "mine") -> list[Change]:
    """Return changes of ``count`` cases whose peak is bigger by 1 MiB."""
    found = []
    for length in range(1, count + 1):
        base, new = (time_calls(side, case=case_of(length)) for side in ("base", "new"))
        assert new.memory is not None
        new = replace(new, memory=replace(new.memory, peak_bytes=new.memory.peak_bytes + 2**20))
        compared = compare_implementations([base, new], base="base", new="new")
        found += [one for one in refine(compared, Rule(), frozenset()) if one.aspect == "peak_bytes"]
    return [replace(one, implementation=name) for one in found]


def list_annotations(changes: list[Change], fail_on: tuple[Fault, ...] = ("wrong", "bigger")) -> list[str]:
    """Return the annotations of a gate that found changes."""
    outcome = conclude(changes, Rule(fail_on=fail_on), versions=VERSIONS, implementations=["mine"], compared=1)
    content = SimpleNamespace(sections=make_sections(changes), failures=SimpleNamespace(groups=()))
    return list(annotate(outcome, content))


def test_each_row_that_became_worse_is_an_error() -> None:
    """The outcome comes first; a row has the implementation, the verdict, the aspect, the change and the case."""
    outcome, row = list_annotations(make_changes(1))
    assert outcome.startswith("::error title=attnbench gate%3A the change is worse::The gate fails: compared with ")
    assert row.startswith("::error title=mine%3A bigger::peak memory; +33.3 %25, ")


@pytest.mark.parametrize(("fail_on", "level"), [(("wrong", "bigger"), "error"), (("wrong",), "warning")])
def test_what_does_not_fail_the_gate_is_a_warning(fail_on: tuple[Fault, ...], level: str) -> None:
    """The level follows the exit code; an outcome that holds is a notice."""
    outcome, row = list_annotations(make_changes(1), fail_on)
    assert row.startswith(f"::{level} ")
    assert outcome.startswith("::error " if level == "error" else "::notice ")


def test_no_more_are_written_than_github_shows() -> None:
    """Of many rows, the first nine are annotations beside the outcome, which counts all."""
    outcome, *rows = list_annotations(make_changes(MOST + 3))
    assert len(rows) == MOST
    assert f"{MOST + 3} numbers of bytes are bigger" in outcome


def test_names_cannot_end_an_annotation() -> None:
    """Line breaks, per cent signs and, in titles, colons and commas are escaped."""
    outcome, row = list_annotations(make_changes(1, "a,b:\n::error::c%"))
    assert "\n" not in outcome + row
    assert "50%25:%0Abase" in outcome
    assert row.startswith("::error title=a%2Cb%3A%0A%3A%3Aerror%3A%3Ac%25%3A bigger::")
