"""Names of implementations as users give them: what in a file could be meant is found without importing it."""

import ast
from pathlib import Path

from attnbench.plugins.registry import PluginError, check_name

__all__ = ["complete_name", "read_name"]

# Functions that make an implementation of a plain function or of a module.
MAKERS = ("from_kernel", "core_from_kernel", "from_call", "from_module")
# A function of queries, keys and values has at least this many positional parameters.
FEWEST_PARAMETERS = 3


def read_name(name: str) -> str:
    """Return the complete form of an implementation's name as a user gives it, and check it; nothing is imported.

    Raises: PluginError if the name is unknown or no valid name, or as ``complete_name`` does.
    """
    complete = complete_name(name)
    check_name(complete)
    return complete


def complete_name(name: str) -> str:
    """Return the name of the one object in a file that could be meant, for ``FILE.py`` or ``FILE.py @ FOLDER``.

    A name of another form is returned as it is: it may be that of a run.

    Raises: PluginError if the file does not exist, cannot be parsed, or has no such object or several.
    """
    own, at, tree = name.partition(" @ ")
    return f"{_complete_file(own)}{at}{tree}" if own.endswith(".py") else name


def _complete_file(name: str) -> str:
    try:
        source = Path(name).read_text(encoding="utf-8")
        found = _list_objects(ast.parse(source))
    except OSError as error:
        raise PluginError(f"no such file: {name}") from error
    except (SyntaxError, ValueError) as error:
        raise PluginError(f"{name} is no Python source: {error}") from error
    if not found:
        raise PluginError(
            f"{name} has no function of queries, keys and values, no module class and no implementation; "
            f"name the object: {name}:NAME"
        )
    if len(found) > 1:
        raise PluginError(
            f"{name} has several objects that could be meant; name one: {', '.join(f'{name}:{one}' for one in found)}"
        )
    return f"{name}:{found[0]}"


def _list_objects(tree: ast.Module) -> list[str]:
    """Return the public names of objects that could be meant.

    If the file makes implementations of its functions or classes, only these are meant. ``__all__`` selects among them.
    """
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    makers = {*MAKERS, *(one.name for one in classes if "Implementation" in map(_find_last_name, one.bases))}
    assigned = [
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if _find_last_name(node.value.func) in makers
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    plain = [one.name for one in tree.body if isinstance(one, ast.FunctionDef) and _takes_tokens(one)]
    plain += [one.name for one in classes if _is_module(one)]
    exported = _read_exported(tree)
    return [
        one
        for one in dict.fromkeys(assigned or plain)
        if not one.startswith("_") and (exported is None or one in exported)
    ]


def _find_last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name, such as "Module" of ``nn.Module``; an empty text for other expressions."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _takes_tokens(function: ast.FunctionDef) -> bool:
    return len([*function.args.posonlyargs, *function.args.args]) >= FEWEST_PARAMETERS


def _is_module(node: ast.ClassDef) -> bool:
    """Whether a class has a method ``forward``, or a base such as ``Module`` or ``MultiheadAttention``."""
    methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    names = [_find_last_name(base) for base in node.bases]
    return "forward" in methods or any(name == "Module" or "Attention" in name for name in names)


def _read_exported(tree: ast.Module) -> set[str] | None:
    """Return the names in ``__all__``; None if the file has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(_find_last_name(target) == "__all__" for target in node.targets):
            return {str(one.value) for one in ast.walk(node.value) if isinstance(one, ast.Constant)}
    return None
