"""pytest plug-in: one test for each check on each case, requested by ``--attention`` or ``parametrize_conformance``.

With pytest-benchmark, ``attention_benchmark`` measures a call.

Every pytest run in an environment with attnbench loads this module. Until a test uses the plug-in, this module imports
nothing but pytest and the names of the suites.
"""

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, TypeVar

import pytest

from attnbench.cases import LEVELS

if TYPE_CHECKING:
    from attnbench.api import Expected
    from attnbench.api.worker_pool import WorkerPool
    from attnbench.jobs.job import ConformJob
    from attnbench.records.types import Finding
    from attnbench.runner import Expectation, Plan

__all__ = ["ConformanceCase", "attention_benchmark", "parametrize_conformance"]

MARKER = "attnbench"
ARGUMENT = "conformance_case"
# First part of the node ids of the tests that --attention adds.
NODE = "attention"

# Name of pytest-benchmark's plug-in.
BENCHMARK = "benchmark"

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceCase:
    """One check of one implementation on one case."""

    # Name by which the implementation is loaded, as in the command that reproduces a failure.
    implementation: str
    case: str
    # Name of the check.
    name: str
    # Test id ``implementation-check-case``. Characters that pytest's -k does not accept are replaced, for example = by
    # a colon.
    id: str
    _plan: "Plan" = field(repr=False)
    _pool: "WorkerPool" = field(repr=False)
    _expectations: tuple["Expectation", ...] = field(repr=False)

    def finding(self) -> "Finding":
        """Run the check in the implementation's own process, and return the check's finding."""
        from attnbench.plugins.registry import display_name
        from attnbench.runner.expected_failures import apply_expectations

        found = self._pool.get_finding(self.implementation, self._plan, self.name)
        return apply_expectations(found, self._expectations, display_name(self.implementation), self.case)

    def check(self) -> None:
        """Run the check; pass, fail, skip or xfail the test according to its finding."""
        __tracebackhide__ = True
        from attnbench.api import format_finding
        from attnbench.records.types import FAILURES, SILENT
        from attnbench.words.findings import describe_finding

        finding = self.finding()
        expected = finding.status == "expected_failure"
        if expected:
            pytest.xfail(describe_finding(finding))  # with --runxfail, this call returns and the test fails below
        if finding.status in SILENT:
            pytest.skip(describe_finding(finding))
        if expected or finding.status in FAILURES:
            pytest.fail(format_finding(self.implementation, self.case, finding), pytrace=False)


def parametrize_conformance(
    implementations: Sequence[object],
    *,
    suite: str = "core",
    cases: Sequence[str] = (),
    checks: Sequence[str] = (),
    expected_failures: "Expected" = (),
) -> Callable[[F], F]:
    """Parametrize the argument ``conformance_case`` of a test by each check of these implementations on each case.

    The arguments mean the same as the arguments of ``attnbench.conform``.

    >>> @parametrize_conformance([MyAttention])
    ... def test_attention(conformance_case):
    ...     conformance_case.check()
    """
    request = _Request(
        implementations=(implementations,) if isinstance(implementations, str) else tuple(implementations),
        suite=suite,
        cases=(cases,) if isinstance(cases, str) else tuple(cases),
        checks=(checks,) if isinstance(checks, str) else tuple(checks),
        expected_failures=expected_failures,
    )

    def mark(function: F) -> F:
        marked: F = getattr(pytest.mark, MARKER)(request=request)(function)
        return marked

    return mark


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """Tests requested by ``parametrize_conformance`` or by options; implementation names are resolved at collection."""

    implementations: tuple[object, ...]
    suite: str
    cases: tuple[str, ...]
    checks: tuple[str, ...]
    expected_failures: "Expected"

    def make_job(self) -> "ConformJob":
        from attnbench.api.selection import choose_checks
        from attnbench.jobs.job import ConformJob, build

        choose_checks(self.checks)
        return build(ConformJob, {"suite": self.suite, "cases": self.cases, "checks": self.checks})


