"""Tests that the code in the documents works: blocks of Python run, commands run, and print what the pages show."""

import ast
import importlib
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import yaml
from torch import nn

from attnbench.interface import Implementation
from commands import run_command
from page_commands import parse_command, parse_options
from pages import (
    LANGUAGES,
    MARKS,
    PAGES,
    PLACEHOLDERS,
    ROOT,
    Block,
    Command,
    is_excerpt,
    is_output,
    read_blocks,
    read_inline_commands,
)

pytestmark = pytest.mark.long

BLOCKS = [block for page in PAGES for block in read_blocks(page)]
# The reader's own file in commands such as ``attnbench conform path/to/attention.py:MyAttention``, and what stands for
# it here.
READERS_FILES = ("path/to/attention.py", "attention.py", "my_attention.py")
READERS_FILE = "tests/plugin_example/my_attention.py"
PARSERS = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}
# Variables with which pytest prints longer lines, colours, or the output of further options.
PRINTED_OTHERWISE = ("CI", "BUILD_NUMBER", "FORCE_COLOR", "PY_COLORS", "PYTEST_ADDOPTS")
# Seconds that one command of a page may take here; an unmarked one takes about ten seconds of processor time.
TIMEOUT_S = 600
# Part of the suite ``core`` on which the shown implementations are checked. For the five implementations of
# docs/your-own.md the whole suite takes 150 s of processor time (two cores, torch on the CPU), this part 30 s.
SHARD = "1/12"
# This page is followed in a repository with commits, by tests/test_your_repository.py.
FOLLOWED = [page for page in PAGES if page.name != "your-repository.md"]


def select(language: str) -> list[Block]:
    """Return the blocks of all pages in a language."""
    return [block for block in BLOCKS if block.language == language]


def by_place(block: Block) -> str:
    """Id of a test of one block."""
    return block.place


class Folder:
    """A reader's folder, in which a page is followed from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: dict[str, Any] = {"__name__": "page"}

    def write(self, block: Block) -> None:
        """Write a block that shows a file under the file's name."""
        assert block.file_name
        target = self.path / block.file_name
        if target.exists():
            assert target.read_text(encoding="utf-8") == block.text, f"{block.place} shows another {block.file_name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text, encoding="utf-8")
        importlib.invalidate_caches()

    def execute(self, block: Block) -> None:
        """Execute a block that shows no file, with the names that earlier blocks of the page defined."""
        exec(compile(block.text, block.place, "exec"), self._names)

    def provide(self, command: Command) -> None:
        """Copy the files of the repository, or of the reader, that a command names."""
        for word in command.words[1:]:
            name = word.partition(":")[0].removeprefix("./")
            target = self.path / name
            source = ROOT / (READERS_FILE if name in READERS_FILES else name)
            if not name or name.startswith(("-", "/", "..")) or target.exists() or not source.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, target)

    def run(self, command: Command) -> subprocess.CompletedProcess[str]:
        """Run a command as a reader does."""
        self.provide(command)
        if command.words[0] == "attnbench":
            return run_command(*command.words[1:], cwd=self.path)
        return subprocess.run(
            command.words, cwd=self.path, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A reader's empty folder. Its modules are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in PRINTED_OTHERWISE:
        monkeypatch.delenv(name, raising=False)
    known = set(sys.modules)
    yield Folder(tmp_path)
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def find_implementations(file: Path) -> list[str]:
    """Return the implementations of a shown file, as a command names them.

    A file that wraps a function or a module class in an ``Implementation`` shows the latter.
    """
    module = importlib.import_module(file.stem)
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", None) == file.stem}
    wrapped = [name for name, value in vars(module).items() if isinstance(value, Implementation)]
    wrapped += [name for name, value in own.items() if isinstance(value, type) and issubclass(value, Implementation)]
    plain = [name for name, value in own.items() if _is_function(value) or _is_module_class(value)]
    return [f"./{file.name}:{name}" for name in wrapped or plain]


def _is_function(value: object) -> bool:
    return isinstance(value, FunctionType) and value.__code__.co_varnames[:3] == ("q", "k", "v")


def _is_module_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


# The blocks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_fences_have_a_language_and_a_known_mark(page: Path) -> None:
    """Every fence names one of the languages, and gives no reason for not being run but those of the closed list."""
    blocks, lines = read_blocks(page), page.read_text(encoding="utf-8").splitlines()
    assert 2 * len(blocks) == sum(line.lstrip().startswith("```") for line in lines)
    assert [block.place for block in blocks if block.language not in LANGUAGES] == []
    assert [(block.place, block.mark) for block in blocks if block.mark not in ("", *MARKS)] == []


@pytest.mark.parametrize("block", select("console"), ids=by_place)
def test_commands_parse(block: Block, folder: Folder, pytestconfig: pytest.Config) -> None:
    """Every command has a program, options and names of implementations that exist, also where it is not run."""
    for earlier in BLOCKS:
        if earlier.page == block.page and earlier.file_name:
            folder.write(earlier)
    for command in block.commands:
        folder.provide(command)
        parse_command(command.words, placeholders=block.mark in PLACEHOLDERS, config=pytestconfig)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_inline_commands_have_options_that_exist(page: Path) -> None:
    """A command of attnbench in a sentence is one that attnbench has, with its options."""
    for line in read_inline_commands(page):
        parse_options(Command(line=line).words[1:])


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.mark == "excerpt"], ids=by_place)
def test_excerpts_are_lines_of_a_file(block: Block) -> None:
    """An excerpt has the lines of a file of the repository, in their order."""
    folders = ("examples", "implementations", "harness", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".toml")]
    files.append(ROOT / "pyproject.toml")
    assert any(is_excerpt(block.text, file.read_text(encoding="utf-8")) for file in files)


