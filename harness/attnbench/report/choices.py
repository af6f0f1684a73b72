"""What to use in a cell of the crossover map, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnbench.analysis.coverage import FEWEST_CHECKED
from attnbench.analysis.crossover import FASTER, Answer, AnswerKind, Contender, Entry, find_seen
from attnbench.analysis.limits import describe_limits
from attnbench.analysis.plain_names import join_words
from attnbench.report.forms import describe_length
from attnbench.report.numbers import format_bytes
from attnbench.report.sightings import (
    describe_sighting,
    describe_undecided,
    format_time,
    list_times,
    name_some,
    select_some,
)

__all__ = ["OPEN", "Choice", "describe_answer", "describe_choice"]

# Answers that decide nothing although calls were compared.
OPEN: frozenset[AnswerKind] = frozenset({"unknown", "inconclusive"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A cell in words: what to use, its time, and notes of one fact each."""

    # Kind of the answer; empty where nothing was timed.
    kind: str
    words: str
    # For a winner or a tie, each name with its time relative to the reference.
    times: tuple[tuple[str, str], ...] = ()
    # How sure the answer is, and what may be faster.
    notes: tuple[str, ...] = ()
    # Those of the notes that say why the answer is not decided, not final, or not known to conform.
    reservations: tuple[str, ...] = ()
    # What the named implementations refuse, and their peak memory.
    details: tuple[str, ...] = ()
    # Whether it is the reference because nothing is decided, or whether calls that may change the answer are missing.
    is_for_now: bool = False
    # Whether an implementation in ``words`` is not known to conform.
    is_unverified: bool = False
    # What is said of implementations that are, or may be, as fast as the one to use, and have no verdict on
    # conformance; the sentences are among the notes too. ``unchecked``: those of which too few cases were checked.
    rival_notes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def told_times(self) -> tuple[str, ...]:
        """The times in words, a line each; a winner is named by ``words``."""
        if len(self.times) == 1:
            return (self.times[0][1],)
        return select_some([" ".join(pair) for pair in self.times])

    @property
    def time(self) -> str:
        """The times in one line."""
        return ", ".join(self.told_times)


def describe_choice(entries: Sequence[Entry], late: Sequence[str] = ()) -> Choice:
    """Return the cell of entries with the same answer, at neighbouring lengths.

    ``late``: implementations whose calls were planned, and not reached before a run ended.
    """
    if not entries:
        ended = ("the run ended before; see What is missing",) if late else ()
        return Choice(kind="", words="not timed", notes=ended, reservations=ended)
    pending = f"not reached before the run ended: {name_some(late)}" if late else ""
    entry, best = entries[0], entries[0].best
    fast, open_ = _find_rivals(entry)
    rival_notes = tuple(_describe_rivals(entries, fast, open_))
    checked = entry.contender_checked
    unchecked = tuple(name for name in (*fast, *open_) if checked.get(name, 0) < FEWEST_CHECKED)
    words, note = describe_answer(best, entry.reference)
    if best.kind in OPEN:
        keeps = entry.reference not in entry.excluded
        words = f"{entry.reference} for now" if keeps else words
        reservations = tuple(filter(None, (pending, describe_sighting(entries))))
        return Choice(
            kind=best.kind, words=words, notes=reservations + rival_notes, reservations=reservations, is_for_now=keeps,
            rival_notes=rival_notes, unchecked=unchecked,
        )  # fmt: skip
    if entry.conforming and best.kind in ("reference", "alone"):
        words, note = best.names[0], "no other that was timed is known to conform"
        if best.kind == "reference":
            note = f"faster than every other that conforms and was timed{_describe_next(entries)}"
    unverified = _describe_conformance(entry)
    notes = pending, note, unverified, describe_undecided(entries), *rival_notes
    return Choice(
        kind=best.kind,
        words=_limit(best.kind, words) if late else words,
        times=tuple((name, format_time(entries, name)) for name in best.names) if best.kind in FASTER else (),
        notes=tuple(filter(None, notes)),
        reservations=tuple(filter(None, (pending, unverified))),
        details=(*_describe_all_limits(entry), *_describe_memory(entries[-1], several=len(entries) > 1)),
        is_for_now=bool(late),
        is_unverified=bool(unverified),
        rival_notes=rival_notes,
        unchecked=unchecked,
    )


