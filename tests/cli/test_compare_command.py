"""Tests of ``attnbench compare``: two implementations with interleaved timing, or one from two source trees."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from attnbench.analysis.run_diff import UNDECIDED, WORSE, Change, Gone, Verdict
from attnbench.cli import attnbench, compare_command
from attnbench.cli.compare_command import _choose_exit_code
from attnbench.jobs.job import CompareJob
from attnbench.plugins.registry import PluginError
from attnbench.records.run_file import ResultsError, RunFile, find_runs, read_run
from attnbench.records.types import End
from scratch_repository import SOURCE, Repository
from timed_runs import REFERENCE, store, time_calls

# Options for a short measurement: one short length, one pass, one thread.
SMALL = ("--lengths", "16", "--passes", "forward", "--threads", "1")
# Source of a kernel. Each call of the kernel calls the function ``work`` of another module, ``other_work``.
KERNEL = """
import torch

def attend(q, k, v, *, scale):
    from other_work import work
    work()
    return torch.softmax(q @ k.mT * scale, dim=-1) @ v
"""
# ``work`` that takes longer than the rest of the call: a matrix product.
EXTRA_WORK = """
import torch

ONE = torch.ones(256, 256)

def work():
    ONE @ ONE
"""
# Two kernels that hold a tensor during the call; the tensor of the second is one byte larger.
HOLDING_KERNELS = """
import torch

def make_kernel(size):
    def attend(q, k, v, *, scale):
        kept = torch.empty(size, dtype=torch.uint8)
        output = torch.softmax(q @ k.mT * scale, dim=-1) @ v
        del kept
        return output
    return attend

EXACT, LARGER = make_kernel(100_000), make_kernel(100_001)
"""


def invoke(*words: str) -> Any:
    """Run an attnbench command in this process, and return its result; a usage error is raised as an exception."""
    return CliRunner().invoke(attnbench, words, standalone_mode=False, catch_exceptions=False)


def compare(folder: Path, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run ``compare`` on one case, and return its exit code and the change of each aspect."""
    file = folder / "changes.json"
    outcome = invoke("compare", *words, *SMALL, "--results", str(folder / "results"), "--json", str(file))
    return outcome.return_value, {change["aspect"]: change for change in json.loads(file.read_text())["changes"]}


@pytest.mark.extended
def test_work_that_was_added_to_a_source_tree_is_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source tree whose kernel calls a matrix product in addition is slower.

    If other work disturbs the processes too much for a verdict, the message says so, and the samples are stored.
    """
    for folder, other_work in (("old", "def work():\n    pass\n"), ("new", EXTRA_WORK)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(KERNEL)
        (tmp_path / folder / "other_work.py").write_text(other_work)
    monkeypatch.chdir(tmp_path / "new")
    # The added work takes longer than the rest of a call, so a fifth of the usual samples tells them apart.
    monkeypatch.setattr(compare_command, "EFFORT", replace(compare_command.EFFORT, budget_s=0.2))
    code, changes = compare(tmp_path, "mine.py:attend", "--base", "../old", "--processes", "7")
    assert code == 1
    if changes["time"]["verdict"] != "slower":
        assert changes["time"]["verdict"] == "inconclusive"
        assert re.search("other work disturbed|A/A control failed", changes["time"]["told"])
    else:
        assert "× the base's time, 7 of 7 processes are usable" in changes["time"]["told"]
    assert changes["time"]["implementation"] == "mine.py:attend @ ."
    assert (changes["kernel_calls"]["verdict"], changes["flop"]["verdict"]) == ("bigger", "same")
    (path,) = find_runs(tmp_path / "results", [])
    run = read_run(path)
    assert run.run.implementations == ("mine.py:attend @ old", "mine.py:attend @ .")
    assert str(tmp_path) not in path.read_text()
    timings = {result.implementation: result.timing for result in run.results if result.timing}
    assert [len(timing.samples_ns) for timing in timings.values()] == [7, 7]
    base = timings["mine.py:attend @ old"]
    assert base is not None
    assert base.twin is not None
    new = timings["mine.py:attend @ ."]
    assert new is not None
    # The fastest call is hardly disturbed.
    assert min(map(min, new.samples_ns)) > min(map(min, base.samples_ns))


@pytest.mark.extended
def test_one_more_byte_is_found(tmp_path: Path) -> None:
    """If a kernel allocates one byte more, the verdict on memory is ``bigger``; one process cannot judge time."""
    file = tmp_path / "mine.py"
    file.write_text(HOLDING_KERNELS)
    page, markdown = tmp_path / "page.html", tmp_path / "comment.md"
    words = ("--processes", "1", "--html", str(page), "--markdown", str(markdown))
    code, changes = compare(tmp_path, f"{file}:EXACT", f"{file}:LARGER", *words)
    assert code == 1
    assert "+1 B" in page.read_text("utf-8")
    assert markdown.read_text("utf-8").startswith("### attnbench compare: `mine.py:EXACT` → `mine.py:LARGER`\n")
    assert changes["peak_bytes"]["verdict"] == changes["workspace_bytes"]["verdict"] == "bigger"
    base, new = changes["peak_bytes"]["told"].removesuffix(" bytes").split(" → ")
    assert int(new) - int(base) == 1
    assert changes["kernel_calls"]["verdict"] == "same"
    assert changes["time"]["verdict"] in UNDECIDED


def store_runs(folder: Path, *, cut: bool = False) -> list[str]:
    """Store a run, and a run in which ``mine`` is slower, and return their files; ``cut``: the second has no end."""
    files = []
    for name, ratio in (("20260101-000000-aaaa", 1.0), ("20260102-000000-bbbb", 1.5)):
        results = [time_calls(REFERENCE, run=name), time_calls("mine", ratio, run=name)]
        with RunFile.create(folder, store(results, run=name).run) as file:
            for one in results:
                file.append(one)
            if not cut or ratio == 1.0:
                file.append(End(run=name, time="2026-01-01T01:00:00+00:00", outcome="finished", exit_code=0))
        files.append(str(file.path))
    return files


def test_two_stored_runs_are_written_as_a_page_and_as_markdown(tmp_path: Path) -> None:
    """The files say what became slower; the exit code is that of the terminal's table."""
    runs, page, markdown = store_runs(tmp_path), tmp_path / "page.html", tmp_path / "comment.md"
    plain = invoke("compare", *runs)
    outcome = invoke("compare", *runs, "--html", str(page), "--markdown", str(markdown))
    assert (outcome.return_value, outcome.stdout) == (plain.return_value, plain.stdout)
    assert outcome.return_value == 1
    assert "mine is slower on 1\u00a0case (+50\u00a0%" in page.read_text("utf-8").replace("+50 %", "+50\u00a0%")
    assert "- ❌ mine is slower on 1 case (+50 %" in markdown.read_text("utf-8")


