"""Tests of the catalogue of checks, and of what a check may hand to its judge."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

from attnbench import checks as package
from attnbench.checks.catalogue import CHAPTERS, load_check_function, read_checks
from attnbench.checks.observations import (
    Agree,
    Average,
    Equal,
    Exact,
    Holds,
    Match,
    Observation,
    Scale,
    deserialize,
    serialize,
)
from attnbench.checks.slopes import compare_with_slope

CATALOGUE = "from attnbench.checks.catalogue import read_checks; assert read_checks()"


def marked(module: ModuleType) -> list[str]:
    """Functions of a module that are marked as checks, in the order of the file."""
    return [name for name, thing in vars(module).items() if hasattr(thing, "when") and callable(thing)]


def loads_torch(program: str) -> bool:
    """Whether a program, in a fresh interpreter, imports torch."""
    told = subprocess.run(
        [sys.executable, "-c", f"{program}; import sys; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    return {"True\n": True, "False\n": False}[told]


def test_the_catalogue_lists_exactly_what_is_marked() -> None:
    """Names read from the source are the functions that import finds, chapter by chapter, in order."""
    for chapter in CHAPTERS:
        module = f"attnbench.checks.chapters.{chapter}"
        listed = [check.name for check in read_checks().values() if check.module == module]
        assert listed == marked(import_module(module))
        assert listed


def test_no_check_stands_outside_the_chapters() -> None:
    """Every other file of the package marks nothing."""
    folder = Path(package.__path__[0])
    modules = {".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("*.py")}
    chapters = {module for module in modules if module.startswith("chapters.") and not module.endswith("__init__")}
    assert chapters == {f"chapters.{chapter}" for chapter in CHAPTERS}
    for other in modules - chapters:
        assert marked(import_module(f"attnbench.checks.{other}".removesuffix(".__init__"))) == []


@pytest.mark.parametrize("name", read_checks())
def test_a_requirement_is_the_sentence_that_the_docstring_begins_with(name: str) -> None:
    """The first line is a whole sentence: it begins a failure's message, and the fault follows it."""
    requirement = read_checks()[name].requirement
    assert requirement == str(load_check_function(name).__doc__).splitlines()[0]
    assert requirement[0].isupper()
    assert requirement.endswith(".")
    assert not requirement.endswith("..")


def test_the_catalogue_needs_no_torch() -> None:
    """Listing checks is quick: a fresh interpreter that reads the catalogue has not imported torch."""
    assert not loads_torch(CATALOGUE)


def test_an_import_of_torch_would_be_seen() -> None:
    """The test before this one can fail: the functions of the checks do need torch."""
    assert loads_torch(f"{CATALOGUE}; import attnbench.checks.chapters.forward")


@pytest.mark.parametrize(
    "observation",
    [
        Match(quantities={"output": torch.ones(2, requires_grad=True)}, keep=torch.tensor([True, False])),
        Match(quantities={}),
        Equal(value=torch.ones(1), expected=torch.zeros(1), what="x"),
        Agree(value=torch.ones(1), expected=torch.zeros(1), quantity="output", what="x"),
        Average(quantity="output", mean=torch.ones(1), std=torch.zeros(1), draws=4),
        Holds(holds=False, what="x", measured=1.0, allowed=0.5),
        Exact(quantities={"output": torch.ones(2)}),
        Scale(quantity="output", value=torch.ones(2)),
    ],
    ids=lambda observation: type(observation).__name__,
)
def test_claims_survive_the_way_to_the_judge(tmp_path: Path, observation: Observation) -> None:
    """Every kind is restored from a file of plain containers and tensors, without its graph."""
    torch.save(serialize([observation]), tmp_path / "claims")
    (again,) = deserialize(torch.load(tmp_path / "claims", weights_only=True))
    assert type(again) is type(observation)
    assert str(serialize([again])) == str(serialize([observation]))
    assert "grad" not in str(serialize([again]))


@pytest.mark.parametrize(
    ("elements", "factor", "holds"), [(1, 1.0, True), (1, 1.01, False), (6, 1.0, True), (6, 0.99, False)]
)
def test_a_derivative_is_a_slope_or_not(elements: int, factor: float, holds: bool) -> None:
    """One element's derivative is looked at, too; the tensor is left as it was."""
    tensor = torch.linspace(0.5, 1.5, elements, dtype=torch.float64)
    before = tensor.clone()
    observation = compare_with_slope(
        factor * 2 * tensor, tensor, lambda: tensor.square().sum(), "the derivative of squares"
    )
    assert observation.holds is holds
    assert torch.equal(tensor, before)
