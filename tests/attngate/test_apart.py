"""Tests of a gate whose sides have environments of their own: another interpreter, or one that a command builds."""

import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from attnbench.analysis.run_diff import compare_moments
from attnbench.api.revisions import PREFIX, open_worktree, store_working_tree
from attngate import apart, environments, side
from attngate.apart import _compare, build_sides
from attngate.command import command
from attngate.environments import FOLDER, Environment, build_environment, find_interpreter, run_in
from attngate.errors import GateError
from attngate.outcome import Outcome, Rule, SideFact, conclude, refine
from attngate.planning import GateJob, make_conform_job, plan_side_effort
from attngate.side import SideAnswer, make_task
from attngate.texts import describe_outcome, list_notes, tabulate_ratios
from commands import refuse_command
from scratch_repository import SOURCE, Repository
from timed_runs import time_calls

MASKED = "multihead/B2.L6.S6.E24.H3/bias+batch_first+self_attention/mask=bool3d/regime=plain/seed=0/float32/cpu/train"
SMALL = ("--lengths", "16", "--passes", "forward")
REFERENCE = "torch_mha"
BUILDER = venv.EnvBuilder
# Writes a module into the environment, as a package with a compiled extension would be installed.
BUILD = """\
python - <<'END'
import pathlib, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "built.py").write_text(pathlib.Path("built.src").read_text())
END
"""
KERNEL = "from torch.nn.functional import scaled_dot_product_attention as attend\n"
WITHOUT_MASK = f"{KERNEL}whole = attend\n\n\ndef attend(q, k, v, mask): return whole(q, k, v)\n"
CALLING = SOURCE.replace("import torch\n", "import torch\nfrom built import attend\n", 1).replace(
    "F.scaled_dot_product_attention(", "attend("
)
refuse = partial(refuse_command, command)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A scratch repository, which is the current folder; temporary files are below a folder of the test."""
    made = Repository(tmp_path / "scratch")
    monkeypatch.chdir(made.folder)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return made


def list_left(repository: Repository) -> list[str]:
    """Return the worktrees and the temporary folders that are left."""
    worktrees = repository.git("worktree", "list").splitlines()[1:]
    return [*worktrees, *(path.name for path in repository.folder.parent.glob(f"temporary/{PREFIX}*"))]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--base-python", "nowhere/python"), "--base-python: no program 'nowhere/python': name an interpreter"),
        (("--base-python", "true"), "--base-python: 'true' is no Python of version 3.11 or later: name another"),
        (("--base-python", sys.executable, "--build", "true"), "--base-python and --build exclude one another"),
        (("--build", "true", "--base", "."), "--build builds worktrees of revisions, got the folder '.': name a"),
    ],
)
def test_what_is_no_environment_is_refused(repository: Repository, words: tuple[str, ...], message: str) -> None:
    """Each is one line, before anything is measured, and nothing is left."""
    base = () if "--base" in words else ("--base", "HEAD")
    assert message in refuse("mine.py", *base, *words)
    assert list_left(repository) == []


def test_an_interpreter_without_attnbench_or_with_another_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names what it lacks; other code of attnbench would measure otherwise."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    other = tmp_path / "other"
    for name in ("attnbench", "attngate", "torch", "numpy", "click", "msgspec"):
        (other / name).mkdir(parents=True)
        (other / name / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", "")
    with pytest.raises(GateError, match=r"--base-python: .* lacks attnbench, attngate, torch, .*: install attnbench"):
        find_interpreter(str(bare / "bin" / "python"), "--base-python")
    monkeypatch.setenv("PYTHONPATH", str(other))
    with pytest.raises(GateError, match=r"has other code of attnbench than the present interpreter, .*: install the"):
        find_interpreter(str(bare / "bin" / "python"), "--base-python")


def make_bare(place: Path, **_: Any) -> None:
    """Make what stands for a virtual environment where nothing is loaded from it."""
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").symlink_to(sys.executable)
    Path(sysconfig.get_path("purelib", "venv", {"base": str(place)})).mkdir(parents=True)


def test_a_build_that_fails_is_one_line_and_leaves_nothing(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the command, the revision, the exit code and the last line of its output."""
    monkeypatch.setattr(environments.venv, "EnvBuilder", lambda **_: SimpleNamespace(create=make_bare))
    message = refuse("mine.py", "--base", "HEAD", "--build", "echo begun; echo no compiler >&2; exit 3")
    assert "--build: 'echo begun; echo no compiler >&2; exit 3' failed in HEAD (" in message
    assert "with exit code 3: no compiler; run it in a checkout of that revision" in message
    assert list_left(repository) == []


