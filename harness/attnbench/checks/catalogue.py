"""Names, chapters and requirements of all checks, read from their source without importing torch.

A check is a function decorated with ``@check`` in a chapter's file; its docstring's first line is the requirement.
The chapters of attnbench are the modules of ``attnbench.checks.chapters``. An operator names further chapters of its
own as ``package.module`` in ``Operator.chapters``.
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
from attnbench.plugins.registry import PluginError, load_operator, operators

if TYPE_CHECKING:
    from attnbench.checks.requirement import CheckFunction

__all__ = ["Check", "chapters", "check_function", "checks", "checks_of", "in_turn"]

PACKAGE = "attnbench.checks.chapters"
# The order in which checks are made and listed.
CHAPTERS = (
    "forward", "exact", "weights", "gradients", "masks", "grouping", "positions", "shapes", "layouts", "numerics",
    "invariants", "dropout", "paths", "hygiene", "protocol", "compilation", "autocast", "refusals", "determinism",
    "size",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One requirement: its name, the module that it stands in, and what it asks."""

    name: str
    module: str
    requirement: str
    # It looks at what the first call does, and is made before the others of its case.
    first: bool

    @property
    def chapter(self) -> str:
        """Name of its chapter, which is that of its file."""
        return self.module.rpartition(".")[2]


def checks() -> dict[str, Check]:
    """All checks by name: those of attnbench, then those of every operator that can be loaded."""
    found = dict(_built_in())
    for name in operators():
        try:
            found |= checks_of(load_operator(name))
        except PluginError:  # reported where the operator is used
            continue
    return found


def checks_of(operator: Operator) -> dict[str, Check]:
    """Checks by name that stand in the chapters of an operator.

    Raises: PluginError where a chapter of its own cannot be read, or has a check with the name of another.
    """
    found = {name: check for name, check in _built_in().items() if check.chapter in operator.chapters}
    for module in operator.chapters:
        if module in CHAPTERS:
            continue
        for check in _chapter(module):
            other = _built_in().get(check.name) or found.get(check.name)
            if other is not None:
                raise PluginError(
                    f"operator {operator.name!r}: check {check.name!r} of {module} has the name of a check of "
                    f"{other.module}; rename it"
                )
            found[check.name] = check
    return found


def chapters() -> tuple[str, ...]:
    """Names of the chapters, in the order of the checks."""
    return tuple(dict.fromkeys(check.chapter for check in checks().values()))


def in_turn(names: Iterable[str]) -> list[str]:
    """Checks of a case in the order in which they are made."""
    known = checks()
    return sorted(names, key=lambda name: not known[name].first)


@cache
def check_function(name: str) -> "CheckFunction":
    """Function of a check, from its chapter's module."""
    function: CheckFunction = getattr(importlib.import_module(checks()[name].module), name)
    return function


@cache
def _built_in() -> dict[str, Check]:
    return {check.name: check for chapter in CHAPTERS for check in _chapter(f"{PACKAGE}.{chapter}")}


@cache
def _chapter(module: str) -> tuple[Check, ...]:
    """Checks of a module, in the order of the file.

    Raises: PluginError where there is no such file.
    """
    try:
        spec = find_spec(module)
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        raise PluginError(f"no chapter of checks {module!r}: name one of {', '.join(CHAPTERS)}, or a package.module")
    source = Path(spec.origin).read_text(encoding="utf-8")
    return tuple(
        Check(
            name=node.name,
            module=module,
            requirement=(ast.get_docstring(node) or "").partition("\n")[0],
            first=any(_is_first(decorator) for decorator in node.decorator_list),
        )
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and any(_is_check(decorator) for decorator in node.decorator_list)
    )


def _is_check(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(target, ast.Name) and target.id == "check"


def _is_first(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and any(keyword.arg == "first" for keyword in decorator.keywords)
