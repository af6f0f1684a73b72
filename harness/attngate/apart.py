"""A gate whose sides do not share an environment: each is measured at a moment of its own, beside its reference.

Times of two moments are never compared directly, and have no interleaved verdict: their ratios to the reference are
compared, by the rule for stored runs.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec

from attnbench.analysis.run_diff import Change, compare_findings, compare_moments, explain_untimed, index_results
from attnbench.api.revisions import Version, describe_version, find_top, open_worktree, store_working_tree
from attnbench.plugins.registry import display_name, locate
from attnbench.records.run_file import StoredRun, read_run
from attnbench.records.types import Result
from attngate import side as side_program
from attngate.conformance import Pair
from attngate.environments import Environment, build_environment, find_interpreter, run_in
from attngate.errors import GateError
from attngate.gating import WORKING_TREE, Gated
from attngate.outcome import Rule, SideFact, conclude, find_lost, refine
from attngate.paired_results import Results, has_passed, is_unfit, pair_results
from attngate.planning import GateJob, make_conform_job
from attngate.side import SideAnswer, SideTask, make_task
from attngate.texts import name_title

__all__ = ["Side", "build_sides", "choose_sides", "gate_apart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side: its environment, its version, and the implementations by the names that the environment loads."""

    environment: Environment
    version: Version
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What a side measured, and its stored run."""

    side: Side
    answer: SideAnswer
    stored: StoredRun
    results: Results


def choose_sides(pairs: Sequence[Pair], version: Version, python: str) -> tuple[Side, Side]:
    """Return the base in another interpreter, and the new side in the present one.

    Raises: GateError where the interpreter cannot measure.
    """
    here = Path.cwd()
    other = Environment(python=find_interpreter(python, "--base-python"), folder=here)
    new = describe_version(Path(pairs[0].new.partition(" @ ")[2]), WORKING_TREE)
    return (
        Side(environment=other, version=version, names=tuple(_spell_out(pair.base) for pair in pairs)),
        Side(
            environment=Environment(python=sys.executable, folder=here), version=new,
            names=tuple(_spell_out(pair.new) for pair in pairs),
        ),
    )  # fmt: skip


def _spell_out(name: str) -> str:
    """Return a name without the registry, which another interpreter may lack."""
    place, attribute, tree = locate(name)
    return f"{place}:{attribute}" + (f" @ {tree}" if tree else "")


@contextmanager
def build_sides(names: Sequence[str], base: tuple[Path, Version], command: str) -> Iterator[tuple[Side, Side]]:
    """Yield both sides, each built by a command in a worktree; the worktrees and environments are removed at the end.

    The worktree of the new side has the files of the checkout, also those that are in no commit.

    Raises: GateError where an implementation is in no worktree, or a side cannot be built.
    """
    top = find_top(Path.cwd())
    if top is None:
        raise GateError("--build: the current folder is in no git repository, of which a worktree could be made")
    with ExitStack() as stack:
        new = describe_version(top, WORKING_TREE)
        places = [base, (stack.enter_context(open_worktree(top, store_working_tree(top))), new)]
        named = [tuple(_find_in(name, top, *place) for name in names) for place in places]
        made = []
        for (folder, version), own in zip(places, named, strict=True):
            click.echo(f"building {version.label}: {command}", err=True)
            environment = build_environment(command, folder, version.label)
            made.append(Side(environment=environment, version=version, names=own))
        yield made[0], made[1]


def _find_in(name: str, top: Path, folder: Path, version: Version) -> str:
    """Return the name by which a process in a worktree loads an implementation of the checkout.

    Raises: GateError where the worktree does not have its file.
    """
    place, attribute, tree = locate(name)
    if tree:
        raise GateError(
            f"--build makes worktrees of its own, and {display_name(name)!r} names one: leave out ' @ FOLDER'"
        )
    if not place.endswith(".py"):
        return f"{place}:{attribute}"
    path, within = Path(place).resolve(), top.resolve()
    if not path.is_relative_to(within) or not (folder / path.relative_to(within)).is_file():
        shown = display_name(name)
        raise GateError(
            f"--base: {version.label} has no {shown.rpartition(':')[0]}, the source of {shown!r}; leave it out, or "
            "name another base"
        )
    return f"{path.relative_to(within)}:{attribute}"


def gate_apart(job: GateJob, names: Sequence[str], sides: tuple[Side, Side], *, rule: Rule, command: str) -> Gated:
    """Measure both sides one after the other, and compare their stored runs; ``names`` are those in the outcome.

    Raises: GateError where a side cannot be measured.
    """
    from attnbench.report.comparison.content import collect_comparison

    before, after = (_measure(job, side, rule, command) for side in sides)
    rule = after.answer.rule
    changes: list[Change] = []
    compared = untimed = 0
    for number, name in enumerate(names):
        common = pair_results(before.results, after.results, (before.answer.names[number], after.answer.names[number]))
        timed = frozenset(before.answer.timed[number]) | frozenset(after.answer.timed[number])
        found, unfit = _compare(before.results, after.results, common, timed, rule)
        compared += len(common)
        changes += [replace(one, implementation=name) for one in found]
        untimed += len(unfit) if "slower" in rule.fail_on else 0
    shown = after.answer.names
    outcome = conclude(
        changes, rule, versions=(before.side.version, after.side.version), implementations=names, compared=compared,
        untimed=untimed,
        unchecked=[name for name, own in zip(names, shown, strict=True) if not has_passed(after.stored.results, own)],
        environments=[_describe_environment(one.stored) for one in (before, after)],
    )  # fmt: skip
    content = collect_comparison(
        changes, *(_select(one, names) for one in (before, after)), title=name_title(outcome), threshold=rule.slower
    )
    content = replace(content, base=outcome.base.label, new=outcome.new.label)
    return Gated(outcome=outcome, content=content, paths=[one.stored.path for one in (before, after)])


def _measure(job: GateJob, side: Side, rule: Rule, command: str) -> _Measured:
    """Measure a side in its environment, and return its run.

    Raises: GateError where it cannot be measured.
    """
    environment = side.environment
    task = make_task(
        job, make_conform_job(job), side.names, rule=rule, command=command, roots=tuple(map(str, environment.roots))
    )
    answer = _ask(environment, task)
    if answer.error:
        told = answer.error
        for name in side.names:
            tree = name.partition(" @ ")[2]
            told = told.replace(f" @ {tree}", "").replace(tree, side.version.label) if tree else told
        raise GateError(f"{side.version.label} cannot be used in its environment: {told}")
    stored = read_run(Path(answer.path))
    return _Measured(side=side, answer=answer, stored=stored, results=index_results(stored))


def _ask(environment: Environment, task: SideTask) -> SideAnswer:
    with tempfile.TemporaryDirectory() as place:
        asked, answer = Path(place) / "task.json", Path(place) / "answer.json"
        asked.write_bytes(msgspec.json.encode(task))
        words = [environment.python, "-P", "-m", side_program.__name__, str(asked), str(answer)]
        code = run_in(words, environment.folder, environment.variables)
        if code or not answer.exists():
            return SideAnswer(error=f"its process ended with exit code {code}; the lines above say why")
        return msgspec.json.decode(answer.read_bytes(), type=SideAnswer)


def _compare(
    before: Results, after: Results, common: Mapping[str, tuple[Result, Result]], timed: frozenset[str], rule: Rule
) -> tuple[list[Change], frozenset[str]]:
    """Return what changed on the common cases of an implementation, and the cases of which no times are expected.

    ``before`` and ``after`` also have the results of the references.
    """
    unfit = frozenset(case for case in timed if case not in common or is_unfit(*common[case]))
    found: list[Change] = []
    for case, (old, now) in common.items():
        found += [*compare_findings(old, now), *find_lost(old, now)]
        measured = list(compare_moments(old, now, before, after, threshold=rule.slower, level=rule.level))
        if case in timed and not any(one.aspect == "time" for one in measured):
            measured.append(explain_untimed(old, now))
        found += refine(measured, rule, unfit)
    return found, unfit


def _describe_environment(stored: StoredRun) -> SideFact:
    run = stored.run
    return SideFact(python=run.machine.system.rpartition(" ")[2], torch=run.versions.get("torch", ""), run=run.id)


def _select(measured: _Measured, names: Sequence[str]) -> StoredRun:
    """Return a run with the results of the implementations alone, by their names in the outcome."""
    named = dict(zip(measured.answer.names, names, strict=True))
    run = measured.stored.run
    planned = {named[name]: one for name, one in run.planned.items() if name in named}
    own = replace(
        run, implementations=tuple(names), job=replace(run.job, planned=planned),
        sources={named[name]: one for name, one in run.sources.items() if name in named},
    )  # fmt: skip
    results = [one for one in measured.results.values() if one.implementation in named]
    return replace(
        measured.stored, run=own, completions=(),
        results=tuple(replace(one, implementation=named[one.implementation]) for one in results),
    )  # fmt: skip
