"""``attnbench.conform``: the checks over a suite from Python, and what they came to."""

import sys
from collections.abc import Sequence

from attnbench.api.outcome import ConformanceError, Failure, Report, told
from attnbench.api.selection import Expected, Selection, expectations_for, listed
from attnbench.api.worker_pool import LocalSession, WorkerPool
from attnbench.plugins.importable import name_of
from attnbench.plugins.registry import PluginError
from attnbench.runner import Limits, NoProgress
from attnbench.runner import conform as conform_all

__all__ = ["ConformanceError", "Expected", "Failure", "Report", "Selection", "WorkerPool", "conform", "told"]


def conform(
    implementation: object,
    *,
    suite: str = "core",
    cases: Sequence[str] = (),
    checks: Sequence[str] = (),
    expected_failures: Expected = (),
    timeout_s: float = 120.0,
    memory_bytes: int | None = None,
    threads: int | None = None,
) -> Report:
    """Check an implementation against the reference over a suite, in a process of its own.

    ``implementation`` is a module class, a function of (q, k, v) or an ``Implementation`` that a fresh process can
    import, or a name: registered, ``package.module:attribute`` or ``path/to/file.py:attribute``. ``cases`` are
    shell-style patterns or whole ids. ``expected_failures`` are files, or a (reason, link) for the pattern of a check,
    or of a check and a case; those in ``expected_failures.toml`` beside the implementation are always read.

    Raises: attnbench.plugins.registry.PluginError where it cannot be loaded, ValueError where nothing is left to run.
    """
    if getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "") == "attnbench.workers.candidate_worker":
        raise PluginError(
            "conform was called while its own process imported the file that calls it: "
            "put the call under if __name__ == '__main__':"
        )
    name = name_of(implementation)
    selection = Selection(suite=suite, cases=listed(cases), checks=listed(checks))
    with LocalSession(limits=Limits(timeout_s=timeout_s, memory_bytes=memory_bytes, threads=threads)) as session:
        plans = selection.plans(session)
        expectations = expectations_for(session, [name], expected_failures, plans)
        results = conform_all(
            session, [name], plans, run="", steps=NoProgress(), suite=suite, expectations=expectations
        )
        return Report(implementation=name, suite=suite, results=tuple(results))
