"""Tests of the keys of stored results: whatever changes a result changes its key."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import attnbench
from attnbench.cases import Case
from attnbench.interface import Choices
from attnbench.operators.multihead import OPERATOR
from attnbench.operators.multihead.suites import CROSS
from attnbench.oracle.result_key import KERNEL_SETTINGS, SOURCES, ResultKeys

CASE = Case(operator="multihead", problem=CROSS, mode="inference")
PACKAGE = Path(attnbench.__file__).parent
OWN_OPERATOR = """
from attnbench.operators.multihead import OPERATOR

class Operator(type(OPERATOR)):
    pass
"""


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Return a file of inputs."""
    path = tmp_path / "inputs"
    path.write_bytes(b"inputs")
    return path


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of the package ``own_operators``, which can be imported."""
    package = tmp_path / "own_operators"
    package.mkdir()
    (package / "__init__.py").write_text(OWN_OPERATOR)
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in ("own_operators", "own_operator"):
        sys.modules.pop(name, None)


def make(inputs: Path, case: Case = CASE, **changed: Any) -> str | None:
    """Return the key of a case, made by a process of its own."""
    settings: dict[str, Any] = {"operator": OPERATOR, "precision": "float32", "choices": Choices()} | changed
    return ResultKeys().make(case, inputs=inputs, **settings)


def test_keys_are_the_same_in_every_process(inputs: Path) -> None:
    """The same case has the same key, on every device."""
    assert make(inputs) == make(inputs) == make(inputs, replace(CASE, device="cuda"))


def test_whatever_changes_a_result_changes_its_key(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key has case, dtype, mode, inputs, precision, policy, torch, CPU, threads and settings of the kernels."""
    keys = [
        make(inputs),
        make(inputs, CASE.with_problem(seed=1)),
        make(inputs, CASE.with_fields(dtype="float64")),
        make(inputs, CASE.with_fields(mode="train")),
        make(inputs, precision="tf32"),
        make(inputs, choices=Choices(padded_queries="own")),
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    keys.append(make(inputs))
    torch.set_num_threads(threads)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "0.0")
        keys.append(make(inputs))
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "none")
        keys.append(make(inputs))
    with monkeypatch.context() as patch:
        patch.setattr("attnbench.oracle.result_key.read_cpu_model", lambda: "another")
        keys.append(make(inputs))
    for beginning in KERNEL_SETTINGS:
        with monkeypatch.context() as patch:
            patch.setenv(f"{beginning}SETTING", "1")
            keys.append(make(inputs))
    inputs.write_bytes(b"others")
    keys.append(make(inputs))
    assert None not in keys
    assert len(set(keys)) == len(keys) == 15


def test_the_sources_of_an_operators_own_package_are_in_the_key(inputs: Path, own: Path) -> None:
    """A changed source, and a changed large file, change the keys of the next process; compiled Python does not."""
    import own_operators  # type: ignore[import-not-found]

    (own / "kernel.so").write_bytes(bytes(2**20 + 1))
    keys = [make(inputs, operator=own_operators.Operator())]
    (own / "__pycache__").mkdir(exist_ok=True)
    (own / "__pycache__" / "other.pyc").touch()
    assert make(inputs, operator=own_operators.Operator()) == keys[0]
    (own / "formula.py").write_text("SCALE = 2")
    keys.append(make(inputs, operator=own_operators.Operator()))
    (own / "formula.py").write_text("SCALE = 3")
    keys.append(make(inputs, operator=own_operators.Operator()))
    (own / "kernel.so").write_bytes(bytes(2**20 + 2))
    keys.append(make(inputs, operator=own_operators.Operator()))
    assert len({*keys, make(inputs)}) == 5


def test_sources_that_change_during_a_run_end_the_use_of_the_cache(inputs: Path, own: Path) -> None:
    """There is no key once a source was changed or removed: the process may have loaded what was there before."""
    import own_operators

    keys, operator = ResultKeys(), own_operators.Operator()
    assert keys.make(CASE, operator, inputs, "float32", Choices())
    (own / "__init__.py").write_text(OWN_OPERATOR + "# changed")
    assert keys.make(CASE, operator, inputs, "float32", Choices()) is None
    (own / "__init__.py").unlink()
    assert keys.make(CASE, operator, inputs, "float32", Choices()) is None


def test_an_operator_outside_a_package_has_no_key(inputs: Path, own: Path) -> None:
    """The sources of an operator in a single file are not known, because it may import its neighbours."""
    (own.parent / "own_operator.py").write_text(OWN_OPERATOR)
    import own_operator  # type: ignore[import-not-found]

    assert make(inputs, operator=own_operator.Operator()) is None


def test_sources_include_what_they_import() -> None:
    """Whatever the oracle and the operators import of attnbench is in ``SOURCES``, except for what reads the CPU."""
    files = [
        path
        for name in SOURCES
        for path in ([PACKAGE / name] if name.endswith(".py") else (PACKAGE / name).rglob("*.py"))
    ]
    imported = {
        node.module.split(".")[1]
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("attnbench.")
    }
    assert len(files) > 50
    assert imported - {name.removesuffix(".py") for name in SOURCES} <= {"records"}
