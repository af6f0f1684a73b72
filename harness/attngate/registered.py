"""The implementations that pyproject.toml of a repository registers, which a gate compares if none is named."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from attnbench.api.revisions import Version
from attnbench.plugins.registry import IMPLEMENTATIONS, list_names
from attngate.errors import GateError

__all__ = ["compare_registered", "read_registered"]

FILE = "pyproject.toml"


def read_registered(top: Path) -> dict[str, str]:
    """Return what the project in a folder registers, by its names: a name that is installed, else its place.

    A place is, for example, ``mine.attention:attend``.

    Raises: GateError where there are none.
    """
    try:
        entries = _read(top)
    except ValueError as error:
        raise GateError(f"{FILE} cannot be read: {error}; name an IMPLEMENTATION") from error
    if not entries:
        raise GateError(
            f"IMPLEMENTATION is missing, and no {FILE} of the repository has entry points {IMPLEMENTATIONS!r}: name "
            "one, such as mine.py:attend"
        )
    installed = list_names()
    return {name: name if name in installed else place for name, place in entries.items()}


def compare_registered(
    registered: Mapping[str, str], folder: Path, base: Version
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the implementations that only the project registers, and those that only its base in a folder does.

    A base that registers nothing is a base before the registration, and may have all of them.

    Raises: GateError where the base registers others alone.
    """
    try:
        before = _read(folder)
    except ValueError:
        before = {}
    added = tuple(one for name, one in registered.items() if before and name not in before)
    if added and len(added) == len(registered):
        raise GateError(
            f"--base: {FILE} of {base.label} registers none of {', '.join(added)}, so there is nothing to compare: "
            "name another base, or an IMPLEMENTATION that the base has; attnbench conform checks what is new"
        )
    return added, tuple(place for name, place in before.items() if name not in registered)


def _read(folder: Path) -> dict[str, str]:
    """Return the entry points of a project; none where it has no pyproject.toml.

    Raises: ValueError where the file cannot be read.
    """
    try:
        project = tomllib.loads((folder / FILE).read_text("utf-8")).get("project", {})
    except OSError:
        return {}
    entries: dict[str, str] = project.get("entry-points", {}).get(IMPLEMENTATIONS, {})
    return entries
