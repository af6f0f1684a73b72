"""What a run lacks, in words."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from attnbench.analysis.completeness import Completeness, Ending, Shortfall
from attnbench.analysis.plain_names import clean_name, join_words
from attnbench.words.say import say

__all__ = ["describe_extent", "describe_gaps"]

# Most implementations that a sentence names; the others are counted, unless there is only one other.
NAMED = 6
# Why something is missing from a run, by the end of the run.
CAUSES: dict[Ending, str] = {
    "cut": "was cut",
    "partial": "lacks parts, or parts of it were cut",
    "interrupted": "was interrupted",
    "error": "ended with an error",
    "finished": "lacks results",
    "unknown": "lacks results",
}
# What was not done: of one implementation, and of several.
_UNCHECKED = ("{names} was not finished: {run} {cause}.", "{names} were not finished: {run} {cause}.")
_TIMING = {
    "none": "Timing had not begun: {run} {cause}.",
    "unbegun": "The timing of {names} had not begun: {run} {cause}.",
    "begun": "The timing of {names} was not finished: {run} {cause}.",
}
_RUN_OF_SEVERAL = "run {id}"
_RUN = "the run"
_ENDED = "{run} {cause}."
_CUT_CALLS = (
    "{processes} of {planned} processes timed {count} call.",
    "{processes} of {planned} processes timed {count} calls.",
)
_HALF_WRITTEN = "The last line was half-written when the run was cut."
_UNREADABLE = ("{count} line of {run} could not be read.", "{count} lines of {run} could not be read.")
_NOT_STARTED = "not started"
_CASES = "{done} of {planned} cases done"
_CALLS = "{done} of {planned} calls timed"
_EXTENT = ("{names} ({extent})", "{names} (each {extent})")
_MORE = "{count} more implementations"


def describe_gaps(found: Completeness, *, named: bool = False) -> Iterator[str]:
    """Yield sentences about what a run lacks; none if the run is complete. ``named``: say the id of the run."""
    run = say(_RUN_OF_SEVERAL, id=clean_name(found.run)) if named else say(_RUN)
    cause = say(CAUSES[found.end])
    unchecked = [one for one in found.unfinished if one.unchecked]
    untimed = [one for one in found.unfinished if not one.unchecked]
    if unchecked:
        yield say(_UNCHECKED[len(unchecked) > 1], names=_name(unchecked), run=run, cause=cause)
    if untimed and not found.timed:
        yield say(_TIMING["none"], run=run, cause=cause)
    else:
        for begun in (False, True):
            own = [one for one in untimed if (one.timings < one.planned_timings) is begun]
            if own:
                yield say(_TIMING["begun" if begun else "unbegun"], names=_name(own), run=run, cause=cause)
    if not found.unfinished and found.end not in ("finished", "unknown"):
        text = say(_ENDED, run=run, cause=cause)
        yield text[0].upper() + text[1:]
    for cut in found.cut_calls:
        yield say(_CUT_CALLS[cut.calls > 1], processes=cut.processes, planned=cut.planned, count=cut.calls)
    if found.half_written:
        yield say(_HALF_WRITTEN)
    if found.unreadable:
        yield say(_UNREADABLE[found.unreadable > 1], count=found.unreadable, run=run)


def describe_extent(one: Shortfall) -> str:
    """Return how much of what was planned for an implementation was done; empty if it is not known."""
    if one.unchecked and one.planned_cases == one.cases and one.planned_timings == one.timings:
        return say(_NOT_STARTED)
    parts = []
    if one.cases:
        parts.append(say(_CASES, done=one.planned_cases - one.cases, planned=one.planned_cases))
    # If checks are missing and no call was timed, only the checks are named.
    if one.timings and not (one.cases and one.timings == one.planned_timings):
        parts.append(say(_CALLS, done=one.planned_timings - one.timings, planned=one.planned_timings))
    return ", ".join(parts)


def _name(some: Sequence[Shortfall]) -> str:
    """Name the first of these implementations, with how much of each plan was done; neighbours share equal words."""
    named = some if len(some) <= NAMED + 1 else some[:NAMED]
    groups = [_name_alike(extent, list(own)) for extent, own in groupby(named, key=describe_extent)]
    left = len(some) - len(named)
    return join_words([*groups, *[say(_MORE, count=left)] * (left > 0)])


def _name_alike(extent: str, some: Sequence[Shortfall]) -> str:
    """Name implementations whose plans were done to the same extent, which may be empty."""
    names = [clean_name(one.implementation) for one in some]
    return say(_EXTENT[len(names) > 1], names=join_words(names), extent=extent) if extent else join_words(names)
