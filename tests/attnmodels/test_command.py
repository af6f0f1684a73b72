"""Tests of ``attnbench model``: its table, JSON and exit codes, and an attention function that ends its process."""

import importlib.util
import json
from pathlib import Path

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("pip install 'attnbench[transformers]'", allow_module_level=True)

from click.testing import CliRunner, Result

from attnbench.plugins.registry import PluginError
from attnbench.report.placeholders import make_placeholder
from attnmodels import inquiry
from attnmodels.command import command
from time_limits import repeat_with_longer_limits

FILE = Path(__file__).with_name("attention_functions.py")
# Time limit of the checks of one function, in seconds, on a machine that is not busy.
TIMEOUT_S = 15
ENDING = """
import os
import time


def ends(module, query, key, value, attention_mask, **kwargs):
    os._exit(3)


def hangs(module, query, key, value, attention_mask, **kwargs):
    time.sleep(3600)
"""


def run(*words: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(command, words, standalone_mode=False)


def test_a_deviation_is_told_and_written(tmp_path: Path) -> None:
    """Exit code 1, a table, one sentence with layer and argument, and every fact in the JSON file."""
    found = tmp_path / "found.json"
    result = run(f"{FILE}:make_bert", "--attention", f"{FILE}:mask_dropped", "--json", str(found))
    assert result.exception is None
    assert result.return_value == 1
    assert "attention_mask is ignored" in " ".join(result.output.split())
    (source,) = json.loads(found.read_text())
    cells = source["cells"]
    statuses = {(one["attention"].rpartition(":")[2], one["situation"]): one["status"] for one in cells}
    assert statuses["mask_dropped", "left-padding"] == "deviates"
    assert statuses["mask_dropped", "alone"] == "held"


def test_several_models_have_one_table(tmp_path: Path) -> None:
    """The files have both models, and the page of a report in the folder gets the section."""
    places = map(make_placeholder, ("link to models", "models"))
    (tmp_path / "index.html").write_text("\n".join(places))
    sources = (f"{FILE}:make_bert", f"{FILE}:make_gpt2")
    assert run(*sources, "--attention", "eager", "--reports", str(tmp_path)).return_value == 0
    text = (tmp_path / "models.md").read_text()
    assert "| BertModel (" in text
    assert "make\\_gpt2) | `eager` | yes |" in text
    assert (tmp_path / "models.csv").read_text().count("GPT2Model,eager,") == 16
    assert "GPT2Model" in (tmp_path / "index.html").read_text()


@pytest.mark.extended
def test_functions_that_end_or_hang_leave_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every situation of such a function fails, and the next function is checked in a new process."""
    (tmp_path / "ending.py").write_text(ENDING)
    names = [f"{tmp_path / 'ending.py'}:{name}" for name in ("ends", "hangs")]
    words = [word for name in (*names, "eager") for word in ("--attention", name)]

    def attempt(limit_s: float) -> tuple[int | None, list[list[str]]]:
        monkeypatch.setattr(inquiry, "LIMIT_S", limit_s)
        result = run(f"{FILE}:make_bert", *words)
        rows = [line.split() for line in result.output.splitlines() if line.startswith(("alone", "float16"))]
        return result.return_value, [row[1:] for row in rows]

    expected = (1, [["yes", "FAILED", "FAILED", "yes"]] * 2)
    found, _ = repeat_with_longer_limits(attempt, lambda found: found == expected, first_s=TIMEOUT_S)
    assert found == expected


@pytest.mark.extended
def test_a_function_that_is_refused_everywhere_is_not_checked() -> None:
    """The exit code is 3 where a function that was named is refused in every situation."""
    assert run(f"{FILE}:make_gemma", "--attention", "sdpa").return_value == 3


@pytest.mark.extended
def test_names_have_defaults_and_an_unknown_one_is_an_error() -> None:
    """Without names, eager and sdpa are checked, and the exit code is 0; an unknown name is refused in one line."""
    result = run("transformers:BertConfig")
    assert result.return_value == 0
    assert "eager" in result.output
    assert "sdpa" in result.output
    assert isinstance(run("transformers:BertConfig", "--attention", "flsh").exception, PluginError)
