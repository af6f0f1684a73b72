"""Tests of ``attnbench model``: its table, JSON and exit codes, and an attention function that ends its process."""

import importlib.util
import json
from pathlib import Path

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("pip install 'attnbench[transformers]'", allow_module_level=True)

from click.testing import CliRunner, Result

from attnbench.plugins.registry import PluginError
from attnmodels.command import command

FILE = Path(__file__).with_name("attention_functions.py")
ENDING = """
import os


def ends(module, query, key, value, attention_mask, **kwargs):
    os._exit(3)
"""


def run(*words: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(command, words, standalone_mode=False)


def test_a_deviation_is_told_and_written(tmp_path: Path) -> None:
    """Exit code 1, a table, one sentence with layer and argument, and every fact in the JSON file."""
    (tmp_path / "ending.py").write_text(ENDING)
    found = tmp_path / "found.json"
    result = run(
        f"{FILE}:make_bert", "--attention", "eager", "--attention", f"{tmp_path / 'ending.py'}:ends",
        "--attention", f"{FILE}:mask_dropped", "--json", str(found),
    )  # fmt: skip
    assert result.exception is None
    assert result.return_value == 1
    assert "attention_mask is ignored" in " ".join(result.output.split())
    cells = json.loads(found.read_text())["cells"]
    statuses = {(one["attention"].rpartition(":")[2], one["situation"]): one["status"] for one in cells}
    assert statuses["eager", "left-padding"] == "held"
    assert statuses["ends", "left-padding"] == "failed"
    assert statuses["mask_dropped", "left-padding"] == "deviates"
    assert statuses["mask_dropped", "alone"] == "held"


@pytest.mark.extended
def test_a_small_class_holds() -> None:
    """Without names, eager and sdpa are checked; exit code 0."""
    result = run("transformers:LlamaConfig")
    assert result.return_value == 0
    assert "eager" in result.output
    assert "sdpa" in result.output


@pytest.mark.extended
def test_an_unknown_name_is_an_error() -> None:
    """The name is refused in one line."""
    assert isinstance(run("transformers:BertConfig", "--attention", "flsh").exception, PluginError)
