"""Names, chapters and requirements of all checks, read from their source without importing torch.

A check is a function decorated with ``@check`` in a chapter's file; its docstring's first line is the requirement.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["CHAPTERS", "Check", "checks", "in_turn"]

CHAPTERS = (
    "forward", "exact", "weights", "gradients", "masks", "grouping", "positions", "shapes", "layouts", "numerics",
    "invariants", "dropout", "paths", "hygiene", "protocol", "compilation", "autocast", "refusals", "determinism",
    "size", "mechanisms",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One requirement: its name, the chapter that it stands in, and what it asks."""

    name: str
    chapter: str
    requirement: str
    # It looks at what the first call does, and is made before the others of its case.
    first: bool


@cache
def checks() -> dict[str, Check]:
    """All checks by name, in the order of the chapters and of each file."""
    return {check.name: check for chapter in CHAPTERS for check in _chapter(chapter)}


def in_turn(names: Iterable[str]) -> list[str]:
    """Checks of a case in the order in which they are made."""
    return sorted(names, key=lambda name: not checks()[name].first)


def _chapter(chapter: str) -> list[Check]:
    source = files(__package__).joinpath(f"{chapter}.py").read_text(encoding="utf-8")
    return [
        Check(
            name=node.name,
            chapter=chapter,
            requirement=(ast.get_docstring(node) or "").partition("\n")[0],
            first=any(_is_first(decorator) for decorator in node.decorator_list),
        )
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and any(_is_check(decorator) for decorator in node.decorator_list)
    ]


def _is_check(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(target, ast.Name) and target.id == "check"


def _is_first(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and any(keyword.arg == "first" for keyword in decorator.keywords)
