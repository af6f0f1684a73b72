"""Runs and machines in words."""

from attnbench.records.types import Machine, Run
from attnbench.words.say import say, say_count

__all__ = ["describe_commit", "describe_machine", "describe_suite"]

_CORES = ("{count} core", "{count} cores")
_MEMORY = "{memory} of memory"
_GPU, _UNKNOWN_DRIVER, _NO_GPU = "{gpu}, driver {driver}", "not known", "no GPU"
_NO_SUITE = "none"
_LIST, _PART = "{suite}, case list {digest}", "{suite}, part of case list {digest}"
_NO_COMMIT = "none: not run from a checkout"
_CHANGED = "{commit} (with uncommitted changes)"


def describe_machine(machine: Machine, memory: str) -> str:
    """Describe a machine in one line; ``memory`` is the size of its memory with its unit."""
    parts = [machine.name, machine.cpu, say_count(_CORES, machine.cores), say(_MEMORY, memory=memory)]
    parts += [machine.isa] if machine.isa else []
    driver = machine.driver or say(_UNKNOWN_DRIVER)
    parts.append(say(_GPU, gpu=machine.gpu, driver=driver) if machine.gpu else say(_NO_GPU))
    return " · ".join([*parts, machine.system] if machine.system else parts)


def describe_suite(run: Run) -> str:
    """Return the suite of a run, and the hash of the case list if the run has the list or a part of it."""
    suite = run.suite or say(_NO_SUITE)
    if run.suite_digest:
        return say(_LIST, suite=suite, digest=run.suite_digest)
    return say(_PART, suite=suite, digest=run.list_digest) if run.list_digest else suite


def describe_commit(commit: str | None) -> str:
    """Return the commit of a run."""
    if not commit:
        return say(_NO_COMMIT)
    return say(_CHANGED, commit=commit.removesuffix("+")) if commit.endswith("+") else commit
