"""Implementations, checks and cases that a job selects, and the failures that the user expects."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from attnbench.cases import CaseId, shard
from attnbench.checks.catalogue import read_checks
from attnbench.devices import HOST, get_device
from attnbench.jobs.errors import JobError
from attnbench.jobs.job import ConformJob, RecordedJob, require_listed
from attnbench.plugins.file_objects import read_name
from attnbench.plugins.registry import PluginError, display_name, list_names, list_operators, load_operator
from attnbench.processes.oracle_requests import CheckCase, ListSuite
from attnbench.refusals import LacksDevice
from attnbench.runner import (
    Expectation,
    Plan,
    Session,
    audit,
    read_expectations,
    read_expectations_beside,
)

__all__ = [
    "Expected",
    "choose_checks",
    "choose_implementations",
    "choose_timed_implementations",
    "collect_expectations",
    "drop_unloadable",
    "find_operators",
    "list_suite",
    "plan_cases",
]

# Expected failures: one or more files, or a mapping. A key of the mapping is a pattern of check names, or a pair
# (pattern of check names, pattern of case ids). A value of the mapping is a pair (reason, link).
Expected = str | Path | Sequence[str | Path] | Mapping[str | tuple[str, str], tuple[str, str]]
LOGGER = logging.getLogger(__name__)


def choose_implementations(asked: Sequence[str]) -> list[str]:
    """Return the given implementation names without repeats, or all registered names if none is given.

    Raises: PluginError for an unknown name; JobError where two names would be stored as the same name.
    """
    stored: dict[str, str] = {}
    for name in dict.fromkeys(map(read_name, asked)):
        other = stored.setdefault(display_name(name), name)
        if other != name:
            raise JobError(
                None, "{other!r} and {name!r} would both be stored as {stored!r}: run from a folder that contains both "
                "files, or rename one file", other=other, name=name, stored=display_name(name),
            )  # fmt: skip
    return list(stored.values()) or list_names()


def choose_timed_implementations(
    session: Session,
    implementations: Sequence[str],
    *,
    asked: bool,
    operators: Collection[str],
    compiling: bool = True,
    keeps: bool = False,
) -> list[str]:
    """Return the implementations to time; the baselines of their operators come first.

    If the user named the implementations (``asked``), all of them are kept. Otherwise, implementations of operators
    that are not in ``operators`` are left out; with ``compiling=False``, implementations that compile code in their
    first call are left out too. With ``keeps``, workers that have loaded the implementations are kept, which
    ``list_timeable`` asks and ends.

    Raises: PluginError if the user named an implementation that cannot be loaded.
    """
    chosen = drop_unloadable(session, implementations, asked=asked, keeps=keeps)
    if not asked:
        chosen = [name for name in chosen if session.declared[name].operator in operators]
        slow = [name for name in chosen if session.declared[name].compiles and not compiling]
        if slow:
            LOGGER.warning(
                "left out: %s: compiling takes minutes; to include an implementation, name it", ", ".join(slow)
            )
        chosen = [name for name in chosen if name not in slow]
    return _add_baselines(session, chosen, keeps=keeps)


def _add_baselines(session: Session, implementations: Sequence[str], *, keeps: bool) -> list[str]:
    """Return these loaded implementations, with the baselines of their operators placed first.

    The baseline of an operator is the implementation that speed is measured against. A baseline
    that cannot be loaded is left out.
    """
    baselines = dict.fromkeys(load_operator(name).baseline for name in find_operators(session, implementations))
    further = [name for name in baselines if name and name not in implementations]
    loaded = drop_unloadable(session, further, asked=False, keeps=keeps) if further else ()
    lost = set(further) - set(loaded)
    return list(dict.fromkeys([name for name in (*baselines, *implementations) if name and name not in lost]))


def find_operators(session: Session, implementations: Sequence[str]) -> list[str]:
    """Return the operators that these loaded implementations compute, sorted by name."""
    computed = {session.declared[name].operator for name in implementations}
    return [name for name in list_operators() if name in computed]


def drop_unloadable(session: Session, implementations: Sequence[str], *, asked: bool, keeps: bool = False) -> list[str]:
    """Return the implementations that can be loaded; log why the others cannot.

    With ``keeps``, the worker that has loaded all implementations is kept in the session's pool.

    Raises: PluginError where the user named the implementations (``asked``) and one of these
    implementations cannot be loaded.
    """
    try:
        # First load all implementations in one process. Only if this fails, load each
        # implementation in a separate process.
        worker = session.workers.get(implementations)
    except PluginError:
        return [name for name in implementations if _can_load(session, name, asked=asked)]
    if keeps:
        session.workers.keep(worker)
    else:
        worker.close()
    return list(implementations)


def _can_load(session: Session, name: str, *, asked: bool) -> bool:
    try:
        session.workers.get([name]).close()
    except PluginError as error:
        if asked:
            raise
        LOGGER.warning("left out: %s", error)
        return False
    return True


def choose_checks(asked: Sequence[str]) -> frozenset[str] | None:
    """Return the names of the checks that match the given names or patterns.

    If no name or pattern is given, return None, which means all checks.

    Raises: JobError where a name or pattern matches no check.
    """
    chosen: set[str] = set()
    for name in asked:
        found = [check for check in read_checks() if fnmatchcase(check, name)]
        if not found:
            near = get_close_matches(name, read_checks(), n=3)
            meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise JobError(
                "checks", "unknown check {name!r}; {meant}available: {known}", name=name, meant=meant,
                known=", ".join(read_checks()),
            )  # fmt: skip
        chosen.update(found)
    return frozenset(chosen) or None


def list_suite(session: Session, job: ConformJob, operators: Sequence[str]) -> list[str]:
    """Return the ids of all cases of the suite of a job, for these operators.

    Raises: JobError for the suite fuzz, whose cases are generated.
    """
    level = require_listed(job.suite)
    return [case for operator in operators for case in session.ask_oracle(ListSuite(operator=operator, level=level))]


def plan_cases(
    session: Session, listed: Sequence[str], job: RecordedJob, *, checks: Sequence[str] = (), here: bool = True
) -> list[Plan]:
    """Return the plans of the listed cases that a job selects, in its dtypes and on its device.

    Raises: JobError where nothing is left to run, where the device cannot be loaded, or where all cases need a device
    that is missing although they will run ``here``.
    """
    try:
        get_device(job.device)
    except ValueError as error:
        raise JobError("device", "{fault}", fault=str(error)) from None
    kept = list(dict.fromkeys(case for pattern in job.cases for case in _match_cases(session, listed, pattern)))
    moved = [
        _replace_dtype_and_device(case, dtype, job.device)
        for case in (kept if job.cases else listed)
        for dtype in job.dtype or (None,)
    ]
    chosen = list(dict.fromkeys(moved))
    if job.shard:
        session.whole_lists += chosen
        chosen = list(shard(chosen, *job.shard))
    plans = session.plan(chosen, choose_checks(checks))
    if not plans:
        raise JobError(
            None, "nothing to run: none of the selected checks applies to the selected cases ({cases}, {checks}, "
            "{shard})",
        )  # fmt: skip
    lacking = {plan.missing.device for plan in plans if isinstance(plan.missing, LacksDevice)}
    if here and all(isinstance(plan.missing, LacksDevice) for plan in plans):
        name = min(lacking)
        raise JobError(
            "suite" if job.device == HOST else "device",
            "no {noun} here: leave out {device} {name} and {suite} gpu, or run on a machine with one",
            noun=get_device(name).noun, name=name,
        )  # fmt: skip
    return plans


def _match_cases(session: Session, listed: Sequence[str], pattern: str) -> list[str]:
    found = [case for case in listed if fnmatchcase(case, pattern)]
    if found:
        return found
    if set("*?[") & set(pattern):
        raise JobError(
            "cases", "{pattern!r} matches none of {count} cases of the suite ({suite})", pattern=pattern,
            count=len(listed),
        )  # fmt: skip
    # A pattern without wildcards is a complete case id. This case need not be in the suite, but the id must be valid.
    if fault := session.ask_oracle(CheckCase(case=pattern)):
        raise JobError(
            "cases", "{fault}; to match a part of case ids, write '*{pattern}*'", fault=fault.reason, pattern=pattern
        )
    return [pattern]


def _replace_dtype_and_device(case: str, dtype: str | None, device: str) -> str:
    """Return the case id with this dtype and device.

    If ``dtype`` is None, the case keeps its own dtype. If ``device`` is ``HOST``, the default, the case keeps
    its own device.
    """
    own = CaseId.parse(case)
    return str(replace(own, dtype=dtype or own.dtype, device=own.device if device == HOST else device))


def collect_expectations(
    session: Session, implementations: Sequence[str], expected: Expected, plans: Sequence[Plan]
) -> list[Expectation]:
    """Return the expected failures in ``expected`` and in the files beside the implementations.

    Such a file is named ``expected_failures.toml`` and is in the folder of the implementation's
    module.

    Raises: ExpectationError if an entry for an implementation of the run can match no finding, or a file cannot be
    read; ValueError if ``expected`` is a mapping with an invalid key or value.
    """
    if isinstance(expected, Mapping):
        entries = expected.items()
        own = [_make_expectation(display_name(name), *entry) for name in implementations for entry in entries]
    else:
        files = [expected] if isinstance(expected, str | Path) else expected
        own = [one for file in files for one in read_expectations(Path(file))]
    found = [*own, *read_expectations_beside(implementations)]
    if found:
        audit(session, found, implementations, [plan.case for plan in plans])
    return found


def _make_expectation(implementation: str, key: Any, value: Any) -> Expectation:
    check, case = key if isinstance(key, tuple) and len(key) == 2 else (key, "*")
    parts = value if isinstance(value, tuple | list) else ()
    if len(parts) != 2 or not all(isinstance(part, str) and part for part in (check, case, *parts)):
        raise ValueError(
            "expected_failures must map a pattern of check names, or a pair (pattern of check names, pattern of case "
            f"ids), to a pair (reason, link); every string must be non-empty; got {key!r}: {value!r}"
        )
    return Expectation(implementation=implementation, check=check, case=case, reason=parts[0], link=parts[1])
