"""The processes behind a session of tests: findings one by one, each as it is asked for."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from attnbench.api.selection import Expected, Selection, expectations_for
from attnbench.plugins.importable import search_path
from attnbench.plugins.registry import PluginError
from attnbench.processes.rpc import ChildDied
from attnbench.records.types import Finding
from attnbench.runner import Expectation, Limits, Plan, Session
from attnbench.runner.conform import findings
from attnbench.runner.session import PATIENT, Supervisor

__all__ = ["LocalSession", "WorkerPool"]


class LocalSession(Session):
    """A session whose workers find the modules that this process finds."""

    def supervise(
        self, implementation: str, environment: Mapping[str, str] = PATIENT, *, beside: int = 1
    ) -> Supervisor:
        """Worker of one implementation.

        Raises: PluginError where the implementation cannot be loaded.
        """
        return super().supervise(implementation, {**environment, "PYTHONPATH": search_path()}, beside=beside)


class WorkerPool:
    """A judge, and a worker process for each implementation, each started when it is first needed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._running = ExitStack()
        self._session: Session | None = None
        self._workers: dict[str, Supervisor | PluginError] = {}
        self._unloadable: set[str] = set()
        # Checks that are asked for, and findings that were not handed out yet, by implementation and case.
        self._asked: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._found: dict[tuple[str, str], dict[str, Finding]] = {}
        self._plans: dict[Selection, list[Plan]] = {}

    def plans(self, selection: Selection) -> list[Plan]:
        """Cases as they will be run; the judge is asked once.

        Raises: ValueError.
        """
        if selection not in self._plans:
            self._plans[selection] = selection.plans(self._opened())
        return self._plans[selection]

    def expectations(
        self, implementations: Sequence[str], expected: Expected, plans: Sequence[Plan]
    ) -> list[Expectation]:
        """Expected failures of these implementations; each speaks of something.

        Raises: ExpectationError, ValueError.
        """
        return expectations_for(self._opened(), implementations, expected, plans)

    def meets(self, implementation: str, plan: Plan) -> bool:
        """Whether a case is of the operator that an implementation computes; what cannot be loaded meets them all."""
        worker = self._worker(self._opened(), implementation)
        return isinstance(worker, PluginError) or worker.operator == plan.operator

    def ask_for(self, implementation: str, case: str, check: str) -> None:
        """Say that a finding will be wanted: those of one case are then found together."""
        self._asked[implementation, case].add(check)

    def finding(self, implementation: str, plan: Plan, check: str) -> Finding:
        """Finding of one check of a plan, with what else was asked for of its case."""
        key = (implementation, plan.case)
        # Each finding is handed out once: one that is wanted again, as when a test is repeated, is found again.
        if key not in self._found:
            wanted = tuple(name for name in plan.checks if name == check or name in self._asked[key])
            self._found[key] = self._findings(implementation, replace(plan, checks=wanted))
        elif check not in self._found[key]:
            return self._findings(implementation, replace(plan, checks=(check,)))[check]
        return self._found[key].pop(check)

    def close(self) -> None:
        """End all processes; they are started again when they are needed again."""
        self._session = None
        self._workers.clear()
        self._running.close()

    def _findings(self, implementation: str, plan: Plan) -> dict[str, Finding]:
        """Findings of a plan, by check."""
        try:
            session = self._opened()
            worker = self._worker(session, implementation)
            if isinstance(worker, PluginError):
                return self._unloaded(implementation, plan, str(worker))
            if worker.operator != plan.operator:
                reason = f"it computes {worker.operator}"
                return {check: Finding(check=check, status="unsupported", reason=reason) for check in plan.checks}
            return {finding.check: finding for finding in findings(session, worker, implementation, plan)}
        except ChildDied as error:
            self.close()
            reason = f"the judge's process ended: {error}"
            return {check: Finding(check=check, status="error", reason=reason) for check in plan.checks}
        except BaseException:
            # Left in the middle of a request, an answer would be taken for that of the next one.
            self.close()
            raise

    def _unloaded(self, implementation: str, plan: Plan, reason: str) -> dict[str, Finding]:
        """That it cannot be loaded is said once as an error; what follows from it is not run."""
        found = {check: Finding(check=check, status="not_run", reason=reason) for check in plan.checks}
        if implementation not in self._unloadable:
            self._unloadable.add(implementation)
            found[plan.checks[0]] = Finding(check=plan.checks[0], status="error", reason=reason)
        return found

    def _opened(self) -> Session:
        if self._session is None:
            self._session = self._running.enter_context(LocalSession(limits=self._limits))
        return self._session

    def _worker(self, session: Session, implementation: str) -> "Supervisor | PluginError":
        if implementation not in self._workers:
            try:
                self._workers[implementation] = self._running.enter_context(session.supervise(implementation))
            except PluginError as error:
                self._workers[implementation] = error
        return self._workers[implementation]
