"""Which implementations return weights and which take float masks, near the tables of what to use."""

from collections.abc import Iterable, Iterator, Mapping

from attnbench.analysis.crossover import Entry
from attnbench.analysis.limits import MULTIHEAD, Limits
from attnbench.analysis.plain_names import join_words

__all__ = ["describe_features"]

# What readers ask for most: the heading, what a name that has it does, and the refusals that exclude it.
ASKED: tuple[tuple[str, str, frozenset[str]], ...] = (
    ("Weights (need_weights)", "returned by", frozenset({"weights", "every case"})),
    ("Float masks", "taken by", frozenset({"float masks", "masks", "every case"})),
)
# Start of a restriction that says what is taken, so that it is not known whether a feature is.
ALL_BUT = "all but"


def describe_features(entries: Iterable[Entry]) -> str:
    """Return who returns weights and who takes float masks, and of whom it is not known.

    Only ``multihead`` has weights and masks that are asked for: without a call of it, the text is empty.
    """
    own_entries = [entry for entry in entries if entry.form.partition("/")[0] == MULTIHEAD]
    if not own_entries:
        return ""
    limits: dict[str, Limits] = {}
    for entry in own_entries:
        for name, own in entry.contender_limits.items():
            if name not in limits or (own.known and not limits[name].known):
                limits[name] = own
    if not any(own.known for own in limits.values()):
        return "Which of these return weights or take float masks was not checked in this report."
    timed = "that were timed" + " and fail no check" * any(entry.excluded for entry in own_entries)
    parts = (f"{heading}: {'; '.join(_divide(limits, verb, refusals, timed))}." for heading, verb, refusals in ASKED)
    return " ".join(parts)


def _divide(limits: Mapping[str, Limits], verb: str, refusals: frozenset[str], timed: str) -> Iterator[str]:
    """Yield who refuses a feature, of whom it is not known, and that all others have it.

    ``timed``: whose limits they are, in words.
    """
    no = [name for name, own in limits.items() if refusals & {*own.refused}]
    unknown = [name for name, own in limits.items() if name not in no and not _is_known(own)]
    for words, names in (("refused by", no), ("not checked for", unknown)):
        if names:
            yield f"{words} {join_words(names)}"
    if {*limits} - {*no, *unknown}:
        yield f"{verb} all{' others' if no or unknown else ''} {timed}"


def _is_known(limits: Limits) -> bool:
    return limits.known and not any(feature.startswith(ALL_BUT) for feature in limits.refused)
