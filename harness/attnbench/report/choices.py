"""What to use in a cell of the crossover map, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnbench.analysis.coverage import FEWEST_CHECKED
from attnbench.analysis.crossover import DECISIVE, Answer, AnswerKind, Entry
from attnbench.analysis.limits import describe_limits
from attnbench.analysis.plain_names import join_words
from attnbench.report.forms import describe_length
from attnbench.report.numbers import format_bytes
from attnbench.report.sightings import describe_sighting, describe_undecided, format_gains, name_some

__all__ = ["Choice", "describe_answer", "describe_choice", "keeps_reference", "list_conforming_undecided"]

# Answers that decide nothing although calls were compared.
OPEN: frozenset[AnswerKind] = frozenset({"unknown", "inconclusive"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A cell in words: what to use, the gain over the reference, and notes such as what the winner refuses."""

    # Kind of the answer; empty where nothing was timed.
    kind: str
    words: str
    gain: str = ""
    notes: tuple[str, ...] = ()
    # Which of the named implementations are not known to conform; empty if all do, or if the answer names no choice.
    conformance: str = ""
    # What to use instead, and its gain: the fastest that conforms; empty if all named implementations conform.
    conforming: str = ""
    conforming_gain: str = ""
    # Whether it is the reference because it is open which of those that conform is the fastest.
    is_for_now: bool = False
    # Where what conforms stands beside the answer, in words.
    ahead: str = ""
    # Peak memory of the fastest implementation and of the reference; empty without a winner or a tie, and where the
    # peak was not measured.
    memory: str = ""


def describe_choice(entries: Sequence[Entry]) -> Choice:
    """Return the cell of entries with the same answer, at neighbouring lengths."""
    if not entries:
        return Choice(kind="", words="not timed")
    answer, reference = entries[0].answer, entries[0].reference
    words, note = describe_answer(answer, reference)
    if answer.kind in OPEN:
        # What was seen is no answer, so it stands in a note.
        keep = f"until it is decided, keep {reference}" if reference not in entries[0].excluded else ""
        return Choice(kind=answer.kind, words=words, notes=(describe_sighting(entries), *[keep] * bool(keep)))
    conforming, conforming_gain = _describe_conforming(entries)
    notes = [note] * bool(note) + list(_describe_all_limits(entries[0]))
    if undecided := describe_undecided(entries):
        notes.append(undecided)
    gain = format_gains(entry.answer.gain for entry in entries if entry.answer.gain)
    return Choice(
        kind=answer.kind,
        words=words,
        gain=gain,
        notes=tuple(notes),
        conformance=_describe_conformance(entries[0], named_first=not conforming),
        conforming=conforming,
        conforming_gain=conforming_gain,
        is_for_now=keeps_reference(entries[0]),
        ahead=_describe_ahead(entries[0], f"{words} {gain}".rstrip()) if conforming else "",
        memory=_describe_memory(entries[-1], several=len(entries) > 1),
    )


def _describe_conforming(entries: Sequence[Entry]) -> tuple[str, str]:
    """Return the fastest implementation that conforms, where an answer names others, and its gain."""
    other = entries[0].conforming
    if keeps_reference(entries[0]):
        return f"{entries[0].reference} for now", ""
    if other is None or entries[0].answer.kind not in DECISIVE:
        return "", ""
    names = join_words(other.names if other.kind in ("winner", "tie") else other.names[:1])
    gains = [one.conforming.gain for one in entries if one.conforming and one.conforming.gain]
    return names, format_gains(gains)


def _describe_ahead(entry: Entry, answer: str) -> str:
    """Return what is ahead of the fastest that conforms: the answer, or others with which it is tied."""
    if entry.conforming is None:
        return f"{_describe_rivals(entry)}; ahead of it: {answer}"
    if entry.conforming.names[0] in entry.answer.names:
        others = [name for name in entry.answer.names if name not in entry.conforming.names]
        return f"the fastest that conforms; tied with {join_words(others)}"
    return f"the fastest that conforms; ahead of it: {answer}"


def _describe_rivals(entry: Entry) -> str:
    """Return of whom it is open whether they are faster than the reference, among those that conform."""
    conform = list_conforming_undecided(entry)
    rivals = [one.implementation for one in entry.contenders if one.implementation in conform and one.state in OPEN]
    if not rivals:
        return "which of those that conform is fastest is not decided"
    return f"whether {name_some(rivals)} {'is' if len(rivals) == 1 else 'are'} faster is not decided"


