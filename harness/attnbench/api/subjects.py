"""Implementations, checks and planned cases that the options of a command select."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

import click

from attnbench.api.usage import UsageError
from attnbench.cases import CaseId
from attnbench.cases import shard as part
from attnbench.checks.catalogue import read_checks
from attnbench.devices import HOST, get_device
from attnbench.plugins.registry import PluginError, check_name, display_name, list_names, list_operators, load_operator
from attnbench.processes.oracle_requests import CheckCase
from attnbench.refusals import LacksDevice
from attnbench.runner import Plan, Session

__all__ = [
    "choose_checks",
    "choose_implementations",
    "choose_timed_implementations",
    "drop_unloadable",
    "find_operators",
    "plan_cases",
]


def choose_implementations(asked: Sequence[str]) -> list[str]:
    """Return the given implementation names without repeats, or all registered names if none is given.

    Raises: PluginError for an unknown name; UsageError where two names would be stored as the same name.
    """
    stored: dict[str, str] = {}
    for name in dict.fromkeys(asked):
        check_name(name)
        other = stored.setdefault(display_name(name), name)
        if other != name:
            raise UsageError(
                f"{other!r} and {name!r} would both be stored as {display_name(name)!r}: "
                "run from a folder that contains both files, or rename one file"
            )
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
            click.echo(
                f"left out: {', '.join(slow)}: compiling takes minutes; to include an implementation, name it", err=True
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
    """Return the implementations that can be loaded; report all others to standard error.

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
        click.echo(f"left out: {error}", err=True)
        return False
    return True


def choose_checks(asked: Sequence[str]) -> frozenset[str] | None:
    """Return the names of the checks that match the given names or patterns.

    If no name or pattern is given, return None, which means all checks.

    Raises: UsageError where a name or pattern matches no check.
    """
    chosen: set[str] = set()
    for name in asked:
        found = [check for check in read_checks() if fnmatchcase(check, name)]
        if not found:
            near = get_close_matches(name, read_checks(), n=3)
            meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise UsageError(f"--check: unknown check {name!r}; {meant}available: {', '.join(read_checks())}")
        chosen.update(found)
    return frozenset(chosen) or None


def plan_cases(
    session: Session,
    cases: Iterable[str],
    *,
    patterns: Sequence[str] = (),
    checks: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    device: str = HOST,
    shard: tuple[int, int] | None = None,
    here: bool = True,
) -> list[Plan]:
    """Return the plans of the cases that match the patterns, in the given dtypes and on the given device.

    Raises: UsageError where nothing is left to run, where the device cannot be loaded, or where all cases need a device
    that is missing although they will run ``here``.
    """
    try:
        get_device(device)
    except ValueError as error:
        raise UsageError(f"--device: {error}") from None
    kept = _filter_cases(session, list(cases), patterns)
    rewritten = list(
        dict.fromkeys(_replace_dtype_and_device(case, dtype, device) for case in kept for dtype in dtypes or (None,))
    )
    chosen = part(rewritten, *shard) if shard else rewritten
    if shard:
        session.whole_lists += rewritten
    plans = session.plan(chosen, choose_checks(checks))
    if not plans:
        raise UsageError(
            "nothing to run: none of the selected checks applies to the selected cases (--case, --check, --shard)"
        )
    lacking = {plan.missing.device for plan in plans if isinstance(plan.missing, LacksDevice)}
    if here and all(isinstance(plan.missing, LacksDevice) for plan in plans):
        option, name = "--suite" if device == HOST else "--device", min(lacking)
        raise UsageError(
            f"{option}: no {get_device(name).noun} here: leave out --device {name} and --suite gpu, or run on a "
            "machine with one"
        )
    return plans


def _filter_cases(session: Session, cases: list[str], patterns: Sequence[str]) -> list[str]:
    if not patterns:
        return cases
    kept: list[str] = []
    for pattern in patterns:
        found = [case for case in cases if fnmatchcase(case, pattern)]
        if not found and not set("*?[") & set(pattern):
            # A pattern without wildcards is a complete case id. This case need not be in the suite,
            # but the id must be valid.
            fault = session.ask_oracle(CheckCase(case=pattern))
            if fault:
                raise UsageError(f"--case: {fault.reason}; to match a part of case ids, write '*{pattern}*'")
            found = [pattern]
        if not found:
            raise UsageError(f"--case: {pattern!r} matches none of {len(cases)} cases of the suite (--suite)")
        kept += found
    return list(dict.fromkeys(kept))


def _replace_dtype_and_device(case: str, dtype: str | None, device: str) -> str:
    """Return the case id with this dtype and device.

    If ``dtype`` is None, the case keeps its own dtype. If ``device`` is ``HOST``, the default of --device, the case
    keeps its own device.
    """
    own = CaseId.parse(case)
    return str(replace(own, dtype=dtype or own.dtype, device=own.device if device == HOST else device))