def test_the_end_of_the_output_of_a_failed_build_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line alone seldom says why."""
    monkeypatch.setattr(environments.venv, "EnvBuilder", lambda **_: SimpleNamespace(create=make_bare))
    with pytest.raises(GateError, match=r"failed in HEAD with exit code 1: hint: see above;"):
        build_environment("seq 40; echo error: no compiler; echo hint: see above; false", tmp_path, "HEAD")
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == environments.SHOWN
    assert shown[-2:] == ["error: no compiler", "hint: see above"]


def test_each_side_is_built_in_a_worktree(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sees the files of its side, with those that are in no commit, and its environment comes first."""
    monkeypatch.setattr(environments.venv, "EnvBuilder", lambda **_: SimpleNamespace(create=make_bare))
    repository.write(SOURCE + "# changed\n")
    (repository.folder / "new.txt").write_text("new")
    before = repository.git("status", "--porcelain")
    version = environments.describe_present()
    monkeypatch.setattr(environments, "_probe", lambda _: version)
    command = '(ls; tail -n 1 mine.py; command -v python) > "$VIRTUAL_ENV/seen"'
    commit = repository.git("rev-parse", "HEAD")
    with open_worktree(repository.folder, commit) as folder:
        base = SimpleNamespace(label="base")
        with build_sides([f"{repository.folder}/mine.py:Attend"], (folder, base), command) as sides:
            seen = [(one.environment.folder.parent / FOLDER / "seen").read_text().split() for one in sides]
            paths = [str(Path(one.environment.python)) for one in sides]
            assert [one.names for one in sides] == [("mine.py:Attend",)] * 2
    assert seen[0][0] == "mine.py"
    assert seen[1][:2] == ["mine.py", "new.txt"]
    assert [own[-1] for own in seen] == paths
    assert ("changed" in seen[0], "changed" in seen[1]) == (False, True)
    assert before == repository.git("status", "--porcelain")
    assert list_left(repository) == []


def test_the_working_tree_is_stored_beside_the_index(repository: Repository) -> None:
    """The commit has staged, changed and new files, and none that git ignores; branch, index and checkout stay."""
    (repository.folder / ".gitignore").write_text("ignored\n")
    for name in ("ignored", "new"):
        (repository.folder / name).write_text("")
    repository.write("# changed\n")
    head, status = repository.git("rev-parse", "HEAD"), repository.git("status", "--porcelain")
    commit = store_working_tree(repository.folder)
    assert repository.git("ls-tree", "--name-only", commit).split() == [".gitignore", "mine.py", "new"]
    assert repository.git("show", f"{commit}:mine.py") == "# changed"
    assert repository.git("rev-parse", f"{commit}^") == repository.git("rev-parse", "HEAD") == head
    assert repository.git("status", "--porcelain") == status


def test_an_interrupt_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a build do not go on in a folder that is removed."""

    def interrupt(begun: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        monkeypatch.undo()
        while not (tmp_path / "begun").exists():
            pass
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_in(["/bin/sh", "-c", "echo $$ > pid; touch begun; sleep 600"], tmp_path, {})
    found = subprocess.run(["kill", "-0", (tmp_path / "pid").read_text().strip()], check=False, capture_output=True)
    assert found.returncode != 0


def judge(ratio: float, *, processes: int = 20, slower: float = 0.05, level: float = 0.0025) -> str:
    """Return the verdict on a new side whose ratio to the reference is ``ratio`` times the base's."""
    rule = Rule(slower=slower, level=level)
    sides = [
        {(one.implementation, one.case): one for one in (time_calls(REFERENCE, processes=processes), own)}
        for own in (time_calls("base", 1.2, processes=processes), time_calls("new", 1.2 * ratio, processes=processes))
    ]
    (old,), (now,) = ([one for one in own.values() if one.implementation != REFERENCE] for own in sides)
    found = compare_moments(old, now, *sides, threshold=slower, level=level)
    (time,) = (one for one in refine(found, rule, frozenset()) if one.aspect == "time")
    return time.verdict


@pytest.mark.parametrize(
    ("ratio", "settings", "verdict"),
    [
        (1.2, {}, "slower"),
        (1.02, {}, "same"),
        (0.8, {}, "faster"),
        (1.2, {"processes": 8}, "unknown"),
        (1.02, {"slower": 0.01}, "slower"),
    ],
)
def test_ratios_of_two_moments_have_verdicts(ratio: float, settings: dict[str, Any], verdict: str) -> None:
    """The whole factor of the two ratios decides; too few processes for the level decide nothing."""
    assert judge(ratio, **settings) == verdict


def test_both_intervals_share_the_false_alarms() -> None:
    """A verdict follows from two intervals, each of which may miss; without times, no process times."""
    effort, rule = plan_side_effort(GateJob(), Rule(), 8)
    assert 2 * 8 * rule.level == pytest.approx(0.005)
    assert 2.0 ** -(effort.processes - 2) <= rule.level
    assert plan_side_effort(GateJob(), Rule(fail_on=("wrong",)), 8)[0].processes == 0


def test_a_time_that_a_side_lacks_is_a_gap() -> None:
    """A case that was timed in the base alone is gone; one whose reference was not timed is inconclusive."""
    old, now = time_calls("base"), time_calls("new")
    for without, verdict in ((now, "gone"), (old, "inconclusive"), (None, "inconclusive")):
        kept = [replace(one, timing=None) if one is without else one for one in (old, now)]
        before, after = ({(one.implementation, one.case): one} for one in kept)
        found, unfit = _compare(before, after, {old.case: tuple(kept)}, frozenset({old.case}), Rule())
        assert [one.verdict for one in found if one.aspect == "time"] == [verdict]
        assert not unfit


