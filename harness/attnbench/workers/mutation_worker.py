"""The mutation worker: a process that runs the checks of a case on all mutants, and computes the oracle only once.

Mutants are trusted code. They therefore run in the same process as the oracle.
"""

import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import torch

from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.catalogue import load_check_function, sort_checks
from attnbench.checks.observations import serialize
from attnbench.interface import Implementation
from attnbench.mutants.mutant import load_mutant_set
from attnbench.oracle.inputs import load_inputs
from attnbench.oracle.tensor_file import copy_value
from attnbench.plugins.registry import PluginError, load_operator, load_problem_types
from attnbench.processes.mutation_requests import FindFailingChecks, MutantNames, StartMutation
from attnbench.processes.oracle_requests import DrawInputs
from attnbench.processes.request import Fault, Handler
from attnbench.processes.rpc import serve
from attnbench.records.types import FAILURES
from attnbench.workers.empty_batches import judge_empty_batch
from attnbench.workers.oracle_worker import OracleWorker

__all__ = ["MutationWorker"]


class MutationWorker:
    """Finds out which checks fail on which mutants; inputs and expected values are stored in ``folder``."""

    def __init__(self, folder: Path, operators: Sequence[str]) -> None:
        self._oracle_worker = OracleWorker(folder)
        self._problems = load_problem_types()
        self._load_operator = cache(load_operator)
        self._settings = global_state.read_settings()
        self._mutant_sets = [load_mutant_set(load_operator(name)) for name in operators]
        self._implementations = {one.name: one for mutants in self._mutant_sets for one in mutants.implementations()}

    def list_mutants(self) -> MutantNames:
        """Return the names of all mutants, equivalent mutants and correct variants.

        Each mutant comes with the check that must fail on it. The operator of every name is also returned.
        """
        return MutantNames(
            mutants={mutant.name: mutant.caught_by for each in self._mutant_sets for mutant in each.mutants},
            equivalents=[equivalent.name for each in self._mutant_sets for equivalent in each.equivalents],
            variants=[variant.name for each in self._mutant_sets for variant in each.variants],
            operators={name: one.operator for name, one in self._implementations.items()},
        )

    def find_failing_checks(self, request: FindFailingChecks) -> dict[str, list[str]]:
        """Find the checks that fail on a case, for each mutant in ``request.names``.

        Mutants that refuse the case, and mutants of other operators, are left out.
        """
        case = Case.parse(request.case, self._problems)
        inputs = self._oracle_worker.draw_inputs(DrawInputs(case=request.case))
        found = {}
        for name in request.names:
            one = self._implementations[name]
            if one.operator == case.operator and one.unsupported(case) is None:
                found[name] = self._find_failing(one, case, inputs, request.checks)
        return found

    def _find_failing(self, one: Implementation, case: Case, inputs: str, checks: list[str]) -> list[str]:
        """Find the checks of a case that fail on one implementation."""
        failed, observations = set(), {}
        candidate: Candidate | None = None

        def build() -> Candidate:
            nonlocal candidate
            if candidate is None:
                candidate = Candidate(one, self._load_operator(case.operator), case, load_inputs(inputs, case.device))
            return candidate

        def run_check(check: str) -> None:
            observations[check] = copy_value(serialize(list(load_check_function(check)(build()))))

        for check in sort_checks(checks):
            global_state.restore_settings(self._settings)
            outcome = judge_empty_batch(one.policies, case, lambda: build().run(), partial(run_check, check))
            # A mutant may raise anything; the check then counts as failed.
            if outcome is not None and outcome.status in FAILURES:
                failed.add(check)
        global_state.restore_settings(self._settings)
        found = self._oracle_worker.evaluate_observations(case.id, observations, one.policies)
        failed |= {check for check, finding in found.items() if finding.status in FAILURES}
        return [check for check in checks if check in failed]


def main() -> None:
    """Answer the requests on the socket whose file descriptor is the first command-line argument.

    The first request names the folder for inputs and expected values.
    """

    def start(request: StartMutation) -> MutantNames | Fault:
        # One thread per process, because by default one mutation worker runs on each core.
        torch.set_num_threads(1)
        try:
            worker = MutationWorker(Path(request.folder), request.operators)
        except PluginError as error:
            return Fault(reason=str(error))
        handlers.append(FindFailingChecks.answered_by(worker.find_failing_checks))
        return worker.list_mutants()

    handlers: list[Handler] = [StartMutation.answered_by(start)]
    serve(handlers, int(sys.argv[1]))


if __name__ == "__main__":
    main()
