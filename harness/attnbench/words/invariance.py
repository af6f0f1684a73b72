"""Grades of invariance: sentences for findings, and the cells of a table."""

from collections.abc import Iterable

from attnbench.records.outcome_facts import InvarianceGrade, Size, SweptSize
from attnbench.words.say import say, say_count

__all__ = ["describe_grade", "describe_grade_briefly", "describe_sweep"]

_BITWISE = "bitwise"
_APART = ("{count} ulp ({apart:.1e}), first at {sizes}", "{count} ulp ({apart:.1e}), first at {sizes}")
_VIOLATED = "{grade}, though declared invariant"
_GRADE = "{grade}; swept: {sweep}"
_SIZE = "{name} {value}"
_ONE, _SEVERAL = "{name} {first}", "{name} {first} to {last}"
_COMPARED = ("{count} comparison", "{count} comparisons")
_SWEEP = "{compared}: {sizes}"
_CUT = "{compared} until the time limit"
_REFUSED = "{compared}, {refused} more refused"
_NAMES = {
    "batch": "batch",
    "length": "length",
    "head_dim": "head_dim",
    "padding": "padding",
    "chunk": "chunk",
    "keys_per_part": "keys per part",
    "threads": "threads",
}


def describe_grade(grade: InvarianceGrade) -> str:
    """Return what a grade says, and what was swept."""
    return say(_GRADE, grade=describe_grade_briefly(grade), sweep=describe_sweep(grade))


def describe_grade_briefly(grade: InvarianceGrade) -> str:
    """Return a grade without what was swept."""
    if not grade.differing:
        return say(_BITWISE)
    text = say_count(_APART, grade.largest_ulp, apart=float(grade.largest_difference), sizes=_list_sizes(grade.first))
    return say(_VIOLATED, grade=text) if grade.declared else text


def describe_sweep(grade: InvarianceGrade) -> str:
    """Return how many comparisons were made, and at which sizes."""
    compared = say_count(_COMPARED, grade.compared)
    if not grade.complete:
        compared = say(_CUT, compared=compared)
    if grade.refused:
        compared = say(_REFUSED, compared=compared, refused=grade.refused)
    return say(_SWEEP, compared=compared, sizes=", ".join(map(_describe_swept, grade.swept)))


def _list_sizes(sizes: Iterable[Size]) -> str:
    return ", ".join(say(_SIZE, name=say(_NAMES[one.name]), value=one.value) for one in sizes)


def _describe_swept(size: SweptSize) -> str:
    first, last = size.values[0], size.values[-1]
    template = _ONE if len(size.values) == 1 else _SEVERAL
    return say(template, name=say(_NAMES[size.name]), first=first, last=last)