def conclude_apart(verdict: str) -> Outcome:
    """Return the outcome of a gate at two moments whose only time has a verdict."""
    from attnbench.analysis.run_diff import Change, Gone
    from attnbench.analysis.stats import Interval
    from attnbench.api.revisions import Version

    ratio = Interval(value=1.25, low=1.2, high=1.3)
    change = Change(
        implementation="mine", case="a case", aspect="time", verdict=verdict, fact=Gone(), base=ratio, new=ratio,
        factor=ratio,
    )  # type: ignore[arg-type]  # fmt: skip
    versions = (Version(name="main"), Version(name="the working tree"))
    sides = [SideFact(python="3.11.7", torch=torch, run="a") for torch in ("2.12.0", "2.13.0")]
    rule = Rule(comparisons=1, slower=0.05)
    return conclude([change], rule, versions=versions, implementations=["mine"], compared=1, environments=sides)


def test_the_outcome_tells_two_moments() -> None:
    """The environments and the limits are told, and slower is never told as of interleaved calls."""
    outcome = conclude_apart("slower")
    notes = " ".join(list_notes(outcome))
    assert (outcome.moments, outcome.exit_code) == (2, 1)
    assert "no calls of the two sides were interleaved" in notes
    assert "torch differs" in notes
    assert "1 case is slower beside the reference, at another moment" in describe_outcome(outcome)
    (table,) = tabulate_ratios(outcome)
    assert table.rows[0][2:5] == ("1.250 [1.200, 1.300]",) * 3


def measure_here(environment: Environment, task: side.SideTask) -> SideAnswer:
    """Measure a side in this process, which has torch already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(environment.folder)
        return side.measure_side(task)


Gate = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def gate(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Run a gate with one case in place of the suite core, and return its exit code, outcome and output."""
    monkeypatch.setattr(apart, "make_conform_job", lambda job: replace(make_conform_job(job), cases=(MASKED,)))

    def run(*words: str) -> tuple[int, dict[str, Any], str]:
        file = tmp_path / "outcome.json"
        files = ("--results", str(tmp_path / "results"), "--json", str(file))
        done = CliRunner().invoke(
            command, ["mine.py", *SMALL, *files, *words], standalone_mode=False, catch_exceptions=False
        )
        assert list_left(repository) == []
        return done.return_value, json.loads(file.read_text()), done.output

    return run


@pytest.mark.extended
def test_a_base_in_another_interpreter_is_compared_at_two_moments(
    repository: Repository, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the base had right is found, and each side has a ratio to the reference of its own environment."""
    monkeypatch.setattr(apart, "_ask", measure_here)
    repository.change("mask.unflatten(0, (batch, heads))", "mask.unflatten(0, (heads, batch)).transpose(0, 1)")
    code, outcome, told = gate("--base", "HEAD~1", "--base-python", sys.executable, "--processes", "1")
    wrong = {one["aspect"] for one in outcome["changes"] if one["verdict"] == "wrong"}
    (time,) = (one for one in outcome["changes"] if one["aspect"] == "time")
    assert (code, outcome["moments"], time["verdict"]) == (1, 2, "unknown")
    assert "forward_parity" in wrong
    assert time["base"]["value"] > 0 < time["new"]["value"]
    assert len({one["run"] for one in outcome["environments"]}) == 2
    assert "Two moments: each side was measured in an environment of its own" in told


@pytest.mark.extended
def test_built_sides_are_compared(repository: Repository, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side uses what its command built: a module that ignores the mask is wrong, in processes of its own."""
    # pip, which this command does not use, takes four seconds.
    monkeypatch.setattr(environments.venv, "EnvBuilder", lambda **_: BUILDER(symlinks=True))
    (repository.folder / "built.src").write_text(KERNEL)
    repository.git("add", "built.src")
    repository.commit(CALLING)
    (repository.folder / "built.src").write_text(WITHOUT_MASK)
    code, outcome, _ = gate("--base", "HEAD", "--build", BUILD, "--fail-on", "wrong,bigger")
    wrong = {one["aspect"] for one in outcome["changes"] if one["verdict"] == "wrong"}
    assert (code, outcome["moments"], outcome["new"]["changed"]) == (1, 2, True)
    assert "forward_parity" in wrong


@pytest.mark.extended
def test_code_of_another_folder_is_refused(repository: Repository, tmp_path: Path) -> None:
    """A module that comes from neither the worktree nor its environment would be another version."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(repository.folder / "mine.py", elsewhere / "other_attention.py")
    job = GateJob(results=tmp_path / "results")
    task = make_task(
        job, make_conform_job(job), ["other_attention:Attend"], rule=Rule(), command="", roots=(str(tmp_path / "a"),)
    )
    answer = apart._ask(Environment(python=sys.executable, folder=elsewhere, variables={"TMPDIR": str(tmp_path)}), task)
    assert "is imported from" in answer.error
    assert "let the command install it" in answer.error
    assert msgspec.to_builtins(answer)["path"] == ""
