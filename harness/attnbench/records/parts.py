"""Run files that are parts of one whole: shards of a list (``--shard I/N``) and tasks of a sweep, and whether they fit.

Only the first line of a file is read here. ``joined_file`` joins the files.
"""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from attnbench.records.run_file import ResultsError, read_first_line
from attnbench.records.types import Machine, Run

__all__ = ["Group", "Part", "PartsOrigin", "Place", "describe_missing", "find_parts", "group_parts"]

# Libraries whose versions must be equal in all parts.
SAME_LIBRARIES = ("attnbench", "torch")
# Most names in a message; the others are counted.
NAMED = 8


@dataclass(frozen=True, slots=True)
class Part:
    """A run file that is a part of a whole."""

    path: Path
    run: Run

    @property
    def list_digest(self) -> str:
        """Hash of the case list of which the run has a part, or which it has whole."""
        return self.run.list_digest or self.run.suite_digest

    @property
    def shard(self) -> tuple[int, int] | None:
        """Which part of how many, from the option --shard of its command; None without the option."""
        for option, value in pairwise([*_split(self.run.command), ""]):
            text = value if option == "--shard" else option.removeprefix("--shard=") if "=" in option else ""
            index, slash, count = text.partition("/")
            if option.startswith("--shard") and slash and index.isdecimal() and count.isdecimal():
                return int(index), int(count)
        return None

    @property
    def place(self) -> "Place":
        """What has to be equal in runs that are joined into one."""
        return Place(machine=self.run.machine, threads=self.run.threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsOrigin:
    """What a plug-in knows of the runs of which run files are parts, such as a sweep."""

    # One line for each whole of which parts are missing.
    missing: Sequence[str] = ()
    # Kind of node on which a run file was written, by the path of the file; other files are left out.
    kinds: Mapping[Path, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where runs can be joined into one: one machine, and one number of threads."""

    machine: Machine
    threads: int


@dataclass(frozen=True, slots=True)
class Group:
    """The parts of one place, in the order in which they began."""

    place: Place
    parts: tuple[Part, ...]

    @property
    def node(self) -> str:
        """The node of all parts; empty if there are several."""
        nodes = {part.run.node for part in self.parts}
        return nodes.pop() if len(nodes) == 1 else ""

    def split_by_node(self) -> "list[Group]":
        """Return the parts of each node."""
        nodes = dict.fromkeys(part.run.node for part in self.parts)
        return [
            Group(place=self.place, parts=tuple(part for part in self.parts if part.run.node == node)) for node in nodes
        ]


def find_parts(inputs: Iterable[Path]) -> Iterator[Part]:
    """Yield the run files among these files, and below these folders.

    Raises: ResultsError where a file is no run file, or a folder has none.
    """
    for given in inputs:
        if not given.is_dir():
            yield _read_part(given)
            continue
        paths = sorted(path for path in given.rglob("*.jsonl") if path.is_file())
        if not paths:
            raise ResultsError(f"no run file (*.jsonl) in {given}: name the folder of the shards or tasks")
        yield from map(_read_part, paths)


def group_parts(parts: Sequence[Part]) -> list[Group]:
    """Return the parts of each place.

    Raises: ResultsError where the parts are not of one list, suite or version, or where one of them is there twice.
    """
    _refuse_same_run(parts)
    first = parts[0]
    for part in parts[1:]:
        _refuse_difference(first, part)
    by_place: defaultdict[Place, list[Part]] = defaultdict(list)
    for part in parts:
        by_place[part.place].append(part)
    groups = [
        Group(place=place, parts=tuple(sorted(own, key=lambda part: (part.run.time, part.run.id))))
        for place, own in by_place.items()
    ]
    for group in groups:
        for part in group.parts[1:]:
            _refuse_other_code(group.parts[0], part)
    _refuse_same_shard(parts)
    return groups


def describe_missing(parts: Sequence[Part]) -> list[str]:
    """Return which shards are missing, in words: of all machines together, or of each machine if one has all."""
    numbered = [(part.run.machine.name, *part.shard) for part in parts if part.shard]
    if not numbered:
        return []
    count = numbered[0][2]
    wanted = set(range(1, count + 1))
    of_machine: defaultdict[str, set[int]] = defaultdict(set)
    for machine, index, _ in numbered:
        of_machine[machine].add(index)
    # Shards that were run on several machines: each machine is meant to have all of them.
    repeats = len({index for _, index, _ in numbered}) < len(numbered)
    if not repeats:
        lacking = sorted(wanted - {index for _, index, _ in numbered})
        return [f"missing: {_name_shards(lacking, count)}"] if lacking else []
    found = []
    for machine, own in of_machine.items():
        if lacking := sorted(wanted - own):
            found.append(f"missing on {machine}: {_name_shards(lacking, count)}")
    return found


def _read_part(path: Path) -> Part:
    return Part(path, read_first_line(path))


def _refuse_same_run(parts: Iterable[Part]) -> None:
    seen: dict[str, Path] = {}
    for part in parts:
        if part.run.id in seen:
            raise ResultsError(
                f"run {part.run.id} is there twice: {seen[part.run.id]} and {part.path}; leave one of them out"
            )
        seen[part.run.id] = part.path


def _refuse_difference(first: Part, part: Part) -> None:
    """Raise a ResultsError where two parts are not of one list, suite or version."""
    one, other = first.run, part.run
    pairs = [
        ("suite", one.suite or "none", other.suite or "none"),
        *(
            (library, one.versions.get(library, "not known"), other.versions.get(library, "not known"))
            for library in SAME_LIBRARIES
        ),
        ("commit", one.commit or "none", other.commit or "none"),
        ("case list", first.list_digest or "not known", part.list_digest or "not known"),
    ]
    if first.shard and part.shard:
        pairs.append(("number of shards", str(first.shard[1]), str(part.shard[1])))
    for what, own, its in pairs:
        if own != its:
            raise ResultsError(
                f"cannot merge results of different {what}: {own} in {first.path}, {its} in {part.path}; merge only "
                "parts of one list that one version of attnbench and torch ran"
            )
    if bool(first.shard) != bool(part.shard):
        whole, shard = (part, first) if first.shard else (first, part)
        raise ResultsError(f"cannot merge {whole.path}, which has no --shard, with {shard.path}, which is a shard")


def _refuse_other_code(first: Part, part: Part) -> None:
    """Raise a ResultsError where two parts of one place are of different implementations, or of different code."""
    if first.run.implementations != part.run.implementations:
        one, other = (", ".join(run.implementations[:NAMED]) or "none" for run in (first.run, part.run))
        raise ResultsError(
            f"cannot merge results of different implementations: {one} in {first.path}, {other} in {part.path}; "
            "report on them together instead: attnbench report RUN RUN"
        )
    for name, digest in first.run.sources.items():
        if part.run.sources.get(name, digest) != digest:
            raise ResultsError(
                f"cannot merge results of different versions of {name}: its source files differ between {first.path} "
                f"and {part.path}; run one of them again"
            )


def _refuse_same_shard(parts: Iterable[Part]) -> None:
    """Raise a ResultsError where a shard is there twice on machines of one name."""
    seen: dict[tuple[str, int, tuple[int, int]], Path] = {}
    for part in parts:
        if part.shard is None:
            continue
        key = part.run.machine.name, part.run.threads, part.shard
        if key in seen:
            index, count = part.shard
            raise ResultsError(
                f"shard {index}/{count} is there twice: {seen[key]} and {part.path}; leave one of them out"
            )
        seen[key] = part.path


def _name_shards(indices: Sequence[int], count: int) -> str:
    named = ", ".join(f"{index}/{count}" for index in indices[:NAMED])
    more = f" and {len(indices) - NAMED} more" if len(indices) > NAMED else ""
    return f"shard{'s' * (len(indices) > 1)} {named}{more}"


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []
