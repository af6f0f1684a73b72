"""Joins run files that are parts of one whole into one run file for each place; nothing of the parts is changed.

The parts are read twice, line by line. The first reading finds which part each unit belongs to: if a task was repeated,
its later part has the unit, unless only an earlier one has a failure. A unit is one result of a suite, or all results
of a timed case, whose calls were interleaved. If a unit was run on several nodes of one kind, each node gets a file of
its own, so that the nodes can be compared. The second reading copies the lines. A line is not decoded, unless its first
fields are not where attnbench writes them, so that samples are copied digit for digit. What is held in memory is a
number for each unit, about 100 bytes, and the id of each case of one group.
"""

import hashlib
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import msgspec

from attnbench.cases import digest
from attnbench.records.exit_codes import FAILED, INCONCLUSIVE
from attnbench.records.parts import Group, Part, describe_missing
from attnbench.records.run_file import PARSED, ResultsError, format_line, read_lines
from attnbench.records.types import FAILURES, PERF, Ceiling, Completion, End, Planned, Run

__all__ = ["Joined", "join_parts"]


@dataclass(slots=True, kw_only=True)
class Joined:
    """A run file that was made of parts, and what was seen in them."""

    path: Path
    run: Run
    results: int = 0
    # Number of results that another part has, too.
    repeated: int = 0
    # One message for each part that is not whole, or has a line that cannot be read.
    problems: list[str] = field(default_factory=list)


class _Head(msgspec.Struct):
    """The fields of a line by which it is joined; the others are not decoded."""

    record: str = ""
    # Absent in samples, which are always of a profile.
    suite: str = ""
    case: str = ""
    implementation: str = ""
    completes: bool = False


