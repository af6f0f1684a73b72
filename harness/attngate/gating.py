"""The order of work of a gate: conformance of both sides, exact counters and times, and the outcome."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.analysis.run_diff import Change, compare_findings
from attnbench.api.execution import Checks, count_planned, plan_checks, plan_conformance
from attnbench.api.interleaving import collect_sides, load_sides, time_sides
from attnbench.api.recording import record
from attnbench.api.revisions import Version, describe_version
from attnbench.plugins.registry import NoCounterpart, PluginError, display_name, locate, resolve_in_trees
from attnbench.plugins.source_tree import SourceTree, find_source
from attnbench.records.types import Result
from attnbench.runner import Session
from attngate.conformance import Pair, conform_sides, read_kept
from attngate.errors import GateError
from attngate.outcome import Outcome, Rule, conclude, find_lost, refine
from attngate.paired_results import has_passed, is_unfit, pair_results
from attngate.planning import GateJob, make_conform_job, plan_effort, plan_timed
from attngate.texts import name_title

if TYPE_CHECKING:
    # Not imported when a command starts, because it imports pandas, which takes a second.
    from attnbench.report.comparison.content import ComparisonContent

__all__ = ["WORKING_TREE", "Gated", "gate", "make_pairs"]

WORKING_TREE = "the working tree"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """The outcome of a gate, what its changes are in a comparison, and the files of the runs with the measurements."""

    outcome: Outcome
    content: "ComparisonContent"
    paths: Sequence[Path]


def make_pairs(names: Sequence[str], folder: Path, base: Version) -> list[Pair]:
    """Return each implementation with its two sides.

    Raises: GateError where the base or the new side does not have it.
    """
    found = []
    for name in names:
        try:
            of_base, new = resolve_in_trees(name, folder, base.label)
        except NoCounterpart as error:
            raise GateError(f"{error.fault}; leave out {display_name(name)!r}, or name another base") from error
        except PluginError as error:
            raise GateError(str(error)) from error
        if missing := _find_missing_module(name, folder):
            raise GateError(
                f"--base: {base.label} has no {missing}, the module of {display_name(name)!r}; leave it out, or name a "
                "base that has it"
            )
        found.append(Pair(name=display_name(name), base=of_base, new=new))
    return found


def _find_missing_module(name: str, folder: Path) -> str | None:
    """Return the module of an implementation if its package is in a folder, and the module itself is not.

    A module that is no file of Python is not missed, because a build may make it.
    """
    place, _, _ = locate(name)
    top, *rest = place.split(".")
    own, other = find_source(top), SourceTree(folder.resolve()).find_counterpart(top)
    if place.endswith(".py") or not rest or own is None or other is None:
        return None
    files = [Path(*rest).with_suffix(".py"), Path(*rest, "__init__.py")]
    has_new, has_base = (any((_get_package(file) / one).is_file() for one in files) for file in (own, other))
    return place if has_new and not has_base else None


def _get_package(file: Path) -> Path:
    return file if file.is_dir() else file.parent


def gate(session: Session, job: GateJob, pairs: Sequence[Pair], *, base: Version, rule: Rule, command: str) -> Gated:
    """Check, count and time both sides of implementations, and record the run.

    Raises: GateError where a base cannot be loaded; PluginError where a new side cannot be loaded.
    """
    operators = sorted({_load(session, pair, base) for pair in pairs})
    checking = make_conform_job(job)
    listed = plan_conformance(session, checking, operators)
    timed = plan_timed(session, job, operators)
    news = {pair.new: describe_version(Path(pair.new.partition(" @ ")[2]), WORKING_TREE) for pair in pairs}
    versions = {pair.base: base for pair in pairs} | news
    kept = {pair.name: read_kept(session, checking, pair.base, base, listed) for pair in pairs}
    sides = [side for pair in pairs for side in pair.sides]
    left = [side for pair in pairs for side in pair.sides[bool(kept[pair.name]) :]]
    checks = {side: plan_checks(session, checking, [side], listed) for side in left}
    own = {
        pair.name: [plan for plan in timed if plan.operator == session.declared[pair.new].operator] for pair in pairs
    }
    effort, rule = plan_effort(job, rule, sum(map(len, own.values())))
    with record(
        session, job=job, suite=checking.suite, cases=[plan.case for plan in (*listed, *timed)], implementations=sides,
        planned=count_planned(session, sides, Checks(plans=listed), timed, effort=effort), command=command,
    ) as recorded:  # fmt: skip
        for pair in pairs:
            for one in kept[pair.name]:
                recorded.add(replace(one, run=recorded.run.id, implementation=pair.shown[0]))
        conform_sides(recorded, session, checking, checks, versions)
        changes: list[Change] = []
        compared = untimed = 0
        for pair in pairs:
            timed_here = own[pair.name]
            measured = time_sides(recorded, session, pair.sides, timed_here, effort) if timed_here else []
            common = pair_results(recorded.results, recorded.results, pair.shown)
            cases = [plan.case for plan in timed_here]
            unfit = frozenset(case for case in cases if case not in common or is_unfit(*common[case]))
            compared += len(common)
            untimed += len(unfit) if "slower" in rule.fail_on else 0
            found = [*_compare_checks(common, frozenset(cases)), *refine(measured, rule, unfit)]
            changes += [replace(one, implementation=pair.name) for one in found]
        outcome = conclude(
            changes, rule, versions=(base, next(iter(news.values()))), implementations=[pair.name for pair in pairs],
            compared=compared, kept=[name for name, results in kept.items() if results], untimed=untimed,
            unchecked=[pair.name for pair in pairs if not has_passed(recorded.results.values(), pair.shown[1])],
        )  # fmt: skip
        recorded.exit_code = outcome.exit_code
    content = collect_sides(
        changes, recorded, {pair.name: pair.shown for pair in pairs}, names=(outcome.base.label, outcome.new.label),
        title=name_title(outcome),
    )  # fmt: skip
    return Gated(outcome=outcome, content=content, paths=[recorded.file.path])


def _load(session: Session, pair: Pair, base: Version) -> str:
    """Load both sides, each alone and then both in one process, and return their operator."""
    session.workers.get([pair.new]).close()
    try:
        session.workers.get([pair.base]).close()
        return load_sides(session, pair.sides)
    except PluginError as error:
        folder = pair.base.partition(" @ ")[2]
        told = str(error).replace(f" @ {folder}", "").replace(folder, base.label)
        raise GateError(
            f"--base: {base.label} cannot be used: {told}; name another base, or give each side an environment of its "
            "own: say how it is built (--build COMMAND, with the command true where nothing is), or name the "
            "interpreter of the base (--base-python PYTHON)"
        ) from error


def _compare_checks(common: Mapping[str, tuple[Result, Result]], timed: frozenset[str]) -> Iterator[Change]:
    """Yield what became wrong, was mended or was lost; of the timed cases, only what was lost is not told elsewhere."""
    for case, (old, now) in common.items():
        if case not in timed:
            yield from compare_findings(old, now)
        yield from find_lost(old, now)