POOL = pytest.StashKey["WorkerPool"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options; most of them select among the tests that --attention adds."""
    group = parser.getgroup("attention", "conformance of attention implementations (attnbench)")
    group.addoption(
        "--attention",
        action="append",
        default=[],
        metavar="NAME",
        help="Add one test for each check and case of this implementation: a registered name, "
        "package.module:attribute or path/to/file.py:attribute; may be repeated.",
    )
    group.addoption("--attention-suite", choices=LEVELS, default="core", help="Suite of cases to run (default: core).")
    group.addoption(
        "--attention-case",
        action="append",
        default=[],
        metavar="PATTERN",
        help="Run only the cases that match this shell-style pattern, such as '*bfloat16*'; may be repeated.",
    )
    group.addoption(
        "--attention-check",
        action="append",
        default=[],
        metavar="CHECK",
        help="Run only this check; may be repeated.",
    )
    group.addoption(
        "--attention-expected-failures",
        action="append",
        default=[],
        metavar="FILE",
        help="TOML file of known deviations; expected_failures.toml beside an implementation is always read.",
    )
    # The two options --attention-timeout and --attention-threads also apply to the tests of parametrize_conformance.
    group.addoption(
        "--attention-timeout",
        type=_parse_seconds,
        default=120.0,
        metavar="S",
        help="Time limit of one check on one case, in seconds (default: 120).",
    )
    group.addoption(
        "--attention-threads",
        type=_parse_count,
        default=1,
        metavar="N",
        help="Threads of each implementation's process (default: 1).",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of conformance tests; report invalid command-line options in one line."""
    config.addinivalue_line("markers", f"{MARKER}: a conformance check of an attention implementation")
    if config.pluginmanager.hasplugin(BENCHMARK):
        from attnbench.pytest_plugin import benchmark

        config.pluginmanager.register(benchmark, f"{MARKER}-{BENCHMARK}")
    if config.option.attention:
        with _usage_errors(pytest.UsageError):
            _read_options(config).make_job()
            _resolve_names(_read_options(config))


@pytest.fixture
def attention_benchmark() -> None:
    """Measure a call of an implementation beside the reference; where pytest-benchmark is missing, say so."""
    pytest.fail("attention_benchmark needs pytest-benchmark: pip install pytest-benchmark", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Add the tests that --attention requests to the tests that the session collects."""
    report = yield
    if isinstance(collector, pytest.Session) and collector.config.option.attention and report.passed:
        report.result = [*report.result, _AttentionCollector.from_parent(collector, name=NODE, nodeid=NODE)]
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test function that ``parametrize_conformance`` marked."""
    requests = [mark.kwargs["request"] for mark in metafunc.definition.iter_markers(MARKER) if "request" in mark.kwargs]
    if not requests:
        return
    if ARGUMENT not in metafunc.fixturenames:
        raise pytest.Collector.CollectError(
            f"{metafunc.function.__name__} is parametrized by parametrize_conformance: "
            f"it must take the argument {ARGUMENT}"
        )
    with _usage_errors(pytest.Collector.CollectError):
        found = [case for one in reversed(requests) for case in _list_conformance_cases(metafunc.config, one)]
    metafunc.parametrize(ARGUMENT, [pytest.param(case, id=case.id) for case in found])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Announce the tests of this run to the worker pool, so that the pool runs all checks of a case together."""
    if POOL in session.config.stash:
        for item in session.items:
            case = item.case if isinstance(item, _ConformanceItem) else _get_parameter(item)
            if case is not None:
                session.config.stash[POOL].request(case.implementation, case.case, case.name)


class _AttentionCollector(pytest.Collector):
    """Collects the tests that --attention adds."""

    def collect(self) -> Iterator[pytest.Item]:
        with _usage_errors(self.CollectError):
            found = _list_conformance_cases(self.config, _read_options(self.config))
        for case in found:
            # Put the id in brackets, like a parameter. Outside brackets, pytest takes a dot as the end of a name.
            yield _ConformanceItem.from_parent(self, name=f"conformance[{case.id}]", case=case)


class _ConformanceItem(pytest.Item):
    """The test of one check on one case."""

    def __init__(self, *, case: ConformanceCase, **node: object) -> None:
        super().__init__(**node)  # type: ignore[arg-type]
        self.case = case
        self.add_marker(MARKER)

    def runtest(self) -> None:
        self.case.check()

    def reportinfo(self) -> tuple[str, int | None, str]:
        return str(self.config.rootpath / NODE), None, self.name


def _get_parameter(item: pytest.Item) -> ConformanceCase | None:
    """Return the argument that ``parametrize_conformance`` passes to a test function; None for other tests."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    found = parameters.get(ARGUMENT)
    return found if isinstance(found, ConformanceCase) else None


def _read_options(config: pytest.Config) -> _Request:
    """Return the tests that the command-line options request."""
    option = config.option
    return _Request(
        implementations=tuple(option.attention),
        suite=option.attention_suite,
        cases=tuple(option.attention_case),
        checks=tuple(option.attention_check),
        expected_failures=tuple(option.attention_expected_failures),
    )


def _resolve_names(request: _Request) -> list[str]:
    """Return the names of the implementations; raise ValueError if two of them would give the same test ids."""
    from attnbench.plugins.importable import find_name
    from attnbench.plugins.registry import display_name

    by_shown: dict[str, str] = {}
    for name in map(find_name, request.implementations):
        shown = display_name(name)
        if by_shown.setdefault(shown, name) != name:
            raise ValueError(
                f"{by_shown[shown]} and {name} would both be shown as {shown}; leave out one, or rename its file"
            )
    return list(by_shown.values())


def _list_conformance_cases(config: pytest.Config, request: _Request) -> list[ConformanceCase]:
    """Return the tests: for each implementation and each of its cases, one test per check."""
    from attnbench.plugins.registry import display_name

    job, names = request.make_job(), _resolve_names(request)
    pool = _get_pool(config)
    plans = pool.make_plans(job)
    expectations = tuple(pool.collect_expectations(names, request.expected_failures, plans))
    return [
        ConformanceCase(
            implementation=name,
            case=plan.case,
            name=check,
            id=_make_id(f"{display_name(name)}-{check}-{plan.case}"),
            _plan=plan,
            _pool=pool,
            _expectations=expectations,
        )
        for name in names
        for plan in plans
        if pool.is_applicable(name, plan)
        for check in plan.checks
    ]


def _get_pool(config: pytest.Config) -> "WorkerPool":
    """Return the worker pool of this pytest process; the pool is closed when the session ends."""
    if POOL not in config.stash:
        from attnbench.api import WorkerPool
        from attnbench.runner import Limits

        option = config.option
        config.stash[POOL] = WorkerPool(Limits(timeout_s=option.attention_timeout, threads=option.attention_threads))
        config.add_cleanup(config.stash[POOL].close)
    return config.stash[POOL]


def _make_id(text: str) -> str:
    """Return a test id: ``text``, with the characters replaced that pytest's -k, file systems or XML may not accept."""
    return re.sub(r"[^\w:+\-./]", "_", text.replace("=", ":"))


def _parse_seconds(text: str) -> float:
    if not 0 < float(text) < inf:
        raise ValueError(text)
    return float(text)


def _parse_count(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


@contextmanager
def _usage_errors(kind: type[Exception]) -> Iterator[None]:
    """Turn errors that the user can correct into an exception of type ``kind`` with a one-line message."""
    from attnbench.plugins.registry import PluginError
    from attnbench.processes.errors import ChildDied
    from attnbench.runner import ExpectationError
    from attnbench.words.findings import describe_fact

    try:
        yield
    except (PluginError, ExpectationError, ValueError) as error:
        raise kind(f"attnbench: {' '.join(str(error).split())}") from None
    except ChildDied as error:
        raise kind(f"attnbench: the oracle worker's process ended: {describe_fact(error.fact)}") from None
