"""What several test modules share: checks that run and are judged in this process."""

from pathlib import Path

import pytest
import torch

from attnbench.cases import Case
from attnbench.checks.catalogue import checks
from attnbench.checks.claims import stored
from attnbench.checks.functions import check_function
from attnbench.inputs import loaded
from attnbench.interface import Implementation, Refusal
from attnbench.judge import Judge
from attnbench.records import Finding
from attnbench.registry import load_operator
from attnbench.subject import Malformed, Subject


class Conformance:
    """Findings of checks, without worker processes: an implementation here is one of ours."""

    def __init__(self, folder: Path) -> None:
        self._judge = Judge(folder)

    def subject(self, implementation: Implementation, case: Case) -> Subject:
        """Implementation on fresh inputs of a case."""
        path = self._judge.inputs(case=case.id)
        return Subject(implementation, load_operator(case.operator), case, loaded(path, case.device))

    def applicable(self, case: Case) -> list[str]:
        """Names of the checks that apply to a case."""
        return list(self._judge.describe(cases=[case.id])[0]["checks"])

    def finding(self, implementation: Implementation, case: Case, check: str) -> Finding:
        """What a check says of an implementation on a case."""
        assert check in checks()
        try:
            claims = list(check_function(check)(self.subject(implementation, case)))
        except Malformed as malformed:
            return Finding(check=check, status="failed", reason=f"{malformed}.")
        except Refusal as refusal:
            return Finding(check=check, status="unsupported", reason=str(refusal))
        return self._judge.findings(case.id, {check: stored(claims)}, implementation.policies)[check]


@pytest.fixture(scope="session")
def conformance(tmp_path_factory: pytest.TempPathFactory) -> Conformance:
    """Checks that run and are judged here; what the oracle said of a case is kept for the session."""
    return Conformance(tmp_path_factory.mktemp("conformance"))


@pytest.fixture(scope="session")
def drawn_cases() -> list[Case]:
    """Cases of the suite ``quick`` that need no sentence encoder."""
    return [case for case in load_operator("multihead").suite("quick") if case.problem.encoder_layer is None]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """One thread: tensors are tiny here, and on a busy machine several threads mostly wait for one another."""
    torch.set_num_threads(1)
