"""Names, chapters and requirements of all checks, read from their source without importing torch.

A check is a function decorated with ``@check`` in a chapter's file; its docstring's first line is the requirement.
"""

import ast
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["CHAPTERS", "Check", "checks"]

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


@cache
def checks() -> dict[str, Check]:
    """All checks by name, in the order of the chapters and of each file."""
    return {check.name: check for chapter in CHAPTERS for check in _chapter(chapter)}


def _chapter(chapter: str) -> list[Check]:
    source = files(__package__).joinpath(f"{chapter}.py").read_text(encoding="utf-8")
    return [
        Check(name=node.name, chapter=chapter, requirement=(ast.get_docstring(node) or "").partition("\n")[0])
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and any(_is_check(decorator) for decorator in node.decorator_list)
    ]


def _is_check(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(target, ast.Name) and target.id == "check"