@pytest.mark.parametrize("block", [b for b in select("python") if b.mark not in ("", "excerpt")], ids=by_place)
def test_python_that_is_not_run_imports_names_that_exist(block: Block) -> None:
    """A marked block of Python compiles, and attnbench has the names that the block imports from it."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "attnbench":
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in PARSERS and not b.mark], ids=by_place)
def test_data_parses(block: Block) -> None:
    """Every whole block of TOML, JSON or YAML is a document."""
    assert PARSERS[block.language](block.text)


# The pages


@pytest.mark.extended
@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.name)
def test_page_can_be_followed(page: Path, folder: Folder) -> None:
    """The blocks of a page run in its order; commands succeed, or print what the page shows."""
    for block in read_blocks(page):
        if block.mark:
            continue
        if block.language == "python":
            (folder.write if block.file_name else folder.execute)(block)
        for command in block.commands if block.language == "console" else ():
            done = folder.run(command)
            as_shown = is_output(command.shown, done.stdout or done.stderr) if command.shown else done.returncode == 0
            assert as_shown, f"{block.place}: {done.stdout}{done.stderr}"


@pytest.mark.extended
def test_shown_implementations_pass_core(folder: Folder) -> None:
    """Every implementation that a page shows passes a part of the suite ``core``.

    Left out are ``wrong_*``, tests, and ``gpt_*``, which the page wraps.
    """
    for block in select("python"):
        if block.file_name and not block.mark:
            folder.write(block)
    files = [path for path in sorted(folder.path.glob("*.py")) if not path.name.startswith(("wrong_", "test_", "gpt_"))]
    shown = [name for file in files for name in find_implementations(file)]
    assert len(shown) >= 5
    words = f"attnbench conform {' '.join(shown)} --suite core --shard {SHARD} --threads 1"
    done = folder.run(Command(line=words))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stdout


@pytest.mark.extended
def test_a_wrong_shown_implementation_is_found(folder: Folder) -> None:
    """The NaN gradients of fully masked rows, which a page's kernel once had, fail the checked part of ``core``."""
    (block,) = (block for block in select("python") if block.file_name == "my_core.py")
    wrong = "def softmax_over_visible(logits):\n    return logits.softmax(-1).nan_to_num()\n\n\ndef attention("
    folder.write(replace(block, text=block.text.replace("def attention(", wrong)))
    words = f"attnbench conform ./my_core.py:CORE --suite core --shard {SHARD} --threads 1 --check input_gradients"
    done = folder.run(Command(line=words))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "nan at" in done.stdout
