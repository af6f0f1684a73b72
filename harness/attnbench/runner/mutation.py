"""Mutation testing: which checks fail on which mutants.

Every mutant names the check that must catch it. The first stage runs a mutant on the cases of ``core`` (or of a smaller
suite) that are not compiled, until that check has caught it. The second stage uses the remaining cases: the compiled
cases and the cases of larger suites. Only mutants that the first stage did not catch run on these cases. With the
argument ``whole``, the first stage does not stop early, and also runs equivalent mutants and correct variants.
"""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from msgspec.structs import asdict

from attnbench.plugins.registry import PluginError
from attnbench.processes.mutation_requests import FindFailingChecks, MutantNames, MutationRequest, StartMutation
from attnbench.processes.request import Fault
from attnbench.processes.rpc import Child
from attnbench.records.environment import count_cores
from attnbench.runner.progress import Progress
from attnbench.runner.session import Plan

__all__ = ["FEW", "Matrix", "run_mutants"]

# A mutant that fails at most this number of checks counts as caught by few checks.
FEW = 3
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Which checks every mutant, equivalent mutant and correct variant fails, and on which cases."""

    # For each mutant, the check that it names as the one that must catch it.
    mutants: Mapping[str, str]
    equivalents: Sequence[str]
    variants: Sequence[str]
    # Checks that apply to at least one case.
    asked: Collection[str]
    # Whether every implementation ran on every case; if not, a mutant ran only until the check that it names caught it.
    whole: bool = True
    # Operator of each mutant, equivalent mutant and correct variant.
    operators: Mapping[str, str] = field(default_factory=dict)
    # Failed (check, case) pairs of each mutant, equivalent mutant and correct variant.
    failed: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))

    def find_killed_on(self, cases: Collection[str]) -> list[str]:
        """Return the mutants that fail a check on at least one of these cases."""
        return [name for name in self.mutants if any(case in cases for _, case in self.failed[name])]

    def count_failures(self, name: str) -> Counter[str]:
        """Count the failed cases of each check that fails on an implementation."""
        return Counter(check for check, _ in tuple(self.failed[name]))

    def find_mutants_of(self, operator: str) -> list[str]:
        """Return the mutants of an operator."""
        return [name for name in self.mutants if self.operators.get(name) == operator]

    def is_caught(self, name: str) -> bool:
        """Whether the check that a mutant names has caught it."""
        return name in self.mutants and self.mutants[name] in self.count_failures(name)

    def find_survivors(self) -> list[str]:
        """Return the mutants that fail no check, although the check that must catch them applies to a case."""
        return [name for name, check in self.mutants.items() if not self.failed[name] and check in self.asked]

    def find_unasked(self) -> list[str]:
        """Return the mutants that fail no check, where the check that must catch them applies to no case."""
        return [name for name, check in self.mutants.items() if not self.failed[name] and check not in self.asked]

    def find_caught_by(self, check: str) -> list[str]:
        """Return the mutants that name this check and fail it."""
        return [name for name, named in self.mutants.items() if named == check and self.is_caught(name)]

    def find_killed_by(self, check: str) -> list[str]:
        """Return the mutants that fail this check."""
        return [name for name in self.mutants if check in self.count_failures(name)]

    def find_killed_only_by(self, check: str) -> list[str]:
        """Return the mutants that fail this check and no other."""
        return [name for name in self.mutants if set(self.count_failures(name)) == {check}]

    def group_indistinguishable(self) -> list[list[str]]:
        """Return groups of two or more mutants that fail exactly the same checks on the same cases."""
        groups: defaultdict[frozenset[tuple[str, str]], list[str]] = defaultdict(list)
        for name in self.mutants:
            if self.failed[name]:
                groups[frozenset(self.failed[name])].append(name)
        return [names for names in groups.values() if len(names) > 1]

    def find_caught_by_few(self) -> list[str]:
        """Return the mutants that fail one to three checks."""
        return [name for name in self.mutants if 0 < len(self.count_failures(name)) <= FEW]

    def find_killed_elsewhere(self) -> list[str]:
        """Return the mutants that are killed, but not by the check that they name."""
        return [
            name for name, check in self.mutants.items() if self.failed[name] and check not in self.count_failures(name)
        ]

    def find_false_alarms(self) -> dict[str, list[str]]:
        """Return, for each equivalent mutant or correct variant that fails a check, the checks that it fails."""
        right = [*self.variants, *self.equivalents]
        return {name: list(self.count_failures(name)) for name in right if self.failed[name]}


@dataclass(frozen=True, slots=True)
class MutationClient:
    """Sends the requests that a mutation worker answers."""

    child: Child

    def ask(self, request: MutationRequest[Reply]) -> Reply:
        """Send a request and return its reply.

        Raises: ChildDied.
        """
        return self.child.ask(request)


def run_mutants(
    plans: Sequence[Plan], first: Collection[str], *, progress: Progress, whole: bool = True, jobs: int = 0
) -> Matrix:
    """Run all mutants on the cases among ``first`` that are not compiled, and the uncaught mutants on all other cases.

    A mutant is caught once it fails the check that it names. Without ``whole``, a caught mutant runs on no further
    case. With ``whole``, every mutant, equivalent mutant and correct variant runs on all cases in ``first`` that are
    not compiled; the matrix then shows which mutants only one check kills.

    The mutants are those of the operators of the cases. ``jobs`` is the number of processes; 0 means one per core.
    """
    possible = [plan for plan in plans if not plan.missing]
    first_plans = [plan for plan in possible if plan.case in first and not plan.is_compiled]
    rest = [plan for plan in possible if plan not in first_plans]
    count = jobs or count_cores()
    with _mutation_workers(count, sorted({plan.operator for plan in possible})) as (workers, mutants):
        asked = {check for plan in possible for check in plan.checks}
        matrix = Matrix(**asdict(mutants), asked=asked, whole=whole)
        names = [*matrix.mutants, *matrix.equivalents, *matrix.variants] if whole else list(matrix.mutants)
        progress.begin("mutants", len(first_plans) + len(rest))
        _check_cases(workers, first_plans, names, matrix, progress)
        left = [name for name in matrix.mutants if not matrix.is_caught(name)]
        _check_cases(workers, rest if left else [], left, matrix, progress)
    return matrix


@contextmanager
def _mutation_workers(count: int, operators: Sequence[str]) -> Iterator[tuple[list[MutationClient], MutantNames]]:
    """Start ``count`` mutation workers; yield them and the names of the mutants of these operators.

    Raises: PluginError where the mutants of an operator cannot be loaded.
    """
    with ExitStack() as stack:
        workers = []
        mutants = MutantNames(mutants={}, equivalents=[], variants=[], operators={})
        for _ in range(count):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attnbench-")))
            environment = {"OMP_NUM_THREADS": "1"}
            child = stack.enter_context(
                Child("attnbench.workers.mutation_worker", log=folder / "log", environment=environment)
            )
            worker = MutationClient(child)
            workers.append(worker)
            started = worker.ask(StartMutation(folder=str(folder), operators=list(operators)))
            if isinstance(started, Fault):
                raise PluginError(started.reason)
            mutants = started
        yield workers, mutants


def _check_cases(
    workers: Sequence[MutationClient], plans: Sequence[Plan], names: Sequence[str], matrix: Matrix, progress: Progress
) -> None:
    """Run the implementations ``names`` on every case, and add the checks that fail to ``matrix``.

    A worker takes the next case as soon as the worker is free.
    """
    free: SimpleQueue[MutationClient] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def run_case(plan: Plan) -> tuple[str, dict[str, list[str]]]:
        worker = free.get()
        left = [name for name in names if matrix.whole or not matrix.is_caught(name)]
        try:
            request = FindFailingChecks(case=plan.case, checks=list(plan.checks), names=left)
            return plan.case, worker.ask(request)
        finally:
            free.put(worker)

    with ThreadPoolExecutor(max_workers=len(workers)) as pool:
        waiting = [pool.submit(run_case, plan) for plan in plans]
        try:
            for done in as_completed(waiting):
                case, failed = done.result()
                for name, checks in failed.items():
                    matrix.failed[name] |= {(check, case) for check in checks}
                progress.now(case)
                progress.done(case)
        except BaseException:
            for later in waiting:
                later.cancel()
            for worker in workers:
                worker.child.kill()
            raise
