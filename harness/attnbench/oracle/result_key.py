"""Keys of stored results: everything that determines the expected values of a case.

A key contains the case, its inputs, the version of torch, and the source code of the oracle, of the operators and of
the package that defines the operator. It also contains what determines the rounding of the yardsticks: the CPU, the
number of threads, and the environment variables by which math libraries choose their kernels.
"""

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch

from attnbench.cases import Case
from attnbench.interface import Choices, Operator, Precision
from attnbench.records.environment import read_cpu_model

__all__ = ["SOURCES", "ResultKeys"]

# Files and packages of attnbench on which expected values depend. A test checks that they import no other package of
# attnbench, except the package that reads the CPU model.
SOURCES = (
    "argument_checks.py", "cases", "devices", "interface", "kernel", "masks.py", "operators", "oracle",
    "refusals.py",
)  # fmt: skip
# Prefixes of the environment variables by which the math libraries that torch calls choose their kernels.
# Source: https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html and
# https://www.intel.com/content/www/us/en/docs/onemkl/developer-guide-linux/current/environment-variables.html
KERNEL_SETTINGS = ("DNNL_", "MKL_", "ONEDNN_", "OPENBLAS_")
# Largest size in bytes of a source file whose content enters the digest. For a larger file, such as a compiled
# extension, the size and the time of the last change enter the digest instead.
READ_BYTES = 2**20


class ResultKeys:
    """Makes the keys of the results that this process computes."""

    def __init__(self) -> None:
        self._read_sources = cache(_read_sources)
        self._cpu = [read_cpu_model(), torch.backends.cpu.get_cpu_capability()]

    def make(self, case: Case, operator: Operator, inputs: Path, precision: Precision, choices: Choices) -> str | None:
        """Return the key of a case's expected values, or None if the source files are not known or have changed.

        ``inputs`` is the file of the case's inputs. The device is not part of the key, because the oracle and the
        yardsticks run on the CPU.
        """
        sources = self._read_sources(_list_packages(operator))
        if sources is None or sources.have_changed():
            return None
        parts = {
            "case": case.with_fields(device="cpu").id,
            "inputs": hashlib.sha256(inputs.read_bytes()).hexdigest(),
            "precision": precision,
            "choices": asdict(choices),
            "sources": sources.digest,
            "torch": torch.__version__,
            "cpu": self._cpu,
            "threads": torch.get_num_threads(),
            "settings": sorted(item for item in os.environ.items() if item[0].startswith(KERNEL_SETTINGS)),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Sources:
    """The source files that determine the results of an operator, in the state in which they were read."""

    files: tuple[Path, ...]
    # For each file, its size in bytes and the time of its last change in nanoseconds.
    stamps: tuple[tuple[int, int], ...]
    # Digest of the names and contents of all files.
    digest: str

    def have_changed(self) -> bool:
        """Whether a file was changed after it was read; this process may then have imported another version of it."""
        try:
            return tuple(map(_stamp, self.files)) != self.stamps
        except OSError:
            return True


def _read_sources(packages: frozenset[str]) -> _Sources | None:
    """Read the source files of attnbench and of ``packages``; return None if one of ``packages`` has no folder."""
    own = Path(__file__).parents[1]
    places = [own / name for name in SOURCES]
    for name in sorted(packages):
        folders = _find_folders(name)
        if not folders:
            return None
        places += folders
    named = [
        (f"{number}/{path.relative_to(place)}", path) for number, place in enumerate(places) for path in _walk(place)
    ]
    digest, stamps = hashlib.sha256(), []
    for name, path in named:
        stamps.append(_stamp(path))
        content = path.read_bytes() if stamps[-1][0] <= READ_BYTES else repr(stamps[-1]).encode()
        digest.update(f"{name}\n{len(content)}\n".encode() + content)
    return _Sources(tuple(path for _, path in named), tuple(stamps), digest.hexdigest())


def _list_packages(operator: Operator) -> frozenset[str]:
    """Return the top-level packages, other than attnbench, that define an operator and its problems."""
    kinds = (*type(operator).__mro__, *operator.problem.__mro__)
    return frozenset(kind.__module__.partition(".")[0] for kind in kinds) - sys.stdlib_module_names - {"attnbench"}


def _find_folders(package: str) -> Sequence[Path]:
    """Return the folders of a package.

    The result is empty if no folder is found, as for a module in a single file. The modules that such a file imports
    may be anywhere, so its source code cannot be collected.
    """
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # the module was loaded without a spec
        return ()
    return [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]


def _walk(place: Path) -> Iterable[Path]:
    """Return the files below a folder, sorted by path, without compiled Python.

    If ``place`` is a file, return only this file.
    """
    found = [place] if place.is_file() else place.rglob("*")
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def _stamp(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns
