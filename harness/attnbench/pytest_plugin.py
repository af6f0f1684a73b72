"""pytest plug-in: one test for each check of each case, by ``--attention NAME`` or ``parametrize_conformance``.

It is loaded with every pytest of an environment in which attnbench is installed. Until it is used it imports nothing
but pytest and the names of the suites.
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
    from attnbench.api import Expected, Selection
    from attnbench.api.worker_pool import WorkerPool
    from attnbench.records.types import Finding
    from attnbench.runner import Expectation, Plan

__all__ = ["ConformanceCase", "parametrize_conformance"]

MARKER = "attnbench"
ARGUMENT = "conformance_case"
# First part of the ids of the tests that --attention adds.
NODE = "attention"

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceCase:
    """One check of one case of one implementation."""

    # As it is loaded and reproduced.
    implementation: str
    case: str
    # Name of the check.
    name: str
    # ``implementation-check-case``, of characters that -k takes: = is written as a colon.
    id: str
    _plan: "Plan" = field(repr=False)
    _bench: "WorkerPool" = field(repr=False)
    _expectations: tuple["Expectation", ...] = field(repr=False)

    def finding(self) -> "Finding":
        """What the check says, from the implementation's own process."""
        from attnbench.plugins.registry import shown
        from attnbench.runner.expected_failures import applied

        found = self._bench.finding(self.implementation, self._plan, self.name)
        return applied(found, self._expectations, shown(self.implementation), self.case)

    def check(self) -> None:
        """Pass, fail, skip or fail as expected, by what the check says."""
        __tracebackhide__ = True
        from attnbench.api import told
        from attnbench.records.types import FAILURES

        finding = self.finding()
        expected = finding.status == "expected_failure"
        if expected:
            pytest.xfail(finding.reason)  # comes back under --runxfail, where it is a failure like any other
        if finding.status in ("unsupported", "not_run"):
            pytest.skip(finding.reason)
        if expected or finding.status in FAILURES:
            pytest.fail(told(self.implementation, self.case, finding), pytrace=False)


