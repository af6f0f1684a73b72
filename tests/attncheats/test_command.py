"""Tests of ``attnbench cheats``: two cheats and an oddity are timed; outcomes are printed and stored."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from attnbench.records.outcome_facts import EndedProcesses
from attnbench.runner.progress import NoProgress, Progress
from attncheats import outcomes, score
from attncheats.catalogue import CHEATS, ODDITIES
from attncheats.cheat import Cheat, Oddity
from attncheats.command import command
from attncheats.outcomes import CheatOutcome, Timed, try_cheats


def make_outcome(name: str, defended: Timed, undefended: Timed | None) -> CheatOutcome:
    """Make the outcome of a cheat, or of an oddity if ``undefended`` is None."""
    implementation = ODDITIES["plain_labour"].implementation
    named = type(name, (type(implementation),), {"name": name})()
    tried: Cheat | Oddity = (
        Oddity(implementation=named, why="why")
        if undefended is None
        else Cheat(implementation=named, stopped_by="values", why="why", source="constructed: here")
    )
    return CheatOutcome(tried=tried, defended=defended, undefended=undefended)


FAST, HONEST, STOPPED = (
    Timed(untimed=None, ratio=0.1, of_honest=0.03),
    Timed(untimed=None, ratio=2.9, of_honest=0.97),
    Timed(untimed=EndedProcesses(count=3), ratio=None, of_honest=None),
)  # fmt: skip


@pytest.mark.extended
def test_cheats_are_stopped_and_an_oddity_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real runner stops a cheat that keeps results and one that answers wrongly; both succeed undefended."""
    # The score uses two processes. What these cheats do, they do in each.
    monkeypatch.setattr(outcomes, "EFFORT", replace(outcomes.EFFORT, processes=1))
    names = ("memo_by_content", "returns_input", "same_output_buffer")
    tried = [one for one in (*CHEATS.values(), *ODDITIES.values()) if one.name in names]
    assert len(tried) == len(names)
    for one in try_cheats(tried, progress=NoProgress()):
        if isinstance(one.tried, Oddity):
            assert not one.is_accused, one.defended
        else:
            assert one.is_stopped, one.defended
            assert one.succeeds_undefended, one.undefended


@pytest.mark.parametrize(
    ("outcomes", "code", "expected"),
    [
        ([make_outcome("memo", STOPPED, FAST), make_outcome("odd", HONEST, None)], 0, "1 of 1 cheats are stopped"),
        ([make_outcome("memo", FAST, FAST)], 1, "NOT STOPPED: 0.10 × the reference's time"),
        ([make_outcome("memo", HONEST, FAST), make_outcome("odd", STOPPED, None)], 1, "ACCUSED: odd: it ended 3"),
        ([make_outcome("memo", STOPPED, HONEST)], 0, "Not faster without the defences: memo."),
    ],
)
def test_outcomes_are_printed_and_stored(
    outcomes: list[CheatOutcome], code: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is 1 if a cheat is not stopped or an oddity is accused; the file has every outcome."""

    def give(tried: Sequence[Cheat | Oddity], *, progress: Progress) -> Iterator[CheatOutcome]:
        del tried, progress
        return iter(outcomes)

    monkeypatch.setattr(score, "try_cheats", give)
    file = tmp_path / "cheats.json"
    outcome = CliRunner().invoke(command, ["--json", str(file)], standalone_mode=False, catch_exceptions=False)
    assert outcome.return_value == code
    assert expected in " ".join(outcome.output.split())
    stored = json.loads(file.read_text())["cheats"]
    assert [one["name"] for one in stored] == [one.tried.name for one in outcomes]
    assert stored[0]["stopped"] is outcomes[0].is_stopped
