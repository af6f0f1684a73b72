"""Tests that docs/your-repository.md can be followed: its files, commands and jobs, in a scratch repository."""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from attngate import gating
from commands import run_command
from pages import ROOT, Block, read_blocks

pytestmark = pytest.mark.long

PAGE = ROOT / "docs" / "your-repository.md"
BLOCKS = read_blocks(PAGE)
# The only file of the page whose language has no comments.
JSON_FILE = "asv.conf.json"
# Parts of the page, and what stands for them here so that the tests take seconds.
STAND_INS = {"--suite core": "--suite quick", "lengths=[128, 512]": "lengths=[16], processes=1, budget_s=0.05"}
# Part of the suite core that the gate checks here.
SHARD = (1, 40)
CALL = "return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)"
REFACTORED = CALL.replace("return", "heads =") + "\n    return heads"
WITHOUT_MASK = "return scaled_dot_product_attention(q, k, v, scale=scale)"
# Seconds of one command.
TIMEOUT_S = 300


def name_file(block: Block) -> str | None:
    """Return the name of the file that a block of the page shows."""
    return JSON_FILE if block.language == "json" else block.file_name


def read_job(name: str) -> dict[str, Any]:
    """Return the job ``attention`` of a file of the page."""
    (block,) = (block for block in BLOCKS if block.file_name == name)
    whole = yaml.safe_load(block.text)
    return dict(whole.get("jobs", whole)["attention"])


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
    whole = gating.make_conform_job
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
        patch.setattr(gating, "make_conform_job", lambda job: replace(whole(job), shard=SHARD))
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


@pytest.mark.extended
def test_the_jobs_run_and_find_a_fault(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of both jobs run; the gates exit with 1, and write a comment, for a commit that ignores the mask."""
    remote, summary = tmp_path / "origin.git", tmp_path / "summary.md"
    run_git(repository, "init", "-q", "--bare", str(remote))
    run_git(repository, "remote", "add", "origin", str(remote))
    run_git(repository, "push", "-q", "origin", "main")
    run_git(repository, "switch", "-q", "--create", "faulty", "main")
    repository.change(WITHOUT_MASK)
    run_git(repository, "commit", "-q", "--all", "-m", "A fault")
    monkeypatch.setenv("GITHUB_BASE_REF", "main")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("CI_MERGE_REQUEST_DIFF_BASE_SHA", run_git(repository, "merge-base", "main", "HEAD"))
    steps = [step["run"] for step in read_job(".github/workflows/attention.yml")["steps"] if "run" in step]
    lines = [*list_lines(steps), *list_lines(read_job(".gitlab-ci.yml")["script"])]
    gates = [line for line in lines if line.startswith("attnbench gate ")]
    assert len(gates) == 2
    for line in dict.fromkeys(lines):
        if line in gates:
            assert repository.run(line).returncode == 1
        elif line != "pytest" and "conform" not in line:
            done = repository.run(line)
            assert done.returncode == 0, done.stdout + done.stderr
    for file in (summary, repository.folder / "gate.md"):
        assert file.read_text("utf-8").startswith("### attnbench gate: the change is worse")
    assert (repository.folder / ".asv" / "html" / "badge.json").exists()
