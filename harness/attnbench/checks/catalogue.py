"""Names, chapters and requirements of all checks, read from their source without importing torch.

A check is a function decorated with ``@check``. The first line of its docstring is the check's
requirement. A chapter is a module that defines the checks of one topic. The built-in chapters are
the modules of ``attnbench.checks.chapters``. An operator names further chapters as
``package.module`` in ``Operator.chapters``.
"""

import ast
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.interface import Operator
from attnbench.plugins.registry import PluginError, list_operators, load_operator

if TYPE_CHECKING:
    from attnbench.checks.requirement import CheckFunction

__all__ = [
    "Check", "find_chapter", "list_chapters", "load_check_function", "read_checks", "read_operator_checks",
    "sort_checks",
]  # fmt: skip

PACKAGE = "attnbench.checks.chapters"
# Names of the built-in chapters, in the order in which their checks run and are listed.
CHAPTERS = (
    "forward", "exact", "weights", "gradients", "masks", "grouping", "positions", "shapes", "layouts", "numerics",
    "invariants", "dropout", "paths", "hygiene", "protocol", "calls", "sequences", "transforms",
    "compilation", "autocast", "refusals", "determinism", "size", "threads",
)  # fmt: skip
# Name of the check that runs before all other checks of a case, because it must observe the first
# call: an implementation that writes the same values into its inputs at every call changes the
# inputs only at the first call.
FIRST = "inputs_untouched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: its name, its module, and its requirement in one sentence."""

    name: str
    module: str
    requirement: str

    @property
    def chapter(self) -> str:
        """Name of the chapter: the last part of the name of the module."""
        return self.module.rpartition(".")[2]


@cache
def read_checks() -> dict[str, Check]:
    """Return the built-in checks, then those of all loadable operators; the keys are check names."""
    found = dict(_read_built_in())
    for name in list_operators():
        try:
            found |= read_operator_checks(load_operator(name))
        except PluginError:  # reported later, by the code that uses the operator
            continue
    return found


def read_operator_checks(operator: Operator) -> dict[str, Check]:
    """Return the checks in the chapters that an operator names; the keys are check names.

    Raises: PluginError if a chapter of the operator cannot be read, or if two checks have the same
    name.
    """
    return _read_checks_of(operator.name, tuple(operator.chapters))


def list_chapters() -> tuple[str, ...]:
    """Return the names of all chapters, in the order in which their checks are listed."""
    return tuple(dict.fromkeys(check.chapter for check in read_checks().values()))


def find_chapter(check: str) -> str:
    """Return the chapter of a check, or "other" for a check that this version does not know."""
    known = read_checks().get(check)
    return known.chapter if known else "other"


def sort_checks(names: Iterable[str]) -> list[str]:
    """Return check names in running order: ``FIRST`` if it is given, then the other names in the given order."""
    return sorted(names, key=lambda name: name != FIRST)


@cache
def load_check_function(name: str) -> "CheckFunction":
    """Import the module that defines the check ``name``, and return the check's function."""
    function: CheckFunction = getattr(importlib.import_module(read_checks()[name].module), name)
    return function


@cache
def _read_checks_of(operator: str, chapters: tuple[str, ...]) -> dict[str, Check]:
    found = {name: check for name, check in _read_built_in().items() if check.chapter in chapters}
    for module in chapters:
        if module in CHAPTERS:
            continue
        for check in _read_chapter(module):
            other = _read_built_in().get(check.name) or found.get(check.name)
            if other is not None:
                raise PluginError(
                    f"operator {operator!r}: check {check.name!r} of {module} has the name of a check of "
                    f"{other.module}; rename it"
                )
            found[check.name] = check
    return found


@cache
def _read_built_in() -> dict[str, Check]:
    return {check.name: check for chapter in CHAPTERS for check in _read_chapter(f"{PACKAGE}.{chapter}")}


@cache
def _read_chapter(module: str) -> tuple[Check, ...]:
    """Return the checks that a module defines, in the order of their definitions.

    Raises: PluginError if there is no such module.
    """
    try:
        spec = find_spec(module)
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        raise PluginError(
            f"there is no chapter of checks {module!r}; name one of {', '.join(CHAPTERS)}, or a package.module"
        )
    source = Path(spec.origin).read_text(encoding="utf-8")
    return tuple(
        Check(
            name=node.name,
            module=module,
            requirement=(ast.get_docstring(node) or "").partition("\n")[0],
        )
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and any(_is_check(decorator) for decorator in node.decorator_list)
    )


def _is_check(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(target, ast.Name) and target.id == "check"
