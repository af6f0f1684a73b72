"""The process that tries the checks on mutants: all of them on one case, the oracle computed once.

What runs here is our own, so that judge and implementations need no processes of their own.
"""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.catalogue import check_function, in_turn
from attnbench.checks.observations import stored
from attnbench.interface import Implementation, Refusal
from attnbench.mutants.mutant import mutant_set
from attnbench.oracle.inputs import loaded
from attnbench.oracle.tensor_file import copied
from attnbench.plugins.registry import PluginError, load_operator, problems
from attnbench.processes.rpc import serve
from attnbench.records.types import FAILURES
from attnbench.workers.oracle_worker import OracleWorker

__all__ = ["MutationWorker"]


class MutationWorker:
    """Answers which checks fail on which mutants; ``folder`` is for inputs and truths."""

    def __init__(self, folder: Path, operators: Sequence[str]) -> None:
        self._judge = OracleWorker(folder)
        self._problems = problems()
        self._operator = cache(load_operator)
        self._settings = global_state.noted()
        self._zoos = [mutant_set(load_operator(name)) for name in operators]
        self._implementations = {one.name: one for zoo in self._zoos for one in zoo.implementations()}

    def zoo(self) -> dict[str, Any]:
        """Mutants with the checks that they name, changes that nothing can see, and correct variants."""
        return {
            "mutants": {mutant.name: mutant.caught_by for zoo in self._zoos for mutant in zoo.mutants},
            "equivalents": [equivalent.name for zoo in self._zoos for equivalent in zoo.equivalents],
            "variants": [variant.name for zoo in self._zoos for variant in zoo.variants],
            "operators": {name: one.operator for name, one in self._implementations.items()},
        }

    def fail(self, *, case: str, checks: list[str], names: list[str]) -> dict[str, list[str]]:
        """Checks that fail on a case, by the name of the implementation; what is refused fails nothing.

        Nobody meets cases of another operator.
        """
        parsed = Case.parse(case, self._problems)
        inputs = self._judge.inputs(case=case)
        found = {}
        for name in names:
            one = self._implementations[name]
            if one.operator == parsed.operator and one.unsupported(parsed) is None:
                found[name] = self._failing(one, parsed, inputs, checks)
        return found

    def _failing(self, one: Implementation, case: Case, inputs: str, checks: list[str]) -> list[str]:
        """Checks that fail on an implementation."""
        failed, observations = set(), {}
        candidate: Candidate | None = None
        for check in in_turn(checks):
            global_state.put_back(self._settings)
            try:
                if candidate is None:
                    candidate = Candidate(one, self._operator(case.operator), case, loaded(inputs, case.device))
                observations[check] = copied(stored(list(check_function(check)(candidate))))
            except Refusal:
                continue
            except Exception:  # noqa: BLE001  # a mutant may raise anything, and has failed then
                failed.add(check)
        global_state.put_back(self._settings)
        found = self._judge.findings(case.id, observations, one.policies, explain=False)
        failed |= {check for check, finding in found.items() if finding.status in FAILURES}
        return [check for check in checks if check in failed]


def main() -> None:
    """Serve on the descriptor given as first argument, with the folder given by the first request."""

    def start(*, folder: str, operators: list[str]) -> dict[str, Any]:
        # As many processes as cores work side by side.
        torch.set_num_threads(1)
        try:
            trial = MutationWorker(Path(folder), operators)
        except PluginError as error:
            return {"fault": str(error)}
        handlers.update({"zoo": trial.zoo, "fail": trial.fail})
        return trial.zoo()

    handlers: dict[str, Any] = {"start": start}
    serve(handlers, int(sys.argv[1]))


if __name__ == "__main__":
    main()
