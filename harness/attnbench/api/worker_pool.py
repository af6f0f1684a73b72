"""The worker processes of a pytest session, which asks for findings one at a time."""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from attnbench.api.execution import plan_conformance
from attnbench.api.selection import Expected, collect_expectations
from attnbench.jobs.job import ConformJob
from attnbench.plugins.importable import build_search_path
from attnbench.plugins.registry import PluginError, list_operators
from attnbench.processes.errors import ChildDied
from attnbench.records.outcome_facts import CannotLoad, OracleEnded, OtherOperator
from attnbench.records.types import Finding
from attnbench.runner import Expectation, Limits, Plan, Session
from attnbench.runner.candidate_pool import Supervisor
from attnbench.runner.conform import check_case

__all__ = ["LocalSession", "WorkerPool", "refuse_in_worker"]


class LocalSession(Session):
    """A session whose workers import modules from the same paths as this process."""

    def find_variables(self) -> Mapping[str, str]:
        """Return the paths of this process."""
        return {"PYTHONPATH": build_search_path()}


class WorkerPool:
    """An oracle worker, and one candidate worker per implementation; each process starts when it is first needed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._running = ExitStack()
        self._session: Session | None = None
        self._workers: dict[str, Supervisor | PluginError] = {}
        self._unloadable: set[str] = set()
        # Maps (implementation, case) to the names of the checks that ``request`` announced.
        self._requested: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        # Maps (implementation, case) to the findings that ``get_finding`` has not returned yet; these
        # are keyed by check name.
        self._found: dict[tuple[str, str], dict[str, Finding]] = {}
        self._plans: dict[ConformJob, list[Plan]] = {}

    def make_plans(self, job: ConformJob) -> list[Plan]:
        """Return the plans of a job, which are made at the first call for the job.

        Raises: ValueError if a pattern matches no case, or no selected check applies to any
        selected case.
        """
        if job not in self._plans:
            self._plans[job] = plan_conformance(self._open_session(), job, list_operators(), here=False)
        return self._plans[job]

    def collect_expectations(
        self, implementations: Sequence[str], expected: Expected, plans: Sequence[Plan]
    ) -> list[Expectation]:
        """Return the expected failures of the implementations, as ``selection.collect_expectations`` does.

        Raises: ExpectationError, ValueError as ``selection.collect_expectations``.
        """
        return collect_expectations(self._open_session(), implementations, expected, plans)

    def is_applicable(self, implementation: str, plan: Plan) -> bool:
        """Whether an implementation computes the operator of a plan; True if the implementation cannot be loaded."""
        worker = self._start_worker(self._open_session(), implementation)
        return isinstance(worker, PluginError) or worker.operator == plan.operator

    def request(self, implementation: str, case: str, check: str) -> None:
        """Announce a later call of ``get_finding`` for a check; the announced checks of one case run together."""
        self._requested[implementation, case].add(check)

    def get_finding(self, implementation: str, plan: Plan, check: str) -> Finding:
        """Return the finding of one check.

        The first call for a case also runs the case's other checks that ``request`` announced.
        """
        key = (implementation, plan.case)
        # Each finding is returned once. If a finding is requested again, as by a repeated test, the
        # check runs again.
        if key not in self._found:
            wanted = tuple(name for name in plan.checks if name == check or name in self._requested[key])
            self._found[key] = self._run_checks(implementation, replace(plan, checks=wanted))
        elif check not in self._found[key]:
            return self._run_checks(implementation, replace(plan, checks=(check,)))[check]
        return self._found[key].pop(check)

    def close(self) -> None:
        """End all worker processes; a later call starts new processes."""
        self._session = None
        self._workers.clear()
        self._running.close()

    def _run_checks(self, implementation: str, plan: Plan) -> dict[str, Finding]:
        """Run the checks of a plan, and return their findings; the keys are check names."""
        try:
            session = self._open_session()
            worker = self._start_worker(session, implementation)
            if isinstance(worker, PluginError):
                return self._report_load_error(implementation, plan, CannotLoad(message=str(worker)))
            if worker.operator != plan.operator:
                other = OtherOperator(operator=worker.operator, case_operator=plan.operator)
                return {check: Finding(check=check, status="unsupported", facts=(other,)) for check in plan.checks}
            return {finding.check: finding for finding in check_case(session, worker, implementation, plan)}
        except ChildDied as error:
            self.close()
            ended = OracleEnded(how=error.fact)
            return {check: Finding(check=check, status="error", facts=(ended,)) for check in plan.checks}
        except BaseException:
            # End the processes: otherwise the next request would get the reply to the interrupted request.
            self.close()
            raise

    def _report_load_error(self, implementation: str, plan: Plan, fact: CannotLoad) -> dict[str, Finding]:
        """Return the findings of a plan whose implementation cannot be loaded; the keys are check names.

        The first finding of the implementation has the status ``error``. All others have the status ``not_run``.
        """
        found = {check: Finding(check=check, status="not_run", facts=(fact,)) for check in plan.checks}
        if implementation not in self._unloadable:
            self._unloadable.add(implementation)
            found[plan.checks[0]] = Finding(check=plan.checks[0], status="error", facts=(fact,))
        return found

    def _open_session(self) -> Session:
        if self._session is None:
            self._session = self._running.enter_context(LocalSession(limits=self._limits))
        return self._session

    def _start_worker(self, session: Session, implementation: str) -> "Supervisor | PluginError":
        """Return the worker of an implementation, or the error that loading the implementation raised.

        The worker is started at the first call for the implementation.
        """
        if implementation not in self._workers:
            try:
                self._workers[implementation] = self._running.enter_context(session.workers.get([implementation]))
            except PluginError as error:
                self._workers[implementation] = error
        return self._workers[implementation]


def refuse_in_worker(called: str) -> None:
    """Refuse a call of the Python interface in a worker process, which would start workers in turn.

    Raises: PluginError with the name of the function that was called.
    """
    if getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "") == "attnbench.workers.candidate_worker":
        raise PluginError(
            f"{called} was called by a worker process, which imported the file that contains the call; "
            "put the call under if __name__ == '__main__':"
        )
