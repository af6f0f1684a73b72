"""The code that a certificate is about: distribution, commit, and hash of the source files."""

from importlib.metadata import packages_distributions, version
from pathlib import Path

from attnbench.analysis.certificate import Code
from attnbench.plugins.registry import find_distribution, locate
from attnbench.processes.sources import Sources
from attnbench.records.environment import find_checkout

__all__ = ["describe_code"]


def describe_code(name: str, sources: Sources) -> Code:
    """Describe the code of an implementation, from the source files that a worker read when it loaded the code."""
    owners = packages_distributions()
    distribution = find_distribution(name)
    place, _, _ = locate(name)
    if distribution is None and not place.endswith(".py"):
        distribution = next(iter(owners.get(place.partition(".")[0], ())), None)
    commit, dirty = find_checkout(Path(sources.folder), sources.files) or (None, None)
    imported = sorted({owner for module in sources.imports for owner in owners.get(module, ())} - {distribution})
    return Code(
        distribution=distribution,
        version=version(distribution) if distribution else None,
        commit=commit,
        dirty=dirty,
        sha256=sources.digest,
        files=sources.files,
        imports={owner: version(owner) for owner in imported},
    )
