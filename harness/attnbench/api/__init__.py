"""``attnbench.conform``: run the checks of a suite from Python, and get a report."""

from collections.abc import Sequence

from attnbench.analysis.coverage import VERDICT_SUITES
from attnbench.api import results
from attnbench.api.execution import plan_checks, plan_conformance
from attnbench.api.outcome import ConformanceError, Failure, Report, format_finding
from attnbench.api.selection import Expected
from attnbench.api.worker_pool import LocalSession, WorkerPool, refuse_in_worker
from attnbench.jobs.job import ConformJob, build
from attnbench.plugins.importable import find_name
from attnbench.plugins.registry import list_operators
from attnbench.runner import Limits, NoProgress
from attnbench.runner import conform as conform_all
from attnbench.runner.supplement import settle_supplements

__all__ = [
    "ConformanceError",
    "Expected",
    "Failure",
    "Report",
    "WorkerPool",
    "conform",
    "format_finding",
    "results",
]


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
    completion: bool = True,
) -> Report:
    """Run the checks of a suite on an implementation in a separate process, and return a report.

    ``implementation`` is an object or a name. The object is a module class, a function of (q, k, v)
    or an ``Implementation``; a new process must be able to import the object. The name is that of a
    registered implementation, ``package.module:attribute`` or ``path/to/file.py:attribute``.

    ``cases`` are shell-style patterns of case ids, or whole case ids. ``checks`` are names of
    checks. By default, all cases of the suite and all checks are run. ``timeout_s`` limits the wall
    time of one check on one case. ``memory_bytes`` limits the memory of a worker process.
    ``threads`` is the number of threads of every worker process. ``completion`` says whether a whole suite is
    supplemented by cases of a pool for an implementation that declares cases unsupported.

    ``expected_failures`` are paths of files, or a mapping. A key of the mapping is a pattern of
    check names, or a pair (pattern of check names, pattern of case ids). A value of the mapping is
    a pair (reason, link). If the folder of the implementation's module contains an
    ``expected_failures.toml``, this file is always read.

    Raises: attnbench.plugins.registry.PluginError if the implementation cannot be loaded;
    ValueError if no check applies to the selected cases, or an argument is invalid.
    """
    refuse_in_worker("conform")
    name = find_name(implementation)
    job = build(
        ConformJob,
        {
            "suite": suite, "cases": cases, "checks": checks, "timeout_s": timeout_s, "memory_bytes": memory_bytes,
            "threads": threads, "no_completion": not completion,
        },
    )  # fmt: skip
    limits = Limits(timeout_s=job.timeout_s, memory_bytes=job.memory_bytes, threads=job.threads)
    with LocalSession(limits=limits) as session:
        plans = plan_conformance(session, job, list_operators(), here=False)
        planned = plan_checks(session, job, [name], plans, expected=expected_failures)
        results = tuple(
            conform_all(
                session, [name], plans, run="", progress=NoProgress(), suite=suite, expectations=planned.expectations,
                supplements=planned.supplements,
            )
        )  # fmt: skip
        return Report(
            implementation=name,
            suite=suite,
            results=results,
            completion=settle_supplements(session, planned.supplements, results).get(name),
            whole=job.whole and suite in VERDICT_SUITES,
        )