_HEAD = msgspec.json.Decoder(_Head)
# A finding that failed, in the line of a result; a text cannot contain it, since JSON escapes its quotation marks.
FAILURE = re.compile(rb'"status":"(?:%s)"' % "|".join(sorted(FAILURES)).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owned:
    """A group of parts, and the part that each unit belongs to: the last one with the unit, or with a failure of it."""

    group: Group
    # Number of the part by number of the unit.
    owners: dict[int, int]
    # Numbers of the parts that have a unit of another part.
    repeated: frozenset[int]
    # Hash of the list of cases that have a result, without supplementary cases.
    case_digest: str


def join_parts(groups: Iterable[Group], into: Path, *, missing: bool = False) -> list[Joined]:
    """Write one run file for each group below the folder ``into``; return the files.

    ``missing``: the caller knows that parts are missing; missing shards are found here.

    Raises: ResultsError where a file cannot be written, or exists already.
    """
    parts: list[Part] = []
    owned: list[_Owned] = []
    for group in groups:
        parts += group.parts
        owned += list(_find_owners(group))
    missing = missing or bool(describe_missing(parts))
    runs = [_make_run(own, alone=len(owned) == 1 and not missing) for own in owned]
    made = [Joined(path=_name_file(into, run), run=run) for run in runs]
    sources = {part.path.resolve() for part in parts}
    for one in made:
        if one.path.resolve() in sources:
            raise ResultsError(f"--into {into}: {one.path} is itself merged here; name another folder")
        if one.path.exists():
            raise ResultsError(f"--into {into}: {one.path} is there already; remove it, or name another folder")
    for own, one in zip(owned, made, strict=True):
        _write(own, one, missing=missing)
    return made


def _name_file(into: Path, run: Run) -> Path:
    return into / run.machine.name / f"{run.id}.jsonl"


def _make_run(owned: _Owned, *, alone: bool) -> Run:
    """Return the run of a group; ``alone``: it has all that was run, so that it has the whole list."""
    group = owned.group
    first = group.parts[0].run
    ids = [part.run.id for part in group.parts]
    stamp = re.sub(r"[^0-9]", "", first.time)[:14].ljust(14, "0")
    mark = hashlib.sha256("\n".join([*ids, str(group.place), group.node]).encode()).hexdigest()[:8]
    list_digest = group.parts[0].list_digest
    whole = alone or owned.case_digest == list_digest
    return replace(
        first,
        id=f"{stamp[:8]}-{stamp[8:]}-{mark}",
        command=_drop_shard(first.command),
        suite_digest=list_digest if whole else "",
        list_digest="" if whole else list_digest,
        sources={name: digest for part in group.parts for name, digest in part.run.sources.items()},
        commits={name: commit for part in group.parts for name, commit in part.run.commits.items()},
        job=replace(first.job, planned=_count_planned(owned)),
        parts=tuple(ids),
        node=group.node,
    )


def _drop_shard(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    kept = [
        word
        for word, before in zip(words, ["", *words], strict=False)
        if not word.startswith("--shard=") and "--shard" not in (word, before)
    ]
    return shlex.join(kept)


def _count_planned(owned: _Owned) -> dict[str, Planned]:
    """Return what was planned in all parts together; a unit of several parts is counted once."""
    cases: Counter[str] = Counter()
    timed: Counter[str] = Counter()
    processes: Counter[str] = Counter()
    for part in owned.group.parts:
        for name, own in part.run.planned.items():
            cases[name] += own.cases
            timed[name] += own.timed
            processes[name] = max(processes[name], own.processes)
    for number in owned.repeated:
        for suite, name, _ in _list_dropped(owned, number):
            (timed if suite == PERF else cases)[name] -= 1
    return {
        name: Planned(cases=max(0, cases[name]), timed=max(0, timed[name]), processes=processes[name]) for name in cases
    }


def _list_dropped(owned: _Owned, number: int) -> set[tuple[str, str, int]]:
    """Return suite, implementation and unit of each result of this part whose unit belongs to another part."""
    heads = (_read_head(line) for _, line in read_lines(owned.group.parts[number].path))
    return {
        (head.suite, head.implementation, unit)
        for head in heads
        if head is not None and head.record == "result" and owned.owners[unit := _hash_unit(head)] != number
    }


def _write(owned: _Owned, made: Joined, *, missing: bool) -> None:
    partial = made.path.with_suffix(".partial")
    try:
        made.path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            stream.write(format_line(made.run))
            _Joining(owned.group, made, owned.owners, stream).join(missing=missing)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(made.path)
    except OSError as error:
        raise ResultsError(
            f"--into: cannot write {made.path}: {error.strerror}; name another folder with --into FOLDER"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _hash_unit(head: _Head) -> int:
    """Return a number of 64 bits for the unit of a result or of samples; it takes less memory than the text."""
    suite = PERF if head.record == "samples" else head.suite
    unit = suite, head.case, "" if suite == PERF else head.implementation
    return int.from_bytes(hashlib.blake2b("\n".join(unit).encode(), digest_size=8).digest())


def _find_owners(group: Group) -> Iterator[_Owned]:
    """Yield the group, or a group for each node if a unit was run on several, with the owners of their units."""
    owners: dict[int, int] = {}
    # The units whose owner has a failure of them.
    failed: set[int] = set()
    repeated: set[int] = set()
    cases: set[str] = set()
    for number, part in enumerate(group.parts):
        for _, line in read_lines(part.path):
            head = _read_head(line)
            if head is None or head.record != "result":
                continue
            if not head.completes:
                cases.add(head.case)
            unit = _hash_unit(head)
            before = owners.setdefault(unit, number)
            if group.parts[before].run.node != part.run.node:
                for own in group.split_by_node():
                    yield from _find_owners(own)
                return
            fails = FAILURE.search(line) is not None
            if before != number:
                hides = unit in failed and not fails
                repeated.add(number if hides else before)
                owners[unit] = before if hides else number
            if fails:
                failed.add(unit)
    yield _Owned(group=group, owners=owners, repeated=frozenset(repeated), case_digest=digest(cases))


def _read_head(line: bytes) -> _Head | None:
    try:
        return _HEAD.decode(line)
    # A line may nest objects deeper than the decoder follows: RecursionError.
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


class _Joining:
    """The copying of the lines of the parts of one group."""

    def __init__(self, group: Group, made: Joined, owners: dict[int, int], stream: IO[bytes]) -> None:
        self._group = group
        self._made = made
        self._owners = owners
        self._stream = stream
        self._ceilings: dict[tuple[str, str, int], Ceiling] = {}
        self._completions: dict[str, Completion] = {}
        self._ends: list[End | None] = []

    def join(self, *, missing: bool) -> None:
        """Copy all parts, then what is known of them together; the end only if every part ended, and none is missing.

        A run file without an end is known to be incomplete.
        """
        for number, part in enumerate(self._group.parts):
            self._copy(number, part)
        for ceiling in self._ceilings.values():
            self._stream.write(format_line(replace(ceiling, run=self._made.run.id)))
        for completion in self._completions.values():
            self._stream.write(format_line(replace(completion, run=self._made.run.id)))
        ended = [end for end in self._ends if end is not None and end.outcome == "finished"]
        if len(ended) == len(self._ends) and not self._made.problems and not missing:
            codes = [end.exit_code for end in ended]
            code = next((code for code in (FAILED, INCONCLUSIVE) if code in codes), max(codes))
            time = max(end.time for end in ended)
            self._stream.write(format_line(End(run=self._made.run.id, time=time, outcome="finished", exit_code=code)))

    def _copy(self, number: int, part: Part) -> None:
        """Copy the results and samples of a part, and keep its other records."""
        end: End | None = None
        unreadable: list[int] = []
        for place, line in read_lines(part.path):
            head = _read_head(line)
            if head is None or not (head.record in PARSED or (head.record == "run" and place == 1)):
                unreadable.append(place)
                end = None
            elif head.record in ("result", "samples"):
                end = None
                results = int(head.record == "result")
                if self._owners.get(_hash_unit(head), number) != number:
                    self._made.repeated += results
                elif (text := self._rename(line, head.record, part.run.id)) is not None:
                    self._stream.write(text)
                    self._made.results += results
                else:
                    unreadable.append(place)
            elif head.record != "run":
                end = self._keep(line, head.record, unreadable, place)
        self._ends.append(end)
        self._made.problems += _describe_faults(part, unreadable, end)

    def _rename(self, line: bytes, kind: str, run: str) -> bytes | None:
        """Return the line of a result or of samples with the id of the new run; None where it cannot be read."""
        start, new = (f'{{"record":"{kind}","run":"{own}",'.encode() for own in (run, self._made.run.id))
        if line.startswith(start):
            return new + line[len(start) :].rstrip() + b"\n"
        try:
            return format_line(replace(PARSED[kind](line), run=self._made.run.id))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def _keep(self, line: bytes, kind: str, unreadable: list[int], place: int) -> End | None:
        """Keep a record that is not a result; return it if it is an end."""
        try:
            record = PARSED[kind](line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            unreadable.append(place)
            return None
        if isinstance(record, End):
            return record
        if isinstance(record, Ceiling):
            key = record.device, record.dtype, record.threads
            self._ceilings[key] = _join_ceilings(self._ceilings.get(key, record), record)
        elif isinstance(record, Completion):
            self._completions[record.implementation] = record
        elif kind == "resumption":
            # What was lost before the resumption was made again after it.
            unreadable.clear()
        return None


def _join_ceilings(one: Ceiling, other: Ceiling) -> Ceiling:
    """Return the highest rates of two ceilings of one machine: a ceiling is the highest rate that was measured."""
    return replace(
        one,
        flop_per_s=max(one.flop_per_s, other.flop_per_s),
        bytes_per_s=max(one.bytes_per_s, other.bytes_per_s),
    )


def _describe_faults(part: Part, unreadable: list[int], end: End | None) -> Iterator[str]:
    if unreadable:
        lines = f"line {unreadable[0]}" if len(unreadable) == 1 else f"{len(unreadable)} lines from {unreadable[0]} on"
        yield f"{part.path}: {lines} cannot be read and left out"
    if end is None:
        yield f"{part.path}: the run was cut, and has no end"
    elif end.outcome != "finished":
        yield f"{part.path}: the run {'was interrupted' if end.outcome == 'interrupted' else 'ended with an error'}"
