"""Tests of the catalogue of checks, and of comparisons with slopes."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

from attnbench import checks as package
from attnbench.checks.catalogue import CHAPTERS, FIRST, load_check_function, read_checks, sort_checks
from attnbench.checks.observations import Slope
from attnbench.checks.slopes import compare_with_slope
from attnbench.oracle.error_budget import allowed_slope_error

CATALOGUE = "from attnbench.checks.catalogue import read_checks; assert read_checks()"


def list_decorated(module: ModuleType) -> list[str]:
    """Return the names of a module's functions with the decorator ``@check``, in the order of the source."""
    return [name for name, value in vars(module).items() if hasattr(value, "when") and callable(value)]


def loads_torch(program: str) -> bool:
    """Whether a program, run in a new interpreter, imports torch."""
    output = subprocess.run(
        [sys.executable, "-c", f"{program}; import sys; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    ).stdout
    return {"True\n": True, "False\n": False}[output]


def test_the_catalogue_lists_exactly_the_decorated_functions() -> None:
    """The catalogue's names, read from the source, equal those of the imported functions, in the same order."""
    for chapter in CHAPTERS:
        module = f"attnbench.checks.chapters.{chapter}"
        listed = [check.name for check in read_checks().values() if check.module == module]
        assert listed == list_decorated(import_module(module))
        assert listed


def test_no_check_is_defined_outside_the_chapters() -> None:
    """No other module of the package has a function decorated with ``@check``."""
    folder = Path(package.__path__[0])
    modules = {".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("*.py")}
    chapters = {module for module in modules if module.startswith("chapters.") and not module.endswith("__init__")}
    assert chapters == {f"chapters.{chapter}" for chapter in CHAPTERS}
    for other in modules - chapters:
        assert list_decorated(import_module(f"attnbench.checks.{other}".removesuffix(".__init__"))) == []


def test_the_check_of_the_first_call_runs_before_the_others() -> None:
    """Sorting puts ``FIRST`` first, which is a check of the catalogue, and keeps the order of the other checks."""
    assert FIRST in read_checks()
    others = [name for name in read_checks() if name != FIRST]
    assert sort_checks([*others[:3], FIRST, *others[3:]]) == [FIRST, *others]
    assert sort_checks(others[:2]) == others[:2]


@pytest.mark.parametrize("name", read_checks())
def test_a_requirement_is_the_first_sentence_of_the_docstring(name: str) -> None:
    """A check's docstring begins with one whole sentence; a failure's message is this sentence, then the fault."""
    requirement = read_checks()[name].requirement
    assert requirement == str(load_check_function(name).__doc__).splitlines()[0]
    assert requirement[0].isupper()
    assert requirement.endswith(".")
    assert not requirement.endswith("..")


def test_the_catalogue_needs_no_torch() -> None:
    """Listing checks is quick: a new interpreter that reads the catalogue does not import torch."""
    assert not loads_torch(CATALOGUE)


def test_an_import_of_torch_would_be_noticed() -> None:
    """The previous test would fail if the catalogue loaded the functions of checks, because they import torch."""
    assert loads_torch(f"{CATALOGUE}; import attnbench.checks.chapters.forward")


@pytest.mark.parametrize(
    ("elements", "factor", "holds"), [(1, 1.0, True), (1, 1.01, False), (6, 1.0, True), (6, 0.99, False)]
)
def test_a_derivative_is_compared_with_a_central_difference(elements: int, factor: float, holds: bool) -> None:
    """The comparison works for tensors of one and of more elements, and leaves the tensor unchanged."""
    tensor = torch.linspace(0.5, 1.5, elements, dtype=torch.float64)
    before = tensor.clone()
    observation = compare_with_slope(
        factor * 2 * tensor, tensor, lambda: tensor.square().sum(), "the derivative of squares"
    )
    assert isinstance(observation, Slope)
    off = abs(observation.derivative - observation.slope)
    assert (off <= allowed_slope_error(observation.slope)) is holds
    assert torch.equal(tensor, before)
