"""The words of the tables of grades and of prices."""

from collections.abc import Mapping
from typing import get_args

from attnbench.analysis.invariance import GradedProperty, Quantity
from attnbench.records.types import find_pass
from attnbench.records.value_facts import phrase
from attnbench.words.findings import describe_facts, describe_reason
from attnbench.words.invariance import describe_grade_briefly, describe_sweep
from attninvariance.price import Price

__all__ = [
    "HEAD",
    "LEGEND",
    "NOTHING_IN_COMMON",
    "NOTHING_TO_SWEEP",
    "NO_KEY_SPLITS",
    "NO_PADDING_AT_THE_START",
    "NO_TRANSFORMS",
    "OVERVIEW_HEAD",
    "OVERVIEW_LEGEND",
    "PRICE_HEAD",
    "format_overview",
    "format_price",
    "format_row",
]

# Why a property is not measured.
NO_KEY_SPLITS = phrase("the implementation offers no other split of the keys")
NO_PADDING_AT_THE_START = phrase("the operator has no padding at the start of a sequence")
NO_TRANSFORMS = phrase("the operator has no case transforms, which select sequences and queries")
NOTHING_IN_COMMON = phrase("no result of the two calls belongs to the same tokens")
NOTHING_TO_SWEEP = phrase("the sweep has no sizes for this property")
HEAD = ("property", "output", "gradients", "swept")
OVERVIEW_HEAD = ("implementation", "bitwise", "differs by at most", "n/a")
OVERVIEW_LEGEND = (
    "bitwise: all bits of outputs and gradients were equal at all swept sizes. A / B: largest difference of outputs "
    "and of gradients, 0 if they are bitwise. n/a: refused, or not measured. Sizes: the run file, or the table of one "
    "implementation."
)
PRICE_HEAD = ("call", "implementation", "ms per call", "times the fastest")
LEGEND = (
    "bitwise: all bits were equal at all swept sizes. N ulp: the largest difference, counted in floating-point numbers "
    "from one result to the other. n/a: refused."
)


def format_row(name: str, grades: Mapping[Quantity, GradedProperty]) -> tuple[str, ...]:
    """Return the cells of a property's row; ``grades`` has what was measured of ``output`` and of ``gradients``."""
    cells = [_describe(grades.get(quantity)) for quantity in get_args(Quantity)]
    sweep = next((describe_sweep(one.grade) for one in grades.values() if one.grade), "–")
    return name, *cells, sweep


def format_overview(subject: str, grades: Mapping[str, Mapping[Quantity, GradedProperty]]) -> tuple[str, ...]:
    """Return the cells of the row of an implementation; ``grades`` has what was measured, by property."""
    bitwise, differs, without = [], [], []
    for name, own in grades.items():
        found = [one.grade for quantity in get_args(Quantity) if (one := own.get(quantity)) and one.grade]
        if not found:
            without.append(name)
        elif any(grade.differing for grade in found):
            differs.append(f"{name} {' / '.join(f'{float(grade.largest_difference):.0e}' for grade in found)}")
        else:
            bitwise.append(name)
    return subject, *(", ".join(some) or "–" for some in (bitwise, differs, without))


def _describe(one: GradedProperty | None) -> str:
    if one is None:
        return "–"
    if one.grade is not None:
        return describe_grade_briefly(one.grade)
    return f"{'n/a' if one.status == 'unsupported' else one.status}: {describe_facts(one.facts)}"


def format_price(price: Price) -> tuple[str, ...]:
    """Return the cells of the row of an implementation on a case."""
    call = f"{price.case.split('/')[1]} {find_pass(price.case)}"
    if price.time_ns is None or price.ratio is None:
        return call, price.implementation, "–", "–" if price.untimed is None else describe_reason(price.untimed)
    found = price.ratio
    interval = "fastest" if price.implementation == price.fastest else (
        f"{found.value:.3g} [{found.low:.3g}, {found.high:.3g}]"
    )  # fmt: skip
    return call, price.implementation, f"{price.time_ns.value / 1e6:.3g}", interval
