"""What all tests share: Ctrl-C, the order of files, and fixtures such as checks that run in this process."""

import getpass
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.candidate.global_state import read_settings, restore_settings
from attnbench.cases import Case
from attnbench.checks.catalogue import load_check_function, read_checks, sort_checks
from attnbench.checks.evaluation.causes import Causes
from attnbench.checks.observations import Observation, serialize
from attnbench.interface import Implementation, Refusal
from attnbench.oracle.disk_cache import DiskCache, find_folder
from attnbench.oracle.inputs import load_inputs
from attnbench.plugins.registry import load_operator
from attnbench.processes.candidate_requests import Outcome
from attnbench.processes.oracle_requests import DescribeCases, DrawInputs
from attnbench.records.types import Finding
from attnbench.runner import candidate_pool
from attnbench.runner.check_outcomes import make_finding
from attnbench.workers.empty_batches import judge_empty_batch
from attnbench.workers.oracle_worker import OracleWorker
from attnbench.workers.outcomes import run_for_outcome
from installed_plugins import Installer
from shared_fork_servers import SharedForkServers


def pytest_configure() -> None:
    """Let tests interrupt processes that they start: a shell lets what it starts in the background ignore Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that are marked ``long``: a long file that is begun last keeps one worker busy alone."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


class Conformance:
    """Runs checks and evaluates their observations in this process, because the tests trust their implementations."""

    def __init__(self, folder: Path, kept: DiskCache) -> None:
        self._oracle_worker = OracleWorker(folder, kept=kept)
        # Loading an operator reads the metadata of every installed distribution, which takes 13 ms.
        self._load_operator = cache(load_operator)

    def candidate(self, implementation: Implementation, case: Case) -> Candidate:
        """Return the candidate of an implementation on a case, with newly loaded inputs."""
        path = self._oracle_worker.draw_inputs(DrawInputs(case=case.id))
        return Candidate(implementation, self._load_operator(case.operator), case, load_inputs(path, case.device))

    def applicable(self, case: Case) -> list[str]:
        """Return the names of the checks that apply to a case."""
        (described,) = self._oracle_worker.describe_cases(DescribeCases(cases=[case.id]))
        return list(described.checks)

    def findings(
        self, implementation: Implementation, case: Case, checks: Collection[str] | None = None
    ) -> list[Finding]:
        """Run checks of an implementation on a case, by default all that apply, and return their findings.

        As in a candidate worker, the checks share one candidate.
        """
        build = cache(lambda: self.candidate(implementation, case))
        chosen = self.applicable(case) if checks is None else checks
        return [self._find(implementation, case, check, build) for check in sort_checks(chosen)]

    def finding(self, implementation: Implementation, case: Case, check: str) -> Finding:
        """Run one check of an implementation on a case, and return its finding."""
        return self._find(implementation, case, check, lambda: self.candidate(implementation, case))

    def _find(self, implementation: Implementation, case: Case, check: str, build: Callable[[], Candidate]) -> Finding:
        assert check in read_checks()
        observations: list[Observation] = []
        settings = read_settings()

        def run_check() -> None:
            observations.extend(load_check_function(check)(build()))

        if case.problem.sequences or implementation.policies.empty_batches == "computed":
            try:
                run_check()
            except (Malformed, Refusal) as error:
                return make_finding(check, run_for_outcome(partial(_raise, error)))
        else:
            outcome = judge_empty_batch(implementation.policies, case, lambda: build().run(), run_check)
            assert outcome is not None
            return make_finding(check, outcome)
        # Expected values that are kept for other tests do not depend on what an implementation left behind.
        restore_settings(settings)
        return self._oracle_worker.evaluate_observations(
            case.id, {check: serialize(observations)}, implementation.policies, Causes()
        )[check]


def _raise(error: Exception) -> Outcome:
    raise error


@pytest.fixture(scope="session", autouse=True)
def fresh_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Share one cache of expected values among all tests of a run; its folder is returned.

    It is not the user's cache: a test must not pass because of what an earlier version computed, and the cases of tests
    are of no use to the user.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNBENCH_CACHE", str(shared / "attnbench-cache"))
        folder = find_folder()
        assert folder is not None
        yield folder


@pytest.fixture(scope="session", autouse=True)
def same_environment() -> Iterator[None]:
    """Set variables before the first test that would otherwise change within a run.

    Processes with different variables cannot share a fork server. When torch first compiles, it sets the folder of its
    compiler's cache; this fixture sets the same folder. Documented commands need the programs of the virtual
    environment and a terminal of 80 columns.
    """
    compiled = Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(compiled)))
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        patch.setenv("COLUMNS", "80")
        yield


@pytest.fixture(scope="session", autouse=True)
def shared_fork_servers(tmp_path_factory: pytest.TempPathFactory, same_environment: None) -> Iterator[None]:
    """Let the sessions of all tests of this process share their fork servers."""
    shared = SharedForkServers(tmp_path_factory.mktemp("fork-servers"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidate_pool, "ForkServer", shared)
        yield
    shared.end()


@pytest.fixture(scope="session")
def conformance(tmp_path_factory: pytest.TempPathFactory, fresh_cache: Path) -> Conformance:
    """Runner of checks in this process; the expected values of a case are computed once for all tests of a run."""
    return Conformance(tmp_path_factory.mktemp("conformance"), DiskCache(fresh_cache))


@pytest.fixture(scope="session")
def drawn_cases() -> list[Case]:
    """Cases of the suite ``quick`` that need no sentence encoder."""
    return [case for case in load_operator("multihead").suite("quick") if case.problem.encoder_layer is None]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Use one thread, because for the tiny tensors of the tests, several threads mostly wait for one another."""
    torch.set_num_threads(1)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    """Installer whose distributions disappear when the test ends."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    return Installer(tmp_path / "site")