def _describe_conformance(entry: Entry, *, named_first: bool) -> str:
    """Return which implementations of an answer are not known to conform.

    ``named_first``: the cell begins with the answer, so that what holds for all of it needs no names.
    """
    kind = entry.answer.kind
    if kind not in DECISIVE and kind != "alone":
        return ""
    parts = []
    if entry.reference in entry.excluded and entry.reference in entry.answer.names:
        parts.append(f"{entry.reference} fails checks")
    for words, same in _group_open(entry).items():
        who = "" if named_first and len(same) == len(entry.answer.names) else f"{join_words(same)}: "
        parts.append(f"{who}conformance {words}")
    undecided = list_conforming_undecided(entry)
    if undecided and entry.reference not in undecided:
        parts.append("which of those that conform is fastest is not decided")
    return "; ".join(parts)


def keeps_reference(entry: Entry) -> bool:
    """Whether the reference is kept for now: the answer is decided, but not who is the fastest that conforms.

    The reference itself conforms.
    """
    return entry.answer.kind in DECISIVE and entry.reference in list_conforming_undecided(entry)


def list_conforming_undecided(entry: Entry) -> list[str]:
    """Return those that conform if the answer names others, and it is not decided who of them is fastest."""
    if entry.conforming is not None or not _group_open(entry):
        return []
    counts = entry.contender_checked.items()
    return [name for name, count in counts if count >= FEWEST_CHECKED and name not in entry.unfinished]


def _group_open(entry: Entry) -> dict[str, list[str]]:
    """Return which implementations of an answer are not known to conform, by what is said of their conformance."""
    counts = {name: entry.contender_checked.get(name, 0) for name in entry.answer.names}
    few = {name: count for name, count in counts.items() if name not in entry.excluded and count < FEWEST_CHECKED}
    open_: dict[str, list[str]] = {}
    for name, count in few.items():
        words = f"not decided ({count} of the {FEWEST_CHECKED} needed cases)" if count else "not checked"
        open_.setdefault(words, []).append(name)
    late = [name for name in entry.answer.names if name in entry.unfinished - few.keys() - {*entry.excluded}]
    if late:
        open_["not decided (its checks were not finished)"] = late
    return open_


def _describe_memory(entry: Entry, *, several: bool) -> str:
    """Return the peak memory of a winner, of the fastest that conforms and of the reference; empty without a winner.

    ``several``: name the length.
    """
    first, kind = entry.answer.names[0], entry.answer.kind
    if kind not in ("winner", "tie") or not entry.peak_bytes or not entry.reference_peak_bytes:
        return ""
    others = [(entry.reference, entry.reference_peak_bytes)]
    if entry.conforming and entry.conforming_peak_bytes and entry.conforming.names[0] != entry.reference:
        others.insert(0, (entry.conforming.names[0], entry.conforming_peak_bytes))
    who = f"{first} " if kind == "tie" or entry.conforming or keeps_reference(entry) else ""
    at = f" at {describe_length(entry.queries, entry.keys)}" if several else ""
    listed = ", ".join(f"{name} {format_bytes(peak)}" for name, peak in others)
    return f"peak memory: {who}{format_bytes(entry.peak_bytes)}, {listed}{at}"


def describe_answer(answer: Answer, reference: str) -> tuple[str, str]:
    """Return what to use in a few words, and a note that explains it; the note may be empty."""
    names = ", ".join(answer.names)
    some = name_some(answer.names)
    match answer.kind:
        case "winner":
            return names, ""
        case "tie":
            return f"tie: {names}", ""
        case "reference":
            return reference, "every other implementation with a verdict is slower"
        case "no_difference":
            return "no useful difference", f"{reference} and {name_some(answer.names[1:])} cannot be told apart"
        case "unknown" | "inconclusive":
            return answer.kind, answer.reason
        case "alone":
            return f"only {names}", "nothing else was timed"
        case "not_compared":
            return "not compared", f"{some} and {reference} were not timed in the same processes"


def _describe_all_limits(entry: Entry) -> Iterator[str]:
    """For a winner, a tie or no difference, yield what each named implementation but the reference refuses.

    Implementations with the same limits share a line.
    """
    if entry.answer.kind not in ("winner", "tie", "no_difference"):
        return
    shared: dict[str, list[str]] = {}
    for name, limits in zip(entry.answer.names, entry.limits, strict=True):
        if name != entry.reference:
            shared.setdefault(describe_limits(limits), []).append(name)
    for words, names in shared.items():
        is_clear = len(shared) == 1 and not entry.conforming and not keeps_reference(entry)
        yield words if is_clear else f"{join_words(names)}: {words}"