def test_markdown_on_standard_output_is_alone(tmp_path: Path) -> None:
    """With ``--markdown -``, the table is on standard error."""
    outcome = invoke("compare", *store_runs(tmp_path), "--markdown", "-")
    assert outcome.stdout.startswith("### attnbench compare")
    assert outcome.stdout.endswith("|\n")
    assert "1 slower" in outcome.stderr


def test_a_cut_run_is_named_above_the_changes(tmp_path: Path) -> None:
    """A run that was cut, and a line that cannot be read, are warnings in every output."""
    runs = store_runs(tmp_path, cut=True)
    with Path(runs[1]).open("a") as file:
        file.write('{"record": "result", "ru')
    outcome = invoke("compare", *runs, "--markdown", "-")
    for text in (outcome.stdout, outcome.stderr):
        assert "NEW is incomplete: Run 20260102-000000-bbbb was cut. The last line was half-written" in text
    assert outcome.return_value == 1


def test_impossible_measurements_are_left_out_and_named(tmp_path: Path) -> None:
    """Samples that cannot be right end in a warning, not in a traceback, and nothing is computed from them."""
    runs = store_runs(tmp_path)
    path = Path(runs[1])
    text = path.read_text()
    assert '"samples_ns":[[60000,' in text
    path.write_text(text.replace('"samples_ns":[[60000,', '"samples_ns":[[-5,'))
    outcome = invoke("compare", *runs, "--markdown", "-")
    assert "Left out, because it cannot be right: 1 timing. The first: samples_ns has a sample of -5" in outcome.stderr
    assert "1 timing" in outcome.stdout
    assert "slower" not in outcome.stdout


