"""The words of the command: a table of attention functions and situations, and a sentence for each deviation."""

from collections.abc import Iterable, Iterator, Sequence

from attnbench.words.findings import describe_facts
from attnmodels import facts
from attnmodels.facts import MODEL, Cause, Cell, Inspection, ModelFact, Visibility

__all__ = ["LEGEND", "describe_deviations", "describe_inspection", "describe_left_out", "make_head", "make_row"]

MARKS = {"held": "yes", "deviates": "NO", "refused": "refused", "failed": "FAILED"}
LEGEND = (
    "yes: every call of every layer is right. NO: a call deviates. refused: the function or the model refuses aloud. "
    f"{MODEL}: the model's own masks and numbers, with exact attention."
)


def make_head(attentions: Sequence[str]) -> tuple[str, ...]:
    """Return the head of the table, which has a column for each attention function."""
    return ("situation", MODEL, *attentions)


def make_row(situation: str, cells: Iterable[Cell]) -> tuple[str, ...]:
    """Return the row of a situation."""
    return (situation, *(MARKS[cell.status] for cell in cells))


def describe_inspection(found: Inspection) -> Iterator[str]:
    """Yield sentences about the model and about how it was made small."""
    yield f"{found.model}: {found.parameters:,} random weights, {len(found.layers)} attention layers."
    if found.changed:
        shown = (f"{name} {change}" for name, change in found.changed.items() if "_token_id" not in name)
        yield f"Made small: {', '.join(one for one in shown if '[' not in one)}."
    if found.cast_floor:
        yield (
            f"Casts to float32 inside the model change its attention by up to {found.cast_floor:.1e}; "
            "the exact run makes them casts to float64."
        )
    if found.unknown_patterns:
        yield (
            f"The masks of {', '.join(found.unknown_patterns)} are neither full, causal nor a window: "
            "functions are compared with them, and they are not checked themselves."
        )


def describe_left_out(found: Inspection) -> str:
    """Return a sentence about the situations that the model does not have."""
    reasons: dict[str, list[str]] = {}
    for one in found.left_out:
        reasons.setdefault(one.reason, []).append(one.situation)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())


def describe_deviations(cells: Iterable[Cell]) -> Iterator[str]:
    """Yield a sentence for each kind of deviation: of its first situation, with the names of the others."""
    groups: dict[object, list[Cell]] = {}
    for cell in cells:
        if cell.status != "held":
            groups.setdefault((cell.attention, cell.status, cell.layers, *map(_find_kind, cell.facts)), []).append(cell)
    for first, *others in groups.values():
        also = f" (also {', '.join(cell.situation for cell in others)})" if others else ""
        what = "; ".join(map(_describe, first.facts))
        yield f"{first.attention}, {first.situation}{also}: {_describe_layers(first)}{what}"


def _find_kind(fact: ModelFact) -> object:
    """Return what facts of one kind have in common."""
    match fact:
        case facts.Visibility() | facts.WrongResult():
            return type(fact).__name__, fact.cause
        case facts.Raised():
            return fact
        case facts.NumbersDiffer() | facts.PathsDiffer():
            return type(fact).__name__, fact.tensor
        case _:
            return type(fact).__name__


def _describe_layers(cell: Cell) -> str:
    first, *others = cell.layers
    if not first:
        return ""
    more = f" and {len(others)} more {'layer' if len(others) == 1 else 'layers'}" if others else ""
    return f"{first}{more}: "


def _describe(fact: ModelFact) -> str:
    match fact:
        case facts.Visibility():
            return _describe_visibility(fact)
        case facts.WrongResult():
            return _join(_describe_cause(fact.cause), describe_facts(fact.facts))
        case facts.Unrepeatable():
            return f"dropout is not 0, as asked: two equal calls differ by {float(fact.apart):.2g}"
        case facts.NotFiniteAtPadding():
            return (
                f"the outputs of {fact.queries} padding queries are not finite: the next layer spreads them to tokens"
            )
        case facts.NumbersDiffer() | facts.PathsDiffer():
            other = "exact attention" if isinstance(fact, facts.NumbersDiffer) else "the sequence alone"
            apart, allowed = f"{float(fact.apart):.2g}", f"{float(fact.allowed):.1g}"
            return f"{fact.tensor} differs by {apart} from that of {other} (allowed {allowed})"
        case facts.CallsDiffer():
            return f"the layer was to be called with {fact.expected}, and was with {fact.came or 'nothing'}"
        case facts.Raised():
            return f"{'refused' if fact.kind == 'Refusal' else fact.kind}: {fact.message}"


def _describe_visibility(fact: Visibility) -> str:
    counts = [
        f"{count:,} {text}" for count, text in ((fact.seen, "hidden keys are seen"), (fact.hidden, "keys are not seen"))
        if count
    ]  # fmt: skip
    without = "" if fact.masked else "; no mask reaches it"
    return _join(_describe_cause(fact.cause), f"{' and '.join(counts)}, of {fact.pairs:,}{without}")


def _describe_cause(cause: Cause | None) -> str:
    if cause is None:
        return ""
    if cause.argument == "num_key_value_groups":
        return "query heads are given to key heads in another order"
    if cause.change == "shifted":
        return f"{cause.argument} is off by {cause.by:+d}"
    return f"{cause.argument} is {cause.change}"


def _join(cause: str, rest: str) -> str:
    return f"{cause}: {rest}" if cause else rest
