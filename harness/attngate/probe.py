"""What an interpreter has: its version, its torch, the packages that a gate needs, and the hash of their source code.

Another interpreter runs this file as a program, so the file imports the standard library alone.
"""

import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["describe_interpreter", "hash_packages"]

# The packages whose code measures, and those that they import.
MEASURING = ("attnbench", "attngate")
NEEDED = ("attnbench", "attngate", "torch", "numpy", "click", "msgspec")


def describe_interpreter() -> dict[str, object]:
    """Return the versions of Python and torch, the missing packages, and the hash of the code that measures."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, "torch": torch, "missing": missing, "code": hash_packages(MEASURING)}


def hash_packages(packages: Iterable[str]) -> str:
    """Return the hash of the source code of packages; one that is not installed has none."""
    digest = hashlib.sha256()
    for path in (path for name in sorted(packages) for path in _list_files(name)):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _list_files(package: str) -> Iterator[Path]:
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations or () if spec else ()
    for place in places:
        yield from sorted(Path(place).rglob("*.py"))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe_interpreter()))
