"""What to use at which shape, for programs: the file ``dispatch.json`` of a report, and the choice from it.

The file has every timed call of the report with all implementations that were timed on it, so that a choice can ask for
less than the report does: only implementations that return weights, for example.
"""

import math
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from attnbench.analysis.answers import Answer
from attnbench.analysis.answers import choose as choose_by_bounds
from attnbench.analysis.pairs import PairBounds
from attnbench.analysis.stats import Interval
from attnbench.records.run_file import ResultsError

__all__ = [
    "DISPATCH_SCHEMA",
    "Chosen",
    "Dispatch",
    "DispatchCell",
    "NoChoiceError",
    "Offer",
    "Query",
    "choose_at",
    "encode_dispatch",
    "read_dispatch",
]

# Version of the format of dispatch.json. It grows with every change that an older reader would misread.
DISPATCH_SCHEMA = 2
# Most values that an error names; the others are counted.
SHOWN = 8
# Names of masks in ids of cases, by their names in the option --mask; operators have names of their own.
MASKS = {
    "bool": ("bool2d",),
    "causal": ("causal_br", "causal_tl"),
    "float": ("float2d", "bias2d"),
    "padding": ("pad", "ragged"),
}
# Features that may be needed although nothing in a file refuses them.
FEATURES = ("weights", "float masks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An implementation that was timed on a call and may be chosen for it."""

    name: str
    # Time of a call in nanoseconds.
    time_ns: float
    # Time divided by the reference's time; None for the reference, and where nothing can be compared.
    ratio: Interval | None = None
    # Upper bound of the time over that of each other offer, by its name; None where there is no bound.
    over: dict[str, float | None]
    # ``run``: id of the run that has the timing. ``line``: number of its line; 0 where unknown.
    run: str
    line: int = 0
    # ``checked``: number of checked cases of the suite that gives the verdict on conformance. ``suite``: its name.
    checked: int = 0
    suite: str = ""
    # Features that the implementation refuses, such as "weights". ``refusals_known``: whether it is known what the
    # implementation refuses.
    refused: tuple[str, ...] = ()
    refusals_known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchCell:
    """A timed call with every implementation that was timed on it.

    The sizes are those of the operator's problem; a size that the operator does not have is None.
    """

    machine: str
    device: str
    dtype: str
    threads: int
    case: str
    passes: str
    queries: int
    keys: int
    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    mask: str = "none"
    reference: str
    offers: tuple[Offer, ...]
    # ``processes``: number of processes that timed the call. ``control_failed``: whether the A/A control shows a
    # difference.
    processes: int
    control_failed: bool = False
    # Whether the offers are known to conform. If not, none is known to, and the offers fail no check.
    conforming: bool = True


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """The content of dispatch.json."""

    kind: str = "attnbench-dispatch"
    schema: int = DISPATCH_SCHEMA
    # Versions of libraries, by name, of each run by its id.
    versions: dict[str, dict[str, str]] = {}
    cells: list[DispatchCell] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is asked for. A field that is None fits every cell; among the fitting cells it must have one value."""

    queries: int
    machine: str
    keys: int | None = None
    device: str | None = None
    dtype: str | None = None
    passes: str | None = None
    mask: str | None = None
    threads: int | None = None
    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    case: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What to use for a call, with the evidence for it."""

    cell: DispatchCell
    answer: Answer
    # None for a fallback that was not timed, or may not be chosen.
    offer: Offer | None


class NoChoiceError(LookupError):
    """Raised if nothing was measured that answers the question; the message names the nearest measurement."""


def encode_dispatch(dispatch: Dispatch) -> bytes:
    """Return the bytes of dispatch.json."""
    return msgspec.json.format(msgspec.json.encode(dispatch), indent=1) + b"\n"


def read_dispatch(path: Path) -> Dispatch:
    """Read a dispatch.json.

    Raises: ResultsError where the file cannot be read, is no such file, or was written by a newer attnbench.
    """
    try:
        content = path.read_bytes()
        plain = msgspec.json.decode(content, type=dict[str, Any])
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} is no dispatch file: {error}") from error
    if plain.get("kind") != "attnbench-dispatch" or not isinstance(schema := plain.get("schema"), int):
        raise ResultsError(f"{path} is no dispatch file; attnbench report writes one, dispatch.json")
    if schema > DISPATCH_SCHEMA:
        raise ResultsError(
            f"{path} was written by a newer attnbench (schema {schema}); "
            f"this version reads schemas up to {DISPATCH_SCHEMA}: upgrade attnbench"
        )
    if schema < DISPATCH_SCHEMA:
        raise ResultsError(f"{path} was written by an older attnbench: write it anew with attnbench report")
    try:
        return msgspec.json.decode(content, type=Dispatch)
    except msgspec.MsgspecError as error:
        raise ResultsError(f"{path} is damaged: {error}; write it anew with attnbench report") from error


