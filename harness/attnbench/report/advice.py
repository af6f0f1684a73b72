"""What to do where the samples decide nothing: the commands that time the open calls again."""

import shlex
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from attnbench.analysis.crossover import Entry
from attnbench.analysis.plain_names import clean_name, format_command
from attnbench.records.run_file import StoredRun
from attnbench.report.forms import spell_length
from attnbench.report.next_step import NextStep, add_report
from attnbench.report.numbers import format_count

__all__ = ["advise"]

# What helps, by the state of the comparison: in words, and the command. In each process, the suites ``core`` and
# ``full`` time more calls than ``quick``.
HELP = {
    "unknown": (
        "time again in more processes, which gives a verdict unless the difference is near 1 %",
        "attnbench profile --suite core --processes 30",
    ),
    "inconclusive": (
        "time again while nothing else runs on the machine, with more calls in each process; a verdict needs "
        "undisturbed calls in most processes; where other work cannot be stopped, calls with fewer threads than cores "
        "(such as --threads 1) are disturbed less, but are answers of their own",
        "attnbench profile --suite full",
    ),
}
# What the suites are, before the first command.
SUITES = "The suite core makes more calls in a process than quick, and full more than core."
# An implementation that was seen to take this many times as long as the fastest is not timed again.
LOSES = 1.5
# Most commands. More than a reader runs; what is left is counted.
MOST_STEPS = 4
# ``TIMING``: commands whose options say what to time. ``KEPT``: those of their options that say what is timed, and how;
# each has a value. ``FLAGS``: their options without a value.
TIMING = ("run", "profile", "compare")
KEPT = (
    "--operator", "--passes", "--device", "--dtype", "--case", "--batch", "--heads", "--head-dim", "--width",
    "--kv-heads", "--mask", "--padding", "--like", "--threads", "--memory-limit", "--work-limit", "--results",
)  # fmt: skip
FLAGS = ("--frontier", "--no-cache", "--no-completion")
# Longest value of an option, in characters; an id of a case has about 150.
LONGEST = 300


class _Place(NamedTuple):
    """Where and how calls were timed that are open for one reason."""

    state: str
    machine: str
    options: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Open:
    """The implementations and lengths of a command; dictionaries keep their order."""

    names: dict[str, None] = field(default_factory=dict)
    lengths: set[tuple[int, int]] = field(default_factory=set)


def advise(entries: Sequence[Entry], runs: Sequence[StoredRun]) -> Iterator[NextStep]:
    """Yield the commands that may decide what the answers leave open; none if every answer is decided."""
    commands = {stored.run.id: stored.run.command for stored in runs}
    found: dict[_Place, _Open] = {}
    losing = _find_losers(entries)
    for entry in entries:
        losers = {name for name, loses in losing[_get_place(entry)].items() if loses}
        for name, state, run in _list_open(entry, losers):
            options = _read_options(commands.get(run, ""))
            if options is None:
                options = ("--device", entry.device, "--dtype", entry.dtype)
            open_ = found.setdefault(_Place(state, entry.machine, options), _Open())
            # The reference is timed anew, so what was faster has a ratio to it only if it is timed again, too.
            others = [one.implementation for one in entry.contenders if one.state == "faster"]
            open_.names |= dict.fromkeys([name, *(other for other in others if other not in losers)])
            open_.lengths.add((entry.keys, entry.queries))
    several = len({stored.run.machine.name for stored in runs}) > 1
    places = sorted(found, key=lambda place: [*HELP].index(place.state))
    left = len(places) - MOST_STEPS
    for number, place in enumerate(places[:MOST_STEPS], start=1):
        help_, command = HELP[place.state]
        on = f"on {clean_name(place.machine)}, " if several else ""
        more = f" (decisions.csv has the calls of {format_count(left, 'further command')})"
        words = f"To decide what is {place.state}, {on}{help_}{more * (left > 0 and number == MOST_STEPS)}:"
        words = f"{SUITES} {words}" if number == 1 else words
        words_of_command = shlex.join(_list_options(place, found[place].lengths))
        again = format_command(f"{command} {words_of_command}", found[place].names)
        yield NextStep(words=words, command=add_report(again, runs))


def _find_losers(entries: Sequence[Entry]) -> dict[tuple[str, ...], dict[str, bool]]:
    """Return who loses clearly at each place and pass, by the longest calls at which a ratio was seen."""
    found: dict[tuple[str, ...], dict[str, bool]] = {}
    for entry in sorted(entries, key=lambda one: max(one.queries, one.keys)):
        others = {one.implementation: one.shown for one in entry.contenders if one.shown is not None}
        others.pop(entry.reference, None)
        least = min([1.0, *others.values()])
        own = found.setdefault(_get_place(entry), {})
        own.update({name: ratio > LOSES * least for name, ratio in others.items()})
    return found


def _get_place(entry: Entry) -> tuple[str, ...]:
    return entry.machine, entry.device, entry.dtype, str(entry.threads), entry.form, entry.mode, entry.pass_


def _list_open(entry: Entry, losers: Set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, state and run of each comparison that an answer leaves open, without those of ``losers``."""
    open_: set[str] = set()
    for answer, contenders in ((entry.answer, entry.contenders), (entry.best, entry.compared)):
        named = {*answer.undecided, *(answer.names if answer.kind in HELP else ())}
        if named == {entry.reference}:
            # Nothing was faster, but some processes were too few to say so.
            named = {one.implementation for one in contenders if one.state == answer.kind}
        open_ |= named
    for one in entry.contenders:
        if one.implementation in open_ - {entry.reference, *losers} and one.state in HELP:
            yield one.implementation, one.state, one.run


def _list_options(place: _Place, lengths: Set[tuple[int, int]]) -> Iterator[str]:
    """Yield the options that say which calls are timed again."""
    if "--case" not in place.options:
        yield "--lengths"
        yield ",".join(spell_length(queries, keys) for keys, queries in sorted(lengths))
    yield from place.options


def _read_options(command: str) -> tuple[str, ...] | None:
    """Return the options of a stored command that say what it timed; None if its options do not say it."""
    try:
        _, name, *words = shlex.split(command)
    except ValueError:
        return None
    if name not in TIMING:
        return None
    kept, rest = [], iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if not option.startswith("--") or option in FLAGS:
            continue
        value = value if equals else next(rest, "")
        kept += [option, value] if option in KEPT else []
    return tuple(kept) if all(word.isprintable() and len(word) <= LONGEST for word in kept) else None