def make_change(verdict: Verdict) -> Change:
    """A change with this verdict."""
    return Change(implementation="mine", case="c", aspect="time", verdict=verdict, fact=Gone())


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([], 3),
        (["same", "faster", "smaller", "mended", "other"], 0),
        (["same", "unknown"], 3),
        (["same", "inconclusive"], 3),
        *((["same", "inconclusive", worse], 1) for worse in sorted(WORSE)),
    ],
)
def test_the_exit_code_follows_from_the_verdicts(verdicts: Sequence[Verdict], code: int) -> None:
    """Code 1: a change is worse; 3: none is worse but one is undecided, or there is no change at all; 0: otherwise."""
    assert _choose_exit_code([make_change(verdict) for verdict in verdicts], undecided=UNDECIDED) == code


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (
            ("sdpa",),
            click.UsageError,
            "NEW is missing: name a second run or implementation, or another source tree with",
        ),
        (
            ("sdpa", "reshapd"),
            PluginError,
            "unknown implementation 'reshapd'; did you mean 'reshaped' or 'core_reshaped'?",
        ),
        (
            ("sdpa", "run.jsonl"),
            click.UsageError,
            "'sdpa' is an implementation and 'run.jsonl' is a run: name two runs or two implementations",
        ),
        (
            ("sdpa", "2098"),
            click.UsageError,
            "'sdpa' is an implementation and '2098' is a run: name two runs or two implementations",
        ),
        (
            ("sdpa", "sdpa"),
            click.UsageError,
            "'sdpa' is named twice: name two implementations, or another source tree with --base REV_OR_PATH",
        ),
        (("sdpa", "sdpa @ nowhere"), PluginError, "no such folder: nowhere"),
        (("sdpa", "none.py:X"), PluginError, "no such file: none.py"),
        (("2099", "2098"), ResultsError, "no run '2099' in stored; did you mean 2098?"),
        (
            ("2099", "2098", "--lengths", "8"),
            click.UsageError,
            "--lengths applies to implementations only, and BASE and NEW are stored runs: leave it out",
        ),
        (("2099", "2098", "--dtype", "float64"), click.UsageError, "--dtype applies to implementations only, and BASE"),
        (
            ("sdpa", "reshaped", "--threshold", "0.1"),
            click.UsageError,
            "--threshold applies to stored runs only, and BASE and NEW are implementations: leave it out",
        ),
        (
            ("sdpa", "reshaped", "--base", "."),
            click.UsageError,
            "--base compares one implementation with its version in another source tree: leave",
        ),
        (
            ("2099", "2098", "--html", "none/page.html"),
            click.BadParameter,
            "needs a file in an existing folder, got 'none/page.html'; - is standard output",
        ),
        (("2099", "2098", "--markdown", "stored"), click.BadParameter, "needs a file in an existing folder, got"),
        (
            ("2099", "2098", "--html", "page", "--markdown", "page"),
            click.UsageError,
            "--html and --markdown name the same file 'page': give each its own",
        ),
        (
            ("sdpa", "--base", "."),
            PluginError,
            "--base: . has no attnzoo, the source of 'sdpa'; name a folder that contains another version of it",
        ),
        (("none.py", "sdpa"), PluginError, "no such file: none.py"),
        (("sdpa", "two.py"), PluginError, "name one: two.py:one, two.py:other"),
        (("2099", "--base", "."), PluginError, "unknown implementation '2099'; available: "),
    ],
)
def test_usage_errors_are_raised_before_anything_is_run(
    words: Sequence[str], error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the values given and the remedy, and no process is started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stored" / "cpu").mkdir(parents=True)
    (tmp_path / "stored" / "cpu" / "2098.jsonl").write_text("")
    (tmp_path / "run.jsonl").write_text("")
    (tmp_path / "two.py").write_text("def one(q, k, v): ...\ndef other(q, k, v): ...\n")
    monkeypatch.setattr("subprocess.Popen", None)
    with pytest.raises(error) as raised:
        invoke("compare", *words, "--results", "stored")
    assert message in (
        raised.value.format_message() if isinstance(raised.value, click.ClickException) else str(raised.value)
    )


def test_a_revision_is_compared_in_a_worktree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base is the version of the commit, by whose digits results name it; the worktree is removed at the end.

    What goes wrong is told with the revision, and not with the folder of its worktree.
    """
    repository = Repository(tmp_path / "scratch")
    monkeypatch.chdir(repository.folder)
    repository.write(SOURCE + "# changed\n")
    seen = []

    def interrupt(job: CompareJob, resumed: object, *, files: object) -> int:
        assert job.tree is not None
        seen.append((job.tree.name, (job.tree / "mine.py").read_text() == SOURCE))
        raise error(f"--base {job.tree}") from None

    monkeypatch.setattr(compare_command, "_compare_implementations", interrupt)
    for error in (click.Abort, PluginError):
        with pytest.raises(error, match=r"--base HEAD$"):
            invoke("compare", "mine.py", "--base", "HEAD")
    assert seen == [(repository.git("rev-parse", "HEAD")[:12], True)] * 2
    assert repository.git("worktree", "list").count("\n") == 0
    with pytest.raises(click.UsageError, match="--base: the repository has no revision 'nowhere', and there is no"):
        invoke("compare", "mine.py", "--base", "nowhere")
