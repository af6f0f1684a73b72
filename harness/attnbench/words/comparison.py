"""What a comparison found, in words: its sections, and what became worse, better or undecided."""

from collections.abc import Iterable, Sequence

from attnbench.words.say import say, say_count, say_names

__all__ = [
    "ASPECTS",
    "CASES",
    "CAUSE",
    "COMMAND",
    "COMMON",
    "GROUP",
    "LENGTH",
    "MORE_CAUSES",
    "MORE_ROWS",
    "MORE_WRONG",
    "NAMED",
    "NOTHING",
    "TITLE",
    "TITLES",
    "describe_aspect",
    "describe_more_groups",
    "describe_none_worse",
    "describe_undecided",
    "describe_undirected",
    "describe_wrong",
    "name_aspect",
]

# Most implementations that are named in a sentence.
NAMED = 4
TITLE = "attnbench compare"
NOTHING = "BASE and NEW have nothing in common to compare"
TITLES = {
    "wrong": "Became wrong",
    "missing": "Missing in the new",
    "slower": "Slower",
    "bigger": "Bigger",
    "undecided": "No verdict",
    "other": "Other kernels",
    "better": "Better",
}
# What is compared, in the order of a table.
ASPECTS = {
    "time": "time",
    "peak_bytes": "peak memory",
    "workspace_bytes": "workspace",
    "saved_bytes": "saved bytes",
    "kernel_calls": "kernel calls",
    "flop": "flop",
    "result": "result",
}
LENGTH = "length {length}"
COMMON = "All measured cases: {common}."
_COMPARISONS = ("{count} comparison", "{count} comparisons")
_NONE_WORSE = "Nothing became worse in {comparisons}."
_ALL_OPEN = "Undecided: no comparison of {names} has a verdict."
_OPEN = (
    "Undecided: {count} of {of}, of {names}, has no verdict; nothing became worse in the others.",
    "Undecided: {count} of {of}, of {names}, have no verdict; nothing became worse in the others.",
)
CASES = ("{count} case", "{count} cases")
CAUSE = "{title} ({cases})"
_WRONG = "{name} became wrong: {causes}."
_WRONG_AND_MORE = (
    "{name} became wrong: {causes}, and {count} more cause.",
    "{name} became wrong: {causes}, and {count} more causes.",
)
MORE_WRONG = ("{count} more implementation became wrong.", "{count} more implementations became wrong.")
# Changes that are neither worse nor better, and what has no result.
_UNDIRECTED = {
    "undecided": "No verdict on {comparisons} of {names}.",
    "other": "Other kernels in {comparisons} of {names}.",
    "missing": "Missing in the new: {comparisons} of {names}.",
}
# What may decide what has no verdict, by whether both sides are of one run. By default, ``compare`` times in at most
# 30 processes.
_DECIDING = {
    False: "{text} Time both again while nothing else runs, in more processes (attnbench profile --processes 30).",
    True: "{text} Compare again while nothing else runs, or in more processes (--processes 40).",
}
GROUP = "{name} {changes}."
_MORE_GROUPS = "{title}: {names}."
_MENDED = ("passes {count} finding that failed", "passes {count} findings that failed")
_CHANGED = ("{verb} {count} case ({change}, {where})", "{verb} {count} cases (at most {change}, {where})")
_TIME = "is {verdict} on"
_MORE, _LESS = "has more {aspect} on", "has less {aspect} on"
COMMAND = "To see the first again: {command}"
MORE_CAUSES = ("And {count} more cause.", "And {count} more causes.")
MORE_ROWS = ("And {count} more row.", "And {count} more rows.")


def name_aspect(aspect: str) -> str:
    """Return what is compared; the name of a check stays."""
    return say(ASPECTS[aspect]) if aspect in ASPECTS else aspect


def describe_none_worse(count: int) -> str:
    """Return that nothing became worse, and in how many comparisons."""
    return say(_NONE_WORSE, comparisons=say_count(_COMPARISONS, count))


def describe_undecided(count: int, of: int, names: Iterable[str], *, one_run: bool) -> str:
    """Return that ``count`` comparisons have no verdict, that the others are not worse, and what may decide them."""
    every, named = say_count(_COMPARISONS, of), say_names(names, NAMED)
    text = say(_ALL_OPEN, names=named) if count == of else say_count(_OPEN, count, of=every, names=named)
    return say(_DECIDING[one_run], text=text)


def describe_wrong(name: str, causes: Sequence[str], more: int) -> str:
    """Return the first causes for which an implementation became wrong, and the number of the others."""
    told = "; ".join(causes)
    return say_count(_WRONG_AND_MORE, more, name=name, causes=told) if more else say(_WRONG, name=name, causes=told)


def describe_undirected(anchor: str, count: int, names: Iterable[str], *, one_run: bool) -> str:
    """Return how many changes a section has that are neither worse nor better, and what may decide about them."""
    text = say(_UNDIRECTED[anchor], comparisons=say_count(_COMPARISONS, count), names=say_names(names, NAMED))
    return say(_DECIDING[one_run], text=text) if anchor == "undecided" else text


def describe_more_groups(anchor: str, names: Iterable[str]) -> str:
    """Return which further implementations a section has."""
    return say(_MORE_GROUPS, title=say(TITLES[anchor]), names=say_names(names, NAMED))


def describe_aspect(aspect: str, verdict: str, count: int, change: str, where: str) -> str:
    """Return on how many cases an aspect changed, and the largest change; of checks, how many findings now pass."""
    if verdict == "mended":
        return say_count(_MENDED, count)
    verb = _TIME if aspect == "time" else _MORE if verdict == "bigger" else _LESS
    told = say(verb, verdict=verdict, aspect=name_aspect(aspect))
    return say_count(_CHANGED, count, verb=told, change=change, where=where)