def parametrize_conformance(
    implementations: Sequence[object],
    *,
    suite: str = "core",
    cases: Sequence[str] = (),
    checks: Sequence[str] = (),
    expected_failures: "Expected" = (),
) -> Callable[[F], F]:
    """Run a test function once for each check and case of these implementations, as its ``conformance_case``.

    The arguments are those of ``attnbench.conform``.

    >>> @parametrize_conformance([MyAttention])
    ... def test_attention(conformance_case):
    ...     conformance_case.check()
    """
    wanted = _Wanted(
        implementations=(implementations,) if isinstance(implementations, str) else tuple(implementations),
        suite=suite,
        cases=(cases,) if isinstance(cases, str) else tuple(cases),
        checks=(checks,) if isinstance(checks, str) else tuple(checks),
        expected_failures=expected_failures,
    )

    def mark(function: F) -> F:
        marked: F = getattr(pytest.mark, MARKER)(wanted=wanted)(function)
        return marked

    return mark


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What a decorator or the command line asks for; nothing is looked up before tests are collected."""

    implementations: tuple[object, ...]
    suite: str
    cases: tuple[str, ...]
    checks: tuple[str, ...]
    expected_failures: "Expected"

    def selection(self) -> "Selection":
        from attnbench.api import Selection

        return Selection(suite=self.suite, cases=self.cases, checks=self.checks)


BENCH = pytest.StashKey["WorkerPool"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options; those but the first speak of the tests that it adds."""
    group = parser.getgroup("attention", "conformance of attention implementations (attnbench)")
    group.addoption(
        "--attention",
        action="append",
        default=[],
        metavar="NAME",
        help="Add one test for each check and case of this implementation: a registered name, "
        "package.module:attribute or path/to/file.py:attribute; may be repeated.",
    )
    group.addoption("--attention-suite", choices=LEVELS, default="core", help="Cases to run (core).")
    group.addoption(
        "--attention-case", action="append", default=[], metavar="PATTERN", help="Keep cases such as '*bfloat16*'."
    )
    group.addoption("--attention-check", action="append", default=[], metavar="CHECK", help="Keep these checks.")
    group.addoption(
        "--attention-expected-failures",
        action="append",
        default=[],
        metavar="FILE",
        help="TOML file of known deviations; expected_failures.toml beside an implementation is always read.",
    )
    # Not "attention" alone, for these two hold for parametrize_conformance as well.
    group.addoption(
        "--attention-timeout", type=_seconds, default=120.0, metavar="S", help="Time of one check on one case (120)."
    )
    group.addoption(
        "--attention-threads", type=_count, default=1, metavar="N", help="Threads of each implementation's process (1)."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; refuse, in one line, what the options cannot mean."""
    config.addinivalue_line("markers", f"{MARKER}: a conformance check of an attention implementation")
    if config.option.attention:
        with _usage(pytest.UsageError):
            _asked(config).selection()
            _names(_asked(config))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Add the tests that --attention asks for to what the session collects."""
    report = yield
    if isinstance(collector, pytest.Session) and collector.config.option.attention and report.passed:
        report.result = [*report.result, _Attention.from_parent(collector, name=NODE, nodeid=NODE)]
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test function that ``parametrize_conformance`` marked."""
    wanted = [mark.kwargs["wanted"] for mark in metafunc.definition.iter_markers(MARKER) if "wanted" in mark.kwargs]
    if not wanted:
        return
    if ARGUMENT not in metafunc.fixturenames:
        raise pytest.Collector.CollectError(
            f"{metafunc.function.__name__} is parametrized by parametrize_conformance: it has to take {ARGUMENT}"
        )
    with _usage(pytest.Collector.CollectError):
        found = [case for one in reversed(wanted) for case in _conformance_cases(metafunc.config, one)]
    metafunc.parametrize(ARGUMENT, [pytest.param(case, id=case.id) for case in found])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Say which tests are left to run, so that the checks of a case are made in one go."""
    if BENCH in session.config.stash:
        for item in session.items:
            case = item.case if isinstance(item, _ConformanceItem) else _parameter(item)
            if case is not None:
                session.config.stash[BENCH].ask_for(case.implementation, case.case, case.name)


class _Attention(pytest.Collector):
    """Collects the tests that --attention asks for."""

    def collect(self) -> Iterator[pytest.Item]:
        with _usage(self.CollectError):
            found = _conformance_cases(self.config, _asked(self.config))
        for case in found:
            # In brackets as a parameter: pytest reads dots before them as the separators of classes.
            yield _ConformanceItem.from_parent(self, name=f"conformance[{case.id}]", case=case)


class _ConformanceItem(pytest.Item):
    """One check of one case."""

    def __init__(self, *, case: ConformanceCase, **node: object) -> None:
        super().__init__(**node)  # type: ignore[arg-type]
        self.case = case
        self.add_marker(MARKER)

    def runtest(self) -> None:
        self.case.check()

    def reportinfo(self) -> tuple[str, int | None, str]:
        return str(self.config.rootpath / NODE), None, self.name


def _parameter(item: pytest.Item) -> ConformanceCase | None:
    """What ``parametrize_conformance`` hands to a test function."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    found = parameters.get(ARGUMENT)
    return found if isinstance(found, ConformanceCase) else None


def _asked(config: pytest.Config) -> _Wanted:
    """What the command line asks for."""
    option = config.option
    return _Wanted(
        implementations=tuple(option.attention),
        suite=option.attention_suite,
        cases=tuple(option.attention_case),
        checks=tuple(option.attention_check),
        expected_failures=tuple(option.attention_expected_failures),
    )


def _names(wanted: _Wanted) -> list[str]:
    """Names of what is asked for, no two of which would give tests of one id."""
    from attnbench.plugins.importable import name_of
    from attnbench.plugins.registry import shown

    by_shown: dict[str, str] = {}
    for name in map(name_of, wanted.implementations):
        if by_shown.setdefault(shown(name), name) != name:
            raise ValueError(f"{by_shown[shown(name)]} and {name} would both be shown as {shown(name)}")
    return list(by_shown.values())


def _conformance_cases(config: pytest.Config, wanted: _Wanted) -> list[ConformanceCase]:
    """Every check of every case, the checks of a case one after another."""
    from attnbench.plugins.registry import shown

    selection, names = wanted.selection(), _names(wanted)
    bench = _bench(config)
    plans = bench.plans(selection)
    expectations = tuple(bench.expectations(names, wanted.expected_failures, plans))
    return [
        ConformanceCase(
            implementation=name,
            case=plan.case,
            name=check,
            id=_id(f"{shown(name)}-{check}-{plan.case}"),
            _plan=plan,
            _bench=bench,
            _expectations=expectations,
        )
        for name in names
        for plan in plans
        if bench.meets(name, plan)
        for check in plan.checks
    ]


def _bench(config: pytest.Config) -> "WorkerPool":
    """What runs the checks of this process, ended with the session."""
    if BENCH not in config.stash:
        from attnbench.runner import Limits

        option = config.option
        config.stash[BENCH] = WorkerPool(Limits(timeout_s=option.attention_timeout, threads=option.attention_threads))
        config.add_cleanup(config.stash[BENCH].close)
    return config.stash[BENCH]


def _id(text: str) -> str:
    """Text of characters that -k takes, and that are the same on every file system and in XML."""
    return re.sub(r"[^\w:+\-./]", "_", text.replace("=", ":"))


def _seconds(text: str) -> float:
    if not 0 < float(text) < inf:
        raise ValueError(text)
    return float(text)


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


@contextmanager
def _usage(kind: type[Exception]) -> Iterator[None]:
    """Turn what the user can mend into one line."""
    from attnbench.plugins.registry import PluginError
    from attnbench.processes.rpc import ChildDied
    from attnbench.runner import ExpectationError

    try:
        yield
    except (PluginError, ExpectationError, ValueError) as error:
        raise kind(f"attnbench: {' '.join(str(error).split())}") from None
    except ChildDied as error:
        raise kind(f"attnbench: the judge's process ended: {error}") from None