def _limit(kind: AnswerKind, words: str) -> str:
    """Return an answer that missing calls may change: ``sdpa for now``, ``tie for now: sdpa, varlen``."""
    return f"tie for now{words.removeprefix('tie')}" if kind == "tie" else f"{words} for now"


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
            alike = name_some(answer.names[1:])
            return reference, f"no useful difference: {reference} and {alike} cannot be told apart"
        case "unknown" | "inconclusive":
            return answer.kind, answer.reason
        case "alone":
            return f"only {names}", "nothing else was timed"
        case "not_compared":
            return "not compared", f"{some} and {reference} were not timed in the same processes"


def _describe_next(entries: Sequence[Entry]) -> str:
    """Return the implementation next to the reference among those that were compared, with its time; may be empty."""
    seen = find_seen(entries[0].compared, entries[0].reference)
    return f"; next is {list_times(entries, [seen.implementation])}" if seen else ""


def _describe_conformance(entry: Entry) -> str:
    """Return which implementations of an answer are not known to conform; empty if all are known to."""
    if entry.best.kind == "not_compared":
        return ""
    names, parts = entry.best.names, []
    if entry.reference in entry.excluded and entry.reference in names:
        parts.append(f"{entry.reference} fails checks")
    for words, same in _group_unverified(entry).items():
        who = "" if len(same) == len(names) else f"{join_words(same)}: "
        parts.append(f"{who}conformance {words}")
    return "; ".join(parts)


def _group_unverified(entry: Entry) -> dict[str, list[str]]:
    """Return which implementations of an answer are not known to conform, by what is said of their conformance."""
    groups: dict[str, list[str]] = {}
    for name in entry.best.names:
        if name in entry.conform or name in entry.excluded:
            continue
        count = entry.contender_checked.get(name, 0)
        words = f"not decided ({count} of the {FEWEST_CHECKED} needed cases)" if count else "not checked"
        if count >= FEWEST_CHECKED:
            words = "not decided (its checks were not finished)"
        groups.setdefault(words, []).append(name)
    return groups


def _find_rivals(entry: Entry) -> tuple[list[str], list[str]]:
    """Return what is as fast as the answer among those that conform, and what may be, but is not known to conform."""
    if entry.conforming is None:
        return [], []
    others = [one for one in entry.contenders if one.implementation not in {*entry.conform, entry.reference}]
    others.sort(key=lambda one: one.shown or 0.0)
    fast = [one.implementation for one in others if one.state == "faster" and _is_as_fast(one, entry.best)]
    answer = entry.answer
    named = {*answer.undecided, *(answer.names if answer.kind in OPEN else ())}
    return fast, [one.implementation for one in others if one.implementation in named]


def _describe_rivals(entries: Sequence[Entry], fast: Sequence[str], open_: Sequence[str]) -> Iterator[str]:
    """Yield a sentence on the rivals that are as fast, and one on those that may be."""
    entry = entries[0]
    if fast:
        first = entry.best.names[0]
        how = f"as fast as {first} or faster" if entry.best.kind in FASTER else f"faster than {entry.reference}"
        yield f"{how}, but without a verdict on conformance: {list_times(entries, fast)}"
    if open_:
        yield f"without a verdict on conformance and on speed: {list_times(entries, open_)}"


def _is_as_fast(contender: Contender, best: Answer) -> bool:
    """Whether an implementation that is faster than the reference is not slower than an answer."""
    return best.gain is None or contender.ratio is None or contender.ratio.low <= best.gain.invert().high


def _describe_memory(entry: Entry, *, several: bool) -> Iterator[str]:
    """Yield the peak memory of the fastest of a winner or a tie, and that of the reference.

    ``several``: name the length.
    """
    best = entry.best
    peak = entry.conforming_peak_bytes if entry.conforming else entry.peak_bytes
    if best.kind not in FASTER or not peak or not entry.reference_peak_bytes:
        return
    who = f"{best.names[0]} " if best.kind == "tie" else ""
    at = f" at {describe_length(entry.queries, entry.keys)}" if several else ""
    yield f"peak memory: {who}{format_bytes(peak)}, {entry.reference} {format_bytes(entry.reference_peak_bytes)}{at}"


def _describe_all_limits(entry: Entry) -> Iterator[str]:
    """For a winner, a tie or no difference, yield what each named implementation but the reference refuses.

    Implementations with the same limits share a line.
    """
    best = entry.best
    if best.kind not in ("winner", "tie", "no_difference"):
        return
    shared: dict[str, list[str]] = {}
    for name in best.names:
        if name != entry.reference:
            shared.setdefault(describe_limits(entry.contender_limits[name]), []).append(name)
    for words, names in shared.items():
        yield words if len(shared) == 1 else f"{join_words(names)}: {words}"
