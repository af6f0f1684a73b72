"""What to use at which shape, for programs: the file ``dispatch.json`` of a report, and the choice from it.

The file has every timed call of the report with all implementations that were timed on it, so that a choice can ask for
less than the report does: only implementations that return weights, for example.
"""

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from attnbench.analysis.coverage import FEWEST_CHECKED
from attnbench.analysis.crossover import DECISIVE, Answer, AnswerKind, Contender, Interval, choose
from attnbench.records.run_file import ResultsError

__all__ = [
    "DISPATCH_SCHEMA",
    "Cell",
    "Choice",
    "Dispatch",
    "NoChoiceError",
    "Offer",
    "OnTie",
    "Query",
    "choose_at",
    "encode_dispatch",
    "read_dispatch",
]

# Version of the format of dispatch.json. It grows with every change that an older reader would misread.
DISPATCH_SCHEMA = 1
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
# What a choice names if nothing is faster than the reference beyond doubt, or if several are equally fast.
OnTie = Literal["reference", "fastest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An implementation that was timed on a call and fails no check."""

    contender: Contender
    # Line of the run file that has the timing; 0 where unknown.
    line: int = 0
    # Number of checked cases of suites on this machine and device.
    checked: int = 0
    # Features that the implementation refuses, such as "weights". ``refusals_known``: whether it is known what the
    # implementation refuses.
    refused: tuple[str, ...] = ()
    refusals_known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
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


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """The content of dispatch.json."""

    kind: str = "attnbench-dispatch"
    schema: int = DISPATCH_SCHEMA
    # Versions of libraries, by name, of each run by its id.
    versions: dict[str, dict[str, str]] = {}
    cells: list[Cell] = []


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
class Choice:
    """What to use for a call, and the evidence for it."""

    name: str
    # What the measurement says; see ``AnswerKind``. The name is the reference unless this is ``winner`` or ``tie``, or
    # the fastest was asked for.
    kind: AnswerKind
    # Every implementation that the measurement does not tell apart from the fastest, the fastest first.
    tied: tuple[str, ...] = ()
    # Time of the reference divided by the time of ``name``, with its confidence interval; None for the reference.
    gain: Interval | None = None
    # Number of checked cases of ``name``; a number below 20 is no verdict on its conformance.
    checked: int = 0
    # Where the timing is stored. ``line``: number of the line in the file of the run; 0 where unknown.
    run: str = ""
    line: int = 0
    case: str = ""
    machine: str = ""
    # Number of threads of the timed calls; with another number, another implementation may be the fastest.
    threads: int = 0

    def __str__(self) -> str:
        gain = ""
        if self.gain is not None:
            gain = f", {self.gain.value:.2f}× as fast as the reference ({self.gain.low:.2f} to {self.gain.high:.2f})"
        others = ", ".join(name for name in self.tied if name != self.name)
        kind = (
            "" if self.kind == "winner" else f", {self.kind.replace('_', ' ')}" + (f" with {others}" if others else "")
        )
        place = f"{self.run} line {self.line}" if self.line else self.run
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        return f"{self.name}{gain}{kind} [{place}: {self.case}{threads}]"


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
    try:
        return msgspec.json.decode(content, type=Dispatch)
    except msgspec.MsgspecError as error:
        raise ResultsError(f"{path} is damaged: {error}; write it anew with attnbench report") from error


def choose_at(dispatch: Dispatch, query: Query, *, needs: Collection[str] = (), on_tie: OnTie = "reference") -> Choice:
    """Return what to use for the call that ``query`` describes, among implementations that refuse nothing in ``needs``.

    Raises: NoChoiceError if no such call was measured, or if several kinds of calls fit; ValueError for a need that is
    no feature.
    """
    known = {*FEATURES, *(one for cell in dispatch.cells for offer in cell.offers for one in offer.refused)}
    if strange := [one for one in needs if one not in known]:
        raise ValueError(f"needs must be features, such as {_list_values(known)}, got {strange[0]!r}")
    cell = _find_cell(dispatch.cells, query)
    offers = [one for one in cell.offers if _suits(one, needs, cell.reference)]
    reference = next((one for one in offers if one.contender.implementation == cell.reference), None)
    if reference is None:
        raise NoChoiceError(f"{cell.reference}, the reference, was not timed on {cell.case}: no time can be compared")
    if any(one.checked >= FEWEST_CHECKED for one in offers):
        offers = [one for one in offers if one.checked >= FEWEST_CHECKED or one is reference]
    answer = choose([one.contender for one in offers], cell.reference)
    return _make_choice(cell, answer, {one.contender.implementation: one for one in offers}, on_tie)


def _suits(offer: Offer, needs: Collection[str], reference: str) -> bool:
    """Whether an implementation is known to refuse nothing that is needed; the reference refuses nothing."""
    if not needs or offer.contender.implementation == reference:
        return True
    return offer.refusals_known and not set(needs) & set(offer.refused)


def _make_choice(cell: Cell, answer: Answer, offers: dict[str, Offer], on_tie: OnTie) -> Choice:
    decided = answer.kind == "winner" or (on_tie == "fastest" and answer.kind in DECISIVE)
    name = answer.names[0] if decided else cell.reference
    offer = offers[name]
    ratio = offer.contender.ratio
    return Choice(
        name=name,
        kind=answer.kind,
        tied=() if answer.kind == "winner" else (*answer.names, *answer.undecided),
        gain=None if name == cell.reference or ratio is None else ratio.invert(),
        checked=offer.checked,
        run=offer.contender.run,
        line=offer.line,
        case=cell.case,
        machine=cell.machine,
        threads=cell.threads,
    )


# Fields in which a cell must equal the query. If no cell does, the first field that excludes all cells is named.
_EXACT = ("machine", "device", "dtype", "passes", "mask", "case", "threads", "heads", "kv_heads", "head_dim")
_SIZES = ("batch", "queries", "keys")


def _find_cell(cells: Sequence[Cell], query: Query) -> Cell:
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


def _list_differences(cells: Sequence[Cell]) -> str:
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


def _measure_distance(cell: Cell, query: Query) -> float:
    """Return how far the sizes of a cell are from those of the query: the sum of their relative differences."""
    total = 0.0
    for field in _SIZES:
        wanted, own = getattr(query, field), getattr(cell, field)
        if wanted and own:
            total += max(wanted, own) / min(wanted, own) - 1
    return total
