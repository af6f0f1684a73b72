"""The conditions of two compared runs: machine, versions, threads, code and cases, and what differs.

Two implementations that were timed interleaved have one run, whose conditions are those of both sides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnbench.records.types import Run
from attnbench.report.numbers import format_bytes, shorten_text
from attnbench.words import compared_runs as words
from attnbench.words.runs import describe_commit, describe_suite
from attnbench.words.say import say

__all__ = ["Condition", "explain_differences", "list_conditions"]

NONE = "–"
# Name of the condition about which there is a sentence of its own.
LIST = "case list"
# Hexadecimal digits of the hash of source files that are shown.
DIGITS = 12
# Most differences that the first sentence names, and the longest text of one, in characters.
NAMED, LONGEST = 6, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition on both sides, as texts."""

    what: str
    base: str
    new: str
    # Whether numbers of the two sides are comparable only with care if this condition differs. Another commit is what
    # a comparison is about; another machine is not.
    matters: bool = False

    @property
    def differs(self) -> bool:
        """Whether the two sides have different texts."""
        return self.base != self.new

    @property
    def warns(self) -> bool:
        """Whether the condition differs and matters."""
        return self.matters and self.differs


def list_conditions(base: Run, new: Run) -> Iterator[Condition]:
    """Yield the conditions of two runs, those that matter first."""
    yield from _list_conditions_of_machine(base, new)
    yield Condition(what="threads", base=str(base.threads), new=str(new.threads), matters=True)
    for name in dict.fromkeys((*base.versions, *new.versions)):
        yield Condition(
            what=name, base=base.versions.get(name, NONE), new=new.versions.get(name, NONE), matters=name != "attnbench"
        )
    yield Condition(what=LIST, base=describe_suite(base), new=describe_suite(new), matters=True)
    yield Condition(what="commit", base=describe_commit(base.commit), new=describe_commit(new.commit))
    for name in base.sources:
        if name in new.sources:
            what = say(words.SOURCE, name=name)
            yield Condition(what=what, base=base.sources[name][:DIGITS], new=new.sources[name][:DIGITS])
    yield Condition(what="run", base=base.id, new=new.id)
    yield Condition(what="time", base=base.time, new=new.time)
    yield Condition(what="command", base=base.command or NONE, new=new.command or NONE)


def _list_conditions_of_machine(base: Run, new: Run) -> Iterator[Condition]:
    one, other = base.machine, new.machine
    texts = (
        ("machine", one.name, other.name),
        ("processor", one.cpu, other.cpu),
        ("cores", str(one.cores), str(other.cores)),
        ("memory", format_bytes(one.memory_bytes), format_bytes(other.memory_bytes)),
        ("GPU", one.gpu or "none", other.gpu or "none"),
        ("driver", one.driver or NONE, other.driver or NONE),
        ("instruction set", one.isa or NONE, other.isa or NONE),
        ("system", one.system or NONE, other.system or NONE),
    )
    for what, was, is_now in texts:
        if (was, is_now) != (NONE, NONE):
            yield Condition(what=what, base=was, new=is_now, matters=True)


def explain_differences(base: Run, new: Run, conditions: Sequence[Condition]) -> Iterator[str]:
    """Yield sentences about conditions that matter and differ, and about what follows from them."""
    warned = [one for one in conditions if one.warns and one.what != LIST]
    named = [say(words.DIFFERENCE, what=one.what, base=one.base, new=one.new) for one in warned[:NAMED]]
    shown = [shorten_text(text, LONGEST) for text in named]
    yield from words.explain_differences(base, new, shown, more=len(warned) - len(shown))
