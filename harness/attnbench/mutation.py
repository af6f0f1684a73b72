"""The process that tries the checks on mutants: all of them on one case, the oracle computed once.

What runs here is our own, so that judge and implementations need no processes of their own.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from attnbench import torchstate
from attnbench.cases import Case
from attnbench.checks.catalogue import in_turn
from attnbench.checks.claims import stored
from attnbench.checks.functions import check_function
from attnbench.child import serve
from attnbench.inputs import loaded
from attnbench.interface import Implementation, Refusal
from attnbench.judge import Judge
from attnbench.mutants import ZOOS
from attnbench.records import FAILURES
from attnbench.registry import load_operator, problems
from attnbench.subject import Subject
from attnbench.tensorfile import copied

__all__ = ["Trial"]


class Trial:
    """Answers which checks fail on which mutants; ``folder`` is for inputs and truths."""

    def __init__(self, folder: Path) -> None:
        self._judge = Judge(folder)
        self._problems = problems()
        self._operator = cache(load_operator)
        self._settings = torchstate.noted()
        self._implementations = {one.name: one for zoo in ZOOS.values() for one in zoo.implementations()}

    def zoo(self) -> dict[str, Any]:
        """Mutants with the checks that they name, changes that nothing can see, and correct variants."""
        return {
            "mutants": {mutant.name: mutant.caught_by for zoo in ZOOS.values() for mutant in zoo.mutants},
            "equivalents": [equivalent.name for zoo in ZOOS.values() for equivalent in zoo.equivalents],
            "variants": [variant.name for zoo in ZOOS.values() for variant in zoo.variants],
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
        failed, claims = set(), {}
        subject: Subject | None = None
        for check in in_turn(checks):
            torchstate.put_back(self._settings)
            try:
                if subject is None:
                    subject = Subject(one, self._operator(case.operator), case, loaded(inputs, case.device))
                claims[check] = copied(stored(list(check_function(check)(subject))))
            except Refusal:
                continue
            except Exception:  # noqa: BLE001  # a mutant may raise anything, and has failed then
                failed.add(check)
        torchstate.put_back(self._settings)
        found = self._judge.findings(case.id, claims, one.policies, explain=False)
        failed |= {check for check, finding in found.items() if finding.status in FAILURES}
        return [check for check in checks if check in failed]


def main() -> None:
    """Serve on the descriptor given as first argument, with the folder given by the first request."""

    def start(*, folder: str) -> dict[str, Any]:
        # As many processes as cores work side by side.
        torch.set_num_threads(1)
        trial = Trial(Path(folder))
        handlers.update({"zoo": trial.zoo, "fail": trial.fail})
        return trial.zoo()

    handlers: dict[str, Any] = {"start": start}
    serve(handlers, int(sys.argv[1]))


if __name__ == "__main__":
    main()
