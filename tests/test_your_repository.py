"""Tests that docs/your-repository.md can be followed: its files, commands and jobs, in a scratch repository.

The jobs are those of the page, and the action of this repository, which the page's workflow calls.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import shortened_gate
from commands import run_command
from pages import ROOT, Block, read_blocks
from workflow_steps import evaluate, fill, run_script

pytestmark = pytest.mark.long

PAGE = ROOT / "docs" / "your-repository.md"
BLOCKS = read_blocks(PAGE)
# The only file of the page whose language has no comments.
JSON_FILE = "asv.conf.json"
# Parts of the page, and what stands for them here so that the tests take seconds.
STAND_INS = {
    "--suite core": "--suite quick",
    'suite="quick")': 'suite="quick", checks="forward_parity")',
    "lengths=[128, 512]": "lengths=[16], processes=1, budget_s=0.05",
    # asv starts a process for each benchmark of each call.
    "asv run": "asv run --bench track_peak_bytes",
}
CALL = "return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)"
REFACTORED = CALL.replace("return", "heads =") + "\n    return heads"
WITHOUT_MASK = "return scaled_dot_product_attention(q, k, v, scale=scale)"
# Seconds of one command.
TIMEOUT_S = 300


def name_file(block: Block) -> str | None:
    """Return the name of the file that a block of the page shows."""
    return JSON_FILE if block.language == "json" else block.file_name


def read_workflow(name: str) -> dict[str, Any]:
    """Return the content of a workflow of the page, or of a file of jobs."""
    (block,) = (block for block in BLOCKS if block.file_name == name)
    return dict(yaml.safe_load(block.text))


def list_lines(scripts: list[str]) -> list[str]:
    """Return the commands of a job, without those that install."""
    return [line for script in scripts for line in script.splitlines() if not line.startswith("pip install ")]


@dataclass
class Repository:
    """The reader's repository, and the commands that were run in it."""

    folder: Path
    done: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a command line of the page; attnbench runs in this process."""
        for shown, stand_in in STAND_INS.items():
            line = line.replace(shown, stand_in)
        words = shlex.split(os.path.expandvars(line))
        if words[0] == "attnbench":
            done = run_command(*words[1:], cwd=self.folder)
        else:
            done = subprocess.run(
                ["bash", "-c", line], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        self.done[line] = done
        return done

    def write(self, block: Block) -> None:
        """Write a file of the page."""
        target, text = self.folder / str(name_file(block)), block.text
        for shown, stand_in in STAND_INS.items():
            text = text.replace(shown, stand_in)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def change(self, after: str) -> None:
        """Change the call of the function in its file."""
        file = self.folder / "mine" / "attention.py"
        text = file.read_text("utf-8")
        assert text.count(CALL) == 1
        file.write_text(text.replace(CALL, after), "utf-8")

    def follow(self) -> None:
        """Write the files and run the commands of the page in their order; each command must succeed."""
        for block in BLOCKS:
            if block.mark:
                continue
            if name_file(block):
                self.write(block)
            for command in block.commands if block.language == "console" else ():
                done = self.run(command.line)
                assert done.returncode == 0, f"{block.place}: {command.line}\n{done.stdout}{done.stderr}"
                if command.line.startswith("git switch --create refactoring"):
                    self.change(REFACTORED)


def run_git(repository: Repository, *words: str) -> str:
    """Run git in the repository, and return what it prints."""
    done = subprocess.run(["git", *words], cwd=repository.folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """A repository in which the page was followed to its end."""
    folder = tmp_path_factory.mktemp("your") / "repository"
    home = folder.with_name("home")
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        # In place of an installation, of which asv needs both; it keeps the names of machines in the home folder.
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("ASV_PYTHONPATH", os.environ["PYTHONPATH"])
        patch.setenv("HOME", str(home))
        for name, value in {"NAME": "n", "EMAIL": "n@example.org"}.items():
            patch.setenv(f"GIT_AUTHOR_{name}", value)
            patch.setenv(f"GIT_COMMITTER_{name}", value)
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patch.delenv("PYTEST_ADDOPTS", raising=False)
        shortened_gate.shorten(patch.setattr)
        made = Repository(folder)
        subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
        made.follow()
        yield made


def test_the_requirements_are_pinned_or_have_a_lower_bound() -> None:
    """Every line is a requirement; attnbench comes from a commit, at an address that the reader fills in."""
    (block,) = (block for block in BLOCKS if block.file_name == "requirements-attention.txt")
    found = [Requirement(line) for line in block.text.splitlines()[1:]]
    assert [one.name for one in found if one.url or one.specifier] == ["attnbench", "pytest", "asv"]
    assert found[0].url == "git+https://HOST/OWNER/attnbench@COMMIT"


def test_only_installations_are_not_run() -> None:
    """Every block of the page is a file or is run, except those that install; every stand-in stands for something."""
    assert {block.mark for block in BLOCKS} == {"", "network"}
    installing = [command.words[:2] for block in BLOCKS if block.mark for command in block.commands]
    assert installing == [["pip", "install"]] * len(installing)
    assert [block.place for block in BLOCKS if block.language != "console" and not name_file(block)] == []
    assert [shown for shown in STAND_INS if not any(shown in block.text for block in BLOCKS)] == []


@pytest.mark.extended
def test_the_page_can_be_followed(repository: Repository) -> None:
    """Tests pass, the certificate gives a green badge, asv has numbers of a commit, and a refactoring holds."""
    badge = json.loads((repository.folder / "badge.json").read_text("utf-8"))
    assert badge["message"].startswith("conformant on ")
    assert (badge["schemaVersion"], badge["color"]) == (1, "brightgreen")
    (graph,) = repository.folder.glob(".asv/html/graphs/arch*/**/attention.Attention.track_peak_bytes.json")
    ((_, peaks),) = json.loads(graph.read_text("utf-8"))
    assert all(peaks)
    (told,) = (done.stdout for line, done in repository.done.items() if line.startswith("attnbench gate"))
    assert "The gate holds: compared with main (" in told
    assert run_git(repository, "status", "--porcelain").split() == ["??", ".github/", "??", ".gitlab-ci.yml"]


@pytest.fixture(scope="module")
def faulty(repository: Repository) -> str:
    """The commit of a branch on which the function ignores the mask; the repository has it checked out."""
    run_git(repository, "switch", "-q", "--create", "faulty", "main")
    repository.change(WITHOUT_MASK)
    run_git(repository, "commit", "-q", "--all", "-m", "A fault")
    return run_git(repository, "rev-parse", "HEAD")


@pytest.mark.extended
def test_the_jobs_of_the_page_run(repository: Repository, faulty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """GitLab's gate exits with 1, and writes a comment, for a faulty commit; the history and the badge are made."""
    monkeypatch.setenv("CI_MERGE_REQUEST_DIFF_BASE_SHA", run_git(repository, "merge-base", "main", faulty))
    *others, gate = list_lines(read_workflow(".gitlab-ci.yml")["attention"]["script"])
    assert others == ["pytest"]
    assert repository.run(gate).returncode == 1
    assert (repository.folder / "gate.md").read_text("utf-8").startswith("### attnbench gate: the change is worse")
    steps = read_workflow(".github/workflows/history.yml")["jobs"]["history"]["steps"]
    for line in list_lines([step["run"] for step in steps if "run" in step]):
        # The certificate was made when the page was followed.
        if not line.startswith("attnbench conform"):
            done = repository.run(line)
            assert done.returncode == 0, done.stdout + done.stderr
    assert (repository.folder / ".asv" / "html" / "badge.json").exists()


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Folder of programs: attnbench with a shortened gate, and gh, which notes what it is asked.

    It knows the comments of the file ``comments``.
    """
    folder = tmp_path / "programs"
    folder.mkdir()
    quoted = [shlex.quote(str(path)) for path in (sys.executable, shortened_gate.__file__, folder)]
    scripts = {
        "attnbench": f'exec {quoted[0]} {quoted[1]} "$@"',
        "gh": f'printf "%s\n" "$*" >> {quoted[2]}/asked; case "$*" in *--jq*) cat {quoted[2]}/comments;; esac',
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        (folder / name).chmod(0o755)
    (folder / "comments").touch()
    return folder


@pytest.mark.extended
def test_the_action_finds_a_fault_in_a_shallow_clone(
    repository: Repository, faulty: str, tmp_path: Path, programs: Path
) -> None:
    """Both commands fail with annotations; the summary and the comment have both outcomes; a comment is replaced."""
    clone = tmp_path / "clone"
    # GitHub checks out the merge of the pull request into its base, without history.
    tree = run_git(repository, "rev-parse", f"{faulty}^{{tree}}")
    merge = run_git(repository, "commit-tree", "-p", "main", "-p", faulty, "-m", "Merge", tree)
    run_git(repository, "branch", "-f", "merge", merge)
    subprocess.run(
        ["git", "clone", "-q", "--depth=1", "--branch=merge", f"file://{repository.folder}", str(clone)], check=True
    )
    runner = {name: tmp_path / name for name in ("output", "summary")}
    variables = {
        "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_OUTPUT": str(runner["output"]), "GITHUB_REPOSITORY": "a/b",
        "GITHUB_SHA": merge, "GITHUB_STEP_SUMMARY": str(runner["summary"]),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(clone), *os.environ["PYTHONPATH"].split(os.pathsep)[1:]]),
    }  # fmt: skip
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    given = read_workflow(".github/workflows/attention.yml")["jobs"]["attention"]["with"]
    inputs = {name: one.get("default") for name, one in action["inputs"].items()} | given | {"install": "false"}
    pull_request = {"number": 7, "head": {"repo": {"full_name": "a/b"}}}
    contexts: dict[str, Any] = {
        "inputs": inputs, "runner": {"temp": str(tmp_path)}, "steps": {},
        "github": {"event_name": "pull_request", "repository": "a/b", "event": {"pull_request": pull_request}},
    }  # fmt: skip
    codes, printed = {}, ""
    for step in (step for step in action["runs"]["steps"] if "run" in step):
        name = step["name"]
        if "if" not in step or evaluate(step["if"][4:-3], contexts):
            done = run_script(step, contexts, cwd=clone, variables=variables)
            codes[name], printed = done.returncode, printed + done.stdout
            contexts["steps"][step.get("id", name)] = {"outcome": "success" if done.returncode == 0 else "failure"}
    assert codes == {"Prepare folders": 0, "Conform": 1, "Gate": 1, "Summarize": 0, "Comment": 0}
    assert runner["output"].read_text("utf-8").startswith("key=")
    assert "::error title=attnbench conform::" in printed
    assert "::error title=mine.attention%3Aattention%3A wrong::" in printed
    assert "changes that are in no commit" not in printed
    out = Path(fill("${{ runner.temp }}/${{ inputs.name }}", contexts))
    outcome = json.loads((out / "gate.json").read_text("utf-8"))
    assert outcome["base"]["commit"] == run_git(repository, "rev-parse", "main")
    assert json.loads((out / "conform.json").read_text("utf-8"))
    assert list((out / "runs").rglob("*.jsonl"))
    comment = (out / "comment.md").read_text("utf-8")
    assert comment.startswith("<!-- attnbench: attnbench -->\n### attnbench gate: the change is worse")
    assert runner["summary"].read_text("utf-8") == comment
    (programs / "comments").write_text("5\n9\n", "utf-8")
    last = action["runs"]["steps"][-2]
    assert run_script(last, contexts, cwd=clone, variables=variables).returncode == 0
    listed, posted, _, patched = (programs / "asked").read_text("utf-8").splitlines()
    assert listed.startswith("api --paginate repos/a/b/issues/7/comments --jq ")
    assert posted == f"api --silent --method POST repos/a/b/issues/7/comments --field body=@{out}/comment.md"
    assert patched == f"api --silent --method PATCH repos/a/b/issues/comments/5 --field body=@{out}/comment.md"
