"""Conformance of both sides; what is known of a commit is kept, so that the same base is checked only once.

What is kept belongs to the hash of all files of a commit, and to all else that the results depend on: the cases, the
limits, the code of attnbench and of the operator, the installed distributions, the machine, and the environment
variables that the code names.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import distributions
from pathlib import Path

import msgspec

from attnbench.api.execution import Checks, conform_into
from attnbench.api.recording import Recording
from attnbench.api.revisions import Version, find_variables
from attnbench.jobs.job import ConformJob
from attnbench.oracle.disk_cache import DiskCache, find_folder
from attnbench.plugins.registry import display_name, load_operator
from attnbench.records.environment import describe_machine, find_checkout
from attnbench.records.types import DEADLY, SCHEMA, Result
from attnbench.runner import Plan, Session
from attngate.probe import hash_packages

__all__ = ["Pair", "conform_sides", "read_kept"]

# Largest size of what is kept, in bytes: the results of a core suite take about 0.5 MB.
LIMIT_BYTES = 2**28
# Statuses that another run may not have; results with one of them are not kept.
FLEETING = DEADLY | {"out_of_memory", "not_run"}
# Prefixes of the environment variables by which torch and its libraries choose kernels.
SETTINGS = ("CUDA", "DNNL_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "TORCH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An implementation and its two sides, as names that a session loads."""

    # Name of the implementation as results have it, without a side.
    name: str
    base: str
    new: str

    @property
    def sides(self) -> tuple[str, str]:
        """The base, then the new side."""
        return self.base, self.new

    @property
    def shown(self) -> tuple[str, str]:
        """The names of the sides in results."""
        return display_name(self.base), display_name(self.new)


def conform_sides(
    recorded: Recording,
    session: Session,
    job: ConformJob,
    checks: Mapping[str, Checks],
    versions: Mapping[str, Version],
) -> None:
    """Check sides, record their results, and keep those of commits. The keys of the mappings are names of sides."""
    for side, own in checks.items():
        conform_into(recorded, session, [side], own, job.suite)
        shown, cases = display_name(side), {plan.case for plan in own.list_plans(side)}
        found = [one for one in recorded.results.values() if one.implementation == shown and one.case in cases]
        fleeting = any(finding.status in FLEETING for result in found for finding in result.findings)
        key = None if fleeting else _find_key(session, job, side, versions[side], own.plans)
        if key and (cache := _open_cache(job)):
            cache.write(key, msgspec.msgpack.encode(tuple(replace(one, run="") for one in found)))


def read_kept(
    session: Session, job: ConformJob, side: str, version: Version, plans: Sequence[Plan]
) -> tuple[Result, ...]:
    """Return the kept results of a side; none if nothing is kept."""
    cache, key = _open_cache(job), _find_key(session, job, side, version, plans)
    found = cache.read(key) if cache and key else None
    return msgspec.msgpack.decode(found, type=tuple[Result, ...]) if found else ()


def _open_cache(job: ConformJob) -> DiskCache | None:
    folder = None if job.no_cache else find_folder()
    return DiskCache(folder.parent / "gate", limit_bytes=LIMIT_BYTES) if folder else None


def _find_key(session: Session, job: ConformJob, side: str, version: Version, plans: Sequence[Plan]) -> str | None:
    """Return the key of the results of a side; None if its files are not those of a commit."""
    sources = session.declared[side].sources
    checkout = find_checkout(Path(sources.folder), sources.files) if sources.files else None
    if not version.tree or version.changed or checkout is None or checkout[1]:
        return None
    machine = describe_machine()
    parts = {
        "schema": SCHEMA,
        "tree": version.tree,
        "name": side.partition(" @ ")[0],
        "files": sources.files,
        "sources": sources.digest,
        "plans": [(plan.case, *plan.checks) for plan in plans],
        "job": {name: str(value) for name, value in asdict(job).items() if name not in ("implementations", "results")},
        "code": _hash_code(session.declared[side].operator),
        "installed": sorted(f"{one.name} {one.version}" for one in distributions()),
        "machine": [machine.name, machine.cpu, machine.gpu, machine.driver, machine.isa, machine.system],
        "settings": sorted(item for item in os.environ.items() if item[0].startswith(SETTINGS)),
        "variables": sorted(find_variables(Path(sources.folder)).items()),
    }
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def _hash_code(operator: str) -> str:
    """Return the hash of the source code of attnbench, and of the package that defines an operator."""
    own = load_operator(operator)
    packages = {"attnbench", *(kind.__module__.partition(".")[0] for kind in (type(own), own.problem))}
    return hash_packages(packages)
