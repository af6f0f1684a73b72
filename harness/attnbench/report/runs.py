"""Runs and machines in words."""

from attnbench.records.types import Machine, Run
from attnbench.report.numbers import format_bytes, format_count

__all__ = ["describe_commit", "describe_machine", "describe_suite"]


def describe_machine(machine: Machine) -> str:
    """Describe a machine in one line."""
    parts = [
        machine.name,
        machine.cpu,
        format_count(machine.cores, "core"),
        f"{format_bytes(machine.memory_bytes)} of memory",
    ]
    parts += [machine.isa] if machine.isa else []
    parts.append(f"{machine.gpu}, driver {machine.driver or 'not known'}" if machine.gpu else "no GPU")
    return " · ".join([*parts, machine.system] if machine.system else parts)


def describe_suite(run: Run) -> str:
    """Return the suite of a run, and the hash of the case list if the run has the list or a part of it."""
    suite = run.suite or "none"
    if run.suite_digest:
        return f"{suite}, case list {run.suite_digest}"
    return f"{suite}, part of case list {run.list_digest}" if run.list_digest else suite


def describe_commit(commit: str | None) -> str:
    """Return the commit of a run in words."""
    if not commit:
        return "none: not run from a checkout"
    return f"{commit.removesuffix('+')} (with uncommitted changes)" if commit.endswith("+") else commit
