"""Tests of ``attnbench conform --cheats``: two cheats and an oddity are timed; outcomes are printed and stored."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click import UsageError
from click.testing import CliRunner

from attnbench.cli import attnbench, cheats
from attnbench.processes.mutation_requests import ListedCheat
from attnbench.records.outcome_facts import EndedProcesses
from attnbench.runner.cheating import CheatOutcome, Timed, list_cheats, try_cheats
from attnbench.runner.progress import NoProgress, Progress


def invoke(*words: str) -> Any:
    """Run ``attnbench conform --cheats`` in this process; a usage error is raised as an exception."""
    return CliRunner().invoke(attnbench, ["conform", "--cheats", *words], standalone_mode=False, catch_exceptions=False)


def make_outcome(name: str, defended: Timed, undefended: Timed | None) -> CheatOutcome:
    """Make the outcome of a cheat, or of an oddity if ``undefended`` is None."""
    stopped_by = None if undefended is None else "values"
    listed = ListedCheat(name=name, place=f"somewhere:{name}", mode="inference", why="why", stopped_by=stopped_by)
    return CheatOutcome(listed=listed, defended=defended, undefended=undefended, honest_ratio=3.0)


FAST, HONEST, STOPPED = (
    Timed(untimed=None, ratio=0.1), Timed(untimed=None, ratio=2.9), Timed(untimed=EndedProcesses(count=3), ratio=None)
)  # fmt: skip


@pytest.mark.extended
def test_cheats_are_stopped_and_an_oddity_is_not() -> None:
    """The real runner stops a cheat that keeps results and one that answers wrongly; both succeed undefended."""
    names = ("memo_by_content", "returns_input", "same_output_buffer")
    listed = [one for one in list_cheats() if one.name in names]
    assert len(listed) == len(names)
    for one in try_cheats(listed, progress=NoProgress()):
        if one.listed.stopped_by is None:
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

    def give(listed: Sequence[ListedCheat], *, progress: Progress) -> Iterator[CheatOutcome]:
        del listed, progress
        return iter(outcomes)

    monkeypatch.setattr(cheats, "try_cheats", give)
    monkeypatch.setattr(cheats, "list_cheats", list)
    file = tmp_path / "cheats.json"
    outcome = invoke("--json", str(file))
    assert outcome.return_value == code
    assert expected in " ".join(outcome.output.split())
    stored = json.loads(file.read_text())["cheats"]
    assert [one["name"] for one in stored] == [one.listed.name for one in outcomes]
    assert stored[0]["stopped"] is outcomes[0].is_stopped


@pytest.mark.parametrize(
    ("words", "expected"), [(["sdpa"], "leave out sdpa"), (["--suite", "core", "--seed", "1"], "--suite, --seed")]
)
def test_other_options_are_refused(words: list[str], expected: str) -> None:
    """Implementations and options of suites have no effect on cheats, and are refused."""
    with pytest.raises(UsageError, match=expected):
        invoke(*words)
