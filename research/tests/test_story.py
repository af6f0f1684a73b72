"""Tests of the story of commits: the gate and the history name each planted commit, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from attnbench.asv import benchmarks
from research.lines import Lines
from research.story import __main__ as study
from research.story.__main__ import format_table, main
from research.story.commits import FILE, STORY, Commit, Repository, make_repository
from research.story.gates import TOLD, check_part, expect_verdicts, run_gate
from research.story.histories import find_moves, find_steps
from stored_history import SUITE, write_asv

# Part of core that gates check here: six cases, none of which was chosen for a planted fault. The command checks all.
SHARD = (1, 100)
WORDS = ("--lengths", "16", "--passes", "forward", "--fail-on", "wrong,bigger")
PASSES = ("forward", "forward+backward")
COUNTERS = ("peak_bytes", "saved_bytes", "workspace_bytes", "kernel_calls", "flop")
# Commits whose gates run here, by the beginnings of their subjects: a gate takes ten seconds of processor time. The
# command runs all, and tests/attngate has the other kinds of faults.
GATED = ("First version", "WRONG: heads", "Add a licence")


def test_the_story_has_thirty_commits() -> None:
    """Five faults, a repair of each and an improvement are planted; the other commits change nothing."""
    planted = [commit for commit in STORY if commit.is_planted]
    kinds = [commit.subject.partition(":")[0] for commit in planted]
    assert len(STORY) == 30
    assert sorted(kinds) == ["BETTER", "BIGGER", "BIGGER", *["Repair"] * 5, "SLOWER", "WRONG", "WRONG"]
    assert len({commit.subject for commit in STORY}) == 30


def test_hashes_of_commits_are_the_same_again(tmp_path: Path) -> None:
    """A study that is resumed finds the commits that it measured before."""
    _, first = make_repository(tmp_path / "first", STORY[:2])
    _, second = make_repository(tmp_path / "second", STORY[:2])
    assert first == second


def test_an_edit_that_does_not_apply_is_an_error(tmp_path: Path) -> None:
    """Where the example changes, the story says which text it does not find."""
    with pytest.raises(ValueError, match=r"^typo: 'no such text' must be in mine.py once, is 0 times$"):
        make_repository(tmp_path / "made", [Commit(subject="typo", edits=(("no such text", ""),))])


@pytest.mark.extended
def test_the_gate_names_each_planted_commit_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit is compared with the one before; the checks of the base are those that were kept of it."""
    # An earlier run of this test has the same commits.
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "cache"))
    story = [commit for commit in STORY if commit.subject.startswith(GATED)]
    assert len(story) == len(GATED)
    repository, commits = make_repository(tmp_path / "scratch", story)
    for number in range(1, len(story)):
        repository.check_out(commits[number])
        with check_part(SHARD):
            outcome = run_gate(repository, commits[number - 1], WORDS)
        told = sorted(TOLD & {one["verdict"] for one in outcome["changes"]})
        assert told == expect_verdicts(story[number], ["wrong", "bigger"]), story[number].subject
        assert outcome["outcome"] == ("worse" if {"wrong", "bigger"} & {*told} else "holds")
        # What was checked of a commit is kept, so that it is checked once.
        assert bool(outcome["kept"]) == (number > 1)


@pytest.mark.extended
def test_the_history_names_each_commit_that_moves_a_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are those of asv's benchmarks of each source; equal sources are measured once."""
    repository, commits = make_repository(tmp_path / "scratch", STORY)
    places: list[str] = []
    for number, (commit, planted) in enumerate(zip(commits, STORY, strict=True)):
        if planted.is_planted or not places:
            place = tmp_path / f"version{number}" / FILE
            place.parent.mkdir()
            place.write_text(repository.git("show", f"{commit}:{FILE}"), encoding="utf-8")
        places.append(f"{place.relative_to(tmp_path)}:MyAttention")
    monkeypatch.chdir(tmp_path)
    suite = benchmarks(list(dict.fromkeys(places)), [128], processes=0, budget_s=0.02)()
    numbers = suite.setup_cache()
    params = [["'mine:MyAttention'"], ["128"], [repr(one) for one in PASSES]]
    for number, (commit, place) in enumerate(zip(commits, places, strict=True)):
        values = {
            f"{SUITE}.track_{name}": [
                [getattr(suite, f"track_{name}")(numbers, place, 128, one) for one in PASSES], params, "1", 1, 2.5,
            ]
            for name in COUNTERS
        }  # fmt: skip
        write_asv(tmp_path / "asv", number, {}, results=values, commit_hash=commit)
    steps = find_steps([tmp_path / "asv"], "mine:MyAttention")
    for commit, planted in zip(commits, STORY, strict=True):
        assert steps.get(commit, set()) == planted.history, planted.subject


def test_the_page_tells_what_differs_from_what_was_expected(tmp_path: Path) -> None:
    """A row has what a gate told; a verdict that was not expected is counted, and one that was not asked for is not."""
    commits = [f"{number:040x}" for number in range(len(STORY))]
    header = {"kind": "header", "fail_on": "wrong,bigger", "part_of_core": [1, 40]}
    with Lines.open(tmp_path / "gates.jsonl", header, resume=False) as lines:
        lines.add({"commit": commits[3], "told": []})
        lines.add({"commit": commits[7], "told": ["bigger"]})
        lines.add({"commit": commits[8], "told": ["wrong"]})
    page = format_table(tmp_path, commits)
    assert "3 of 29 were run" in page
    assert "differ from what was expected, without ratios of times: 1." in page
    assert "| 8 | 00000000 | BIGGER: a copy of the weights during the call | bigger | bigger |  |  |" in page
    assert "| 9 | 00000000 | Describe the masks | holds | wrong |  |  |" in page


def test_gates_continue_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --resume a stored file is refused; with it, only the commits that it lacks are gated."""
    gated: list[str] = []

    def tell(repository: Repository, base: str, words: list[str]) -> dict[str, Any]:
        gated.append(repository.git("log", "-1", "--format=%s"))
        outcome = dict.fromkeys(("worse", "mended", "undecided", "untimed", "kept"))
        return {"outcome": "holds", "changes": [{"verdict": "same"}], **outcome}

    monkeypatch.setattr(study, "run_gate", tell)
    monkeypatch.setattr(study, "STORY", STORY[:3])
    words = ["gate", "--data", str(tmp_path)]
    assert main(words) == 0
    assert gated == [commit.subject for commit in STORY[1:3]]
    assert main(words) == 1
    path = tmp_path / "gates.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert main([*words, "--resume"]) == 0
    assert gated[2:] == [STORY[2].subject]


def test_a_graph_moves_where_a_value_differs_from_the_last_one() -> None:
    """A value that is missing at some commits is compared with the one before the gap."""
    assert find_moves([(0, [1, 2]), (1, [1, None]), (2, [1, 2]), (3, [1, 3]), (5, [0, 3])]) == [3, 5]
    assert find_moves([(0, 1.0), (1, None), (2, 2.0)]) == [2]
