"""How well the checks catch what is wrong.

Every mutant meets the cases of ``core`` (or of a smaller level) that are not compiled, until the check that it names
has caught it; or all of them, and then what is right does too. Whom its own check has not caught then meets the rest:
compiled cases, and those of larger levels.
"""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from attnbench.cases import CALL_MODES
from attnbench.plugins.registry import PluginError
from attnbench.processes.rpc import Child
from attnbench.records.environment import cores
from attnbench.runner.progress import Progress
from attnbench.runner.session import Plan

__all__ = ["FEW", "Matrix", "mutation_matrix"]

# A mutant that fails no more checks than this is caught by few.
FEW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Which checks failed on which cases, for every implementation that should fail, and for those that should not."""

    # Mutants, each with the check that it names.
    mutants: Mapping[str, str]
    equivalents: Sequence[str]
    variants: Sequence[str]
    # Checks that any case asks.
    asked: Collection[str]
    # Whether everybody met every case, or each mutant only as many as it took.
    whole: bool = True
    # Operator that each of them computes.
    operators: Mapping[str, str] = field(default_factory=dict)
    # Failed (check, case) by implementation.
    failed: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))

    def killed_on(self, cases: Collection[str]) -> list[str]:
        """Mutants that fail anything on some of these cases."""
        return [name for name in self.mutants if any(case in cases for _, case in self.failed[name])]

    def checks_of(self, name: str) -> Counter[str]:
        """Checks that fail on an implementation, with the number of cases."""
        return Counter(check for check, _ in tuple(self.failed[name]))

    def of(self, operator: str) -> list[str]:
        """Mutants of an operator."""
        return [name for name in self.mutants if self.operators.get(name) == operator]

    def is_caught(self, name: str) -> bool:
        """Whether the check that a mutant names has caught it."""
        return name in self.mutants and self.mutants[name] in self.checks_of(name)

    def survivors(self) -> list[str]:
        """Mutants that fail nothing, though the check that they name is asked."""
        return [name for name, check in self.mutants.items() if not self.failed[name] and check in self.asked]

    def beyond(self) -> list[str]:
        """Mutants that fail nothing, and name a check that no case here asks."""
        return [name for name, check in self.mutants.items() if not self.failed[name] and check not in self.asked]

    def caught_by(self, check: str) -> list[str]:
        """Mutants that name a check and are caught by it."""
        return [name for name, named in self.mutants.items() if named == check and self.is_caught(name)]

    def killed_by(self, check: str) -> list[str]:
        """Mutants that fail a check."""
        return [name for name in self.mutants if check in self.checks_of(name)]

    def needing(self, check: str) -> list[str]:
        """Mutants that fail this check and no other."""
        return [name for name in self.mutants if set(self.checks_of(name)) == {check}]

    def alike(self) -> list[list[str]]:
        """Mutants that fail the same checks on the same cases."""
        groups: defaultdict[frozenset[tuple[str, str]], list[str]] = defaultdict(list)
        for name in self.mutants:
            if self.failed[name]:
                groups[frozenset(self.failed[name])].append(name)
        return [names for names in groups.values() if len(names) > 1]

    def caught_by_few(self) -> list[str]:
        """Mutants that fail three checks or fewer, and one at least."""
        return [name for name in self.mutants if 0 < len(self.checks_of(name)) <= FEW]

    def elsewhere(self) -> list[str]:
        """Mutants that are killed, and not by the check that they name."""
        return [name for name, check in self.mutants.items() if self.failed[name] and check not in self.checks_of(name)]

    def false_alarms(self) -> dict[str, list[str]]:
        """Checks that fail on what is right."""
        right = [*self.variants, *self.equivalents]
        return {name: list(self.checks_of(name)) for name in right if self.failed[name]}


def mutation_matrix(
    plans: Sequence[Plan], first: Collection[str], *, steps: Progress, whole: bool = True, jobs: int = 0
) -> Matrix:
    """Try all mutants on the cases among ``first`` that are not compiled, and on the rest what survives.

    Mutants are those of the operators that there are cases of: of the others nothing is found out.

    ``whole`` says that who is caught goes on to the next case all the same, to see what every check is needed for, and
    that what is right meets the cases too. ``jobs`` is the number of processes; 0: as many as there are cores.
    """
    possible = [plan for plan in plans if not plan.missing]
    at_once = [plan for plan in possible if plan.case in first and not _compiled(plan)]
    rest = [plan for plan in possible if plan not in at_once]
    count = jobs or cores()
    with _trials(count, sorted({plan.operator for plan in possible})) as (trials, zoo):
        asked = {check for plan in possible for check in plan.checks}
        matrix = Matrix(**zoo, asked=asked, whole=whole)
        everybody = [*matrix.mutants, *matrix.equivalents, *matrix.variants] if whole else list(matrix.mutants)
        steps.begin("mutants", len(at_once) + len(rest))
        _meet(trials, at_once, everybody, matrix, steps)
        left = [name for name in matrix.mutants if not matrix.is_caught(name)]
        _meet(trials, rest if left else [], left, matrix, steps)
    return matrix


def _compiled(plan: Plan) -> bool:
    return any(plan.case.endswith(f"/{mode}") and call_mode.compiler for mode, call_mode in CALL_MODES.items())


@contextmanager
def _trials(count: int, operators: Sequence[str]) -> Iterator[tuple[list[Child], dict[str, Any]]]:
    """Processes that try mutants of these operators, and what they have to try.

    Raises: PluginError where the mutants of an operator cannot be loaded.
    """
    with ExitStack() as stack:
        trials, zoo = [], {}
        for _ in range(count):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attnbench-")))
            environment = {"OMP_NUM_THREADS": "1"}
            trial = stack.enter_context(
                Child("attnbench.workers.mutation_worker", log=folder / "log", environment=environment)
            )
            trials.append(trial)
            zoo = trial.ask({"do": "start", "folder": str(folder), "operators": list(operators)})
            if "fault" in zoo:
                raise PluginError(zoo["fault"])
        yield trials, zoo


def _meet(
    trials: Sequence[Child], plans: Sequence[Plan], names: Sequence[str], matrix: Matrix, steps: Progress
) -> None:
    """Try these implementations on every case; a process takes the next case as soon as it is done with one."""
    free: SimpleQueue[Child] = SimpleQueue()
    for trial in trials:
        free.put(trial)

    def meet(plan: Plan) -> tuple[str, dict[str, list[str]]]:
        trial = free.get()
        left = [name for name in names if matrix.whole or not matrix.is_caught(name)]
        try:
            return plan.case, trial.ask({"do": "fail", "case": plan.case, "checks": plan.checks, "names": left})
        finally:
            free.put(trial)

    with ThreadPoolExecutor(max_workers=len(trials)) as pool:
        waiting = [pool.submit(meet, plan) for plan in plans]
        try:
            for done in as_completed(waiting):
                case, failed = done.result()
                for name, checks in failed.items():
                    matrix.failed[name] |= {(check, case) for check in checks}
                steps.now(case)
                steps.done(case)
        except BaseException:
            for later in waiting:
                later.cancel()
            for trial in trials:
                trial.kill()
            raise
