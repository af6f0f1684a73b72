"""Tests that docs/architecture.md describes the packages and files that exist."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_layers_are_those_of_the_import_contract() -> None:
    """The picture and the table of layers have the layers of pyproject.toml, in order; each plug-in is named."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    layers = next(one["layers"] for one in tools["importlinter"]["contracts"] if one["type"] == "layers")
    picture = PAGE.partition("## The layers")[2].partition("The same as text")[0]
    table, _, beside = PAGE.partition("The same as text")[2].partition("## The processes")[0].partition("The *harness*")
    assert re.findall(r'\["([^"]*)"\]', picture) == layers
    assert [name.replace(r"\|", "|") for name in re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)] == layers
    plugins = re.findall(r"^\| `(.*?)` \|", beside, re.MULTILINE)
    assert ["attnbench", *plugins] == tools["importlinter"]["root_packages"]


def test_steps_name_files_and_what_they_define() -> None:
    """The way of one case has ten steps, and every file that they name exists and defines the names beside it."""
    steps = re.findall(r"^\| (\d+) \|.*\| (.*?) \|$", PAGE, re.MULTILINE)
    assert [number for number, _ in steps] == [str(number) for number in range(1, 11)]
    for _, places in steps:
        for place in places.split("; "):
            file, *names = re.findall(r"`(.*?)`", place)
            tree = ast.parse((ROOT / "harness" / "attnbench" / file).read_text(encoding="utf-8"))
            defined = {getattr(node, "name", None) for node in tree.body}
            assert set(names) <= defined, file
