"""From options to what will be run: implementations and planned cases."""

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import click

from attnbench.cases import shard as part
from attnbench.checks.catalogue import checks as catalogue
from attnbench.plugins.registry import PluginError, known, load_operator, names, operators, shown
from attnbench.runner import Plan, Session

__all__ = ["chosen_checks", "chosen_implementations", "loadable", "operators_of", "planned", "taking_part"]


def chosen_implementations(asked: Sequence[str]) -> list[str]:
    """Names that were asked for, each known to lead somewhere, or all that are registered.

    Raises: PluginError.
    """
    stored: dict[str, str] = {}
    for name in dict.fromkeys(asked):
        known(name)
        other = stored.setdefault(shown(name), name)
        if other != name:
            raise click.UsageError(
                f"{other!r} and {name!r} would both be stored as {shown(name)!r}: "
                "start from a folder that holds both, or name one file otherwise"
            )
    return list(stored.values()) or names()


def taking_part(
    session: Session,
    implementations: Sequence[str],
    *,
    asked: bool,
    operators: Collection[str],
    compiling: bool = True,
) -> list[str]:
    """Implementations that are timed: those that were asked for by name, or those that compute one of the operators.

    Without ``compiling`` those whose calls compile are in it by name only.

    Raises: PluginError where one that was asked for cannot be loaded.
    """
    chosen = loadable(session, implementations, asked=asked)
    if not asked:
        chosen = [name for name in chosen if session.declared[name]["operator"] in operators]
        slow = [name for name in chosen if session.declared[name]["compiles"] and not compiling]
        if slow:
            click.echo(f"left out: {', '.join(slow)}: compiling takes minutes; by name it takes part", err=True)
        chosen = [name for name in chosen if name not in slow]
    return _with_baselines(session, chosen)


def _with_baselines(session: Session, implementations: Sequence[str]) -> list[str]:
    """These implementations, which are loaded, after the reference of each operator that they compute.

    Against it speed is told; one that cannot be loaded is left out.
    """
    baselines = dict.fromkeys(load_operator(name).baseline for name in operators_of(session, implementations))
    further = [name for name in baselines if name and name not in implementations]
    lost = set(further) - set(loadable(session, further, asked=False) if further else ())
    return list(dict.fromkeys([name for name in (*baselines, *implementations) if name and name not in lost]))


def operators_of(session: Session, implementations: Sequence[str]) -> list[str]:
    """Operators that these implementations, which are loaded, compute; in the order of their names."""
    computed = {session.declared[name]["operator"] for name in implementations}
    return [name for name in operators() if name in computed]


def loadable(session: Session, implementations: Sequence[str], *, asked: bool) -> list[str]:
    """Implementations that can be loaded; one that was asked for by name must be.

    Raises: PluginError.
    """
    try:
        # One process that loads them all and does nothing else is enough where nothing is broken.
        session.supervise_together(list(implementations)).close()
    except PluginError:
        return [name for name in implementations if _loads(session, name, asked=asked)]
    return list(implementations)


def _loads(session: Session, name: str, *, asked: bool) -> bool:
    try:
        session.supervise(name).close()
    except PluginError as error:
        if asked:
            raise
        click.echo(f"left out: {error}", err=True)
        return False
    return True


def chosen_checks(asked: Sequence[str]) -> frozenset[str] | None:
    """Checks that were asked for by name or pattern, or None for all."""
    chosen: set[str] = set()
    for name in asked:
        found = [check for check in catalogue() if fnmatchcase(check, name)]
        if not found:
            near = get_close_matches(name, catalogue(), n=3)
            meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise click.UsageError(f"--check: unknown check {name!r}; {meant}available: {', '.join(catalogue())}")
        chosen.update(found)
    return frozenset(chosen) or None


def planned(
    session: Session,
    cases: Iterable[str],
    *,
    patterns: Sequence[str] = (),
    checks: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    device: str = "cpu",
    shard: tuple[int, int] | None = None,
) -> list[Plan]:
    """Cases as they will be run, in the dtypes and on the device that were asked for."""
    kept = _matching(session, list(cases), patterns)
    rewritten = list(dict.fromkeys(_with(case, dtype, device) for case in kept for dtype in dtypes or (None,)))
    chosen = part(rewritten, *shard) if shard else rewritten
    plans = session.plan(chosen, chosen_checks(checks))
    if not plans:
        raise click.UsageError(
            "nothing to run: no check that was asked for applies to the cases that were (--case, --check, --shard)"
        )
    lacking = {plan.missing for plan in plans}
    if None not in lacking and all("/cuda/" in plan.case for plan in plans):
        raise click.UsageError(f"{'--suite' if device == 'cpu' else '--device'}: {lacking.pop()}")
    return plans


def _matching(session: Session, cases: list[str], patterns: Sequence[str]) -> list[str]:
    if not patterns:
        return cases
    kept: list[str] = []
    for pattern in patterns:
        found = [case for case in cases if fnmatchcase(case, pattern)]
        if not found and not set("*?[") & set(pattern):
            # A whole id need not be in the suite.
            fault = session.judge("parse", case=pattern).get("fault")
            if fault:
                raise click.UsageError(f"--case: {fault}; for a part of ids write '*{pattern}*'")
            found = [pattern]
        if not found:
            raise click.UsageError(f"--case: {pattern!r} matches none of {len(cases)} cases of the suite (--suite)")
        kept += found
    return list(dict.fromkeys(kept))


def _with(case: str, dtype: str | None, device: str) -> str:
    """Case id with another dtype and device; both are among its last parts, whatever the operator."""
    head, own_dtype, own_device, mode = case.rsplit("/", 3)
    return f"{head}/{dtype or own_dtype}/{own_device if device == 'cpu' else device}/{mode}"