def choose_at(
    dispatch: Dispatch,
    query: Query,
    *,
    needs: Collection[str] = (),
    regret: float | None = None,
    fallback: str | None = None,
) -> Chosen:
    """Return what to use for the call that ``query`` describes, among implementations that refuse nothing in ``needs``.

    If the bound on the regret is larger than ``regret``, the choice is ``fallback``.

    Raises: NoChoiceError if no such call was measured, if several kinds of calls fit, or if the bound is larger than
    ``regret`` and there is no ``fallback``; ValueError for a need that is no feature.
    """
    known = {*FEATURES, *(one for cell in dispatch.cells for offer in cell.offers for one in offer.refused)}
    if strange := [one for one in needs if one not in known]:
        raise ValueError(f"needs must be features, such as {_list_values(known)}, got {strange[0]!r}")
    cell = _find_cell(dispatch.cells, query)
    offers = {one.name: one for one in cell.offers if _suits(one, needs, cell.reference)}
    over = {
        name: {other: math.inf if bound is None else bound for other, bound in one.over.items()}
        for name, one in offers.items()
    }
    bounds = PairBounds(over=over, processes=cell.processes, control_failed=cell.control_failed)
    answer = choose_by_bounds(bounds, {name: one.time_ns for name, one in offers.items()}, offers)
    if answer is None:
        raise NoChoiceError(f"nothing that may be chosen was timed on {cell.case}: {_explain_empty(cell, needs)}")
    if regret is None or (answer.regret is not None and answer.regret <= regret):
        return Chosen(cell=cell, answer=answer, offer=offers[answer.name])
    if fallback is None:
        raise NoChoiceError(_explain_regret(cell, answer, regret))
    # Nothing bounds the time of the fallback: the user named it for this situation.
    answer = Answer(name=fallback, regret=None, unbounded="fallback", processes=cell.processes)
    return Chosen(cell=cell, answer=answer, offer=offers.get(fallback))


def _explain_empty(cell: DispatchCell, needs: Collection[str]) -> str:
    if not cell.offers:
        return "every implementation fails checks, or had the same input values in all calls"
    return f"every implementation refuses {' or '.join(needs)}, or was not asked"


def _explain_regret(cell: DispatchCell, answer: Answer, regret: float) -> str:
    if answer.regret is None:
        bound = f"{answer.name} has no bound on its regret ({answer.unbounded})"
    else:
        bound = f"{answer.name} is up to {100 * answer.regret:.2g} % slower than {answer.behind}"
    return (
        f"regret must be at most {100 * regret:g} %, but {bound} on {cell.case}: time it in more processes, allow a "
        "larger regret, or name a fallback"
    )


def _suits(offer: Offer, needs: Collection[str], reference: str) -> bool:
    """Whether an implementation is known to refuse nothing that is needed; the reference refuses nothing."""
    if not needs or offer.name == reference:
        return True
    return offer.refusals_known and not set(needs) & set(offer.refused)


# Fields in which a cell must equal the query. If no cell does, the first field that excludes all cells is named.
_EXACT = ("machine", "device", "dtype", "passes", "mask", "case", "threads", "heads", "kv_heads", "head_dim")
_SIZES = ("batch", "queries", "keys")


def _find_cell(cells: Sequence[DispatchCell], query: Query) -> DispatchCell:
    """Return the only cell that fits the query.

    Raises: NoChoiceError if there is none, or more than one.
    """
    if not cells:
        raise NoChoiceError("nothing was timed: measure with attnbench profile")
    left = list(cells)
    for field in _EXACT:
        wanted = getattr(query, field)
        known = {getattr(one, field) for one in left}
        left = [one for one in left if wanted is None or _fits(field, getattr(one, field), wanted)]
        if not left:
            raise NoChoiceError(f"nothing was timed with {field}={wanted!r}; measured: {_list_values(known)}")
    fitting = [one for one in left if all(getattr(query, f) in (None, getattr(one, f)) for f in _SIZES)]
    if not fitting:
        nearest = min(left, key=lambda one: _measure_distance(one, query))
        sizes = ", ".join(f"{field}={getattr(nearest, field)}" for field in _SIZES)
        asked = ", ".join(f"{f}={getattr(query, f)}" for f in _SIZES if getattr(query, f) is not None)
        raise NoChoiceError(f"nothing was timed at {asked}; the nearest that was: {sizes} ({nearest.case})")
    if len(fitting) > 1:
        raise NoChoiceError(f"{len(fitting)} timed calls fit: name {_list_differences(fitting)}")
    return fitting[0]


def _fits(field: str, value: object, wanted: object) -> bool:
    """Whether a value is what is wanted; a mask may have the name that the option --mask has for it."""
    return value == wanted or (field == "mask" and value in MASKS.get(str(wanted), ()))


def _list_differences(cells: Sequence[DispatchCell]) -> str:
    """Return the fields in which cells differ, each with its values; the case only if nothing else differs."""
    differing = {}
    for field in (*_EXACT, *_SIZES):
        values = {getattr(one, field) for one in cells}
        if len(values) > 1:
            differing[field] = _list_values(values)
    if len(differing) > 1:
        differing.pop("case", None)
    return " and ".join(f"{field} ({values})" for field, values in differing.items())


def _list_values(values: Set[Any]) -> str:
    ordered = sorted(values, key=lambda value: (value is not None, value))
    more = len(ordered) - SHOWN
    return ", ".join(map(repr, ordered[:SHOWN])) + (f" and {more} more" if more > 0 else "")


def _measure_distance(cell: DispatchCell, query: Query) -> float:
    """Return how far the sizes of a cell are from those of the query: the sum of their relative differences."""
    total = 0.0
    for field in _SIZES:
        wanted, own = getattr(query, field), getattr(cell, field)
        if wanted and own:
            total += max(wanted, own) / min(wanted, own) - 1
    return total
