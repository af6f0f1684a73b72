"""The words of the command: a table of attention functions and situations, and a sentence for each deviation."""

from collections import Counter
from collections.abc import Iterable, Iterator

from attnbench.words.findings import describe_facts
from attnbench.words.speed import explain_no_verdict
from attnmodels import facts
from attnmodels.facts import (
    MODEL,
    OUTPUT,
    Cause,
    Cell,
    CheckedSource,
    Inspection,
    ModelFact,
    Status,
    TimedModel,
    Visibility,
)
from attnmodels.upstream import find_upstream

__all__ = [
    "LEGEND", "MARKS", "TIME_HEAD", "describe_deviations", "describe_inspection", "describe_left_out", "describe_time",
    "describe_timing", "describe_versions", "format_time",
]  # fmt: skip

MARKS: dict[Status, str] = {"held": "yes", "deviates": "NO", "refused": "refused", "failed": "FAILED"}
LEGEND = (
    "yes: every call of every layer is right; end to end: output and gradients of the whole model are within its error "
    "budget. NO: a call, or the whole, deviates. refused: the function or the model refuses aloud. FAILED: it raises "
    "another exception, or its process ends. Empty: left out, for a reason that is told. "
    f"{MODEL}: the model's own masks and numbers, with exact attention; where it says NO, the model is wrong with "
    "every function."
)
TIME_HEAD = ("attention", "time of a call", "ratio", "verdict", "error / allowed")


def format_time(found: TimedModel) -> tuple[str, ...]:
    """Return the row of an attention function in the table of times."""
    share = f"{found.share:.2f}"
    if found.median_ns is None:
        return found.attention, "", "", "wrong output in a timed call", share
    time = f"{found.median_ns / 1e6:.4g} ms"
    if found.verdict is None:
        return found.attention, time, "1", "", share
    ratio, rough = found.verdict.ratio, found.rough_ratio
    shown = f"about {rough:.2g}" if rough else ""
    if ratio is not None:
        shown = f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    why = explain_no_verdict(found.verdict.reason)
    return found.attention, time, shown, f"{found.verdict.state}{f': {why}' if why else ''}", share


def describe_time(found: TimedModel) -> str:
    """Return the time of an attention function in a few words."""
    _, time, ratio, verdict, _ = format_time(found)
    return ", ".join(one for one in (time, f"{ratio} × the first" if found.verdict else "", verdict) if one)


def describe_timing(found: CheckedSource) -> str:
    """Return a sentence about what was timed."""
    first = found.times[0].attention
    told = [
        f"Whole model on {found.timed_batch} sequences of up to {found.timed_length} tokens, without gradients; ratio "
        f"to {first}, from interleaved calls, with its confidence interval."
    ]
    if found.inspection.changed:
        told.append("The model is small: --full-size, or a configuration of your own, has times of real sizes.")
    if any(one.verdict and one.verdict.reason for one in found.times):
        told.append("For a verdict, run it again while nothing else runs, or with more --processes.")
    return " ".join(told)


def describe_inspection(found: Inspection) -> Iterator[str]:
    """Yield sentences about the model and about how it was made small."""
    layers = "1 attention layer" if len(found.layers) == 1 else f"{len(found.layers)} attention layers"
    yield f"{found.model}: {found.parameters:,} weights, {layers}."
    if found.changed:
        shown = (f"{name} {change}" for name, change in found.changed.items() if "_token_id" not in name)
        yield f"Made small: {', '.join(one for one in shown if not set('[{') & set(one))}."
    if found.cast_floor:
        yield (
            f"Casts to float32 inside the model change its attention by up to {found.cast_floor:.1e}; "
            "the exact run makes them casts to float64."
        )
    if found.unseen_layers:
        first, *others = found.unseen_layers
        more = f" and {len(others)} more" if others else ""
        yield f"Not checked: {first}{more}, which call no attention function here."
    if found.unknown_patterns:
        yield (
            f"The masks of {', '.join(found.unknown_patterns)} are neither full, causal nor a window: "
            "functions are compared with them, and they are not checked themselves."
        )


def describe_versions(found: Inspection) -> str:
    """Return the versions of torch and of the libraries of models."""
    return f"Versions: {', '.join(f'{name} {version}' for name, version in found.versions.items())}."


def describe_left_out(found: Inspection) -> str:
    """Return a sentence about the situations that the model does not have."""
    reasons: dict[str, list[str]] = {}
    for one in found.left_out:
        reasons.setdefault(one.reason, []).append(one.situation)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())


def describe_deviations(model: str, cells: Iterable[Cell]) -> Iterator[str]:
    """Yield a sentence for each kind of deviation: of its first situation, with the names of the others.

    What upstream says of it follows, if that is known.
    """
    groups: dict[object, list[Cell]] = {}
    cells = list(cells)
    counts = Counter(cell.attention for cell in cells)
    for cell in cells:
        if cell.status != "held":
            groups.setdefault((cell.attention, cell.status, cell.layers, *map(_find_kind, cell.facts)), []).append(cell)
    for first, *others in groups.values():
        also = f" (also {', '.join(cell.situation for cell in others)})" if others else ""
        everywhere = bool(others) and len(others) + 1 == counts[first.attention]
        where = "in every situation" if everywhere else f"{first.situation}{also}"
        wrong = [fact for fact in first.facts if not isinstance(fact, facts.WholeError) or fact.share > 1]
        known = find_upstream(model, first.attention, first.situation)
        yield (
            f"{first.attention}, {where}: {_describe_layers(first)}{'; '.join(map(_describe, wrong))}"
            f"{f'. Upstream: {known}' if known else ''}"
        )


def _find_kind(fact: ModelFact) -> object:
    """Return what facts of one kind have in common."""
    match fact:
        case facts.Visibility() | facts.WrongResult():
            return type(fact).__name__, fact.cause
        case facts.Raised():
            return fact
        case facts.NumbersDiffer() | facts.PathsDiffer():
            return type(fact).__name__, fact.tensor
        case facts.WholeError():
            return type(fact).__name__, fact.share > 1
        case _:
            return type(fact).__name__


def _describe_layers(cell: Cell) -> str:
    if not any(cell.layers):
        return ""
    first, *others = cell.layers
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
        case facts.NotDropped():
            return f"dropout of {fact.dropout:g} in training is ignored: two equal calls give the same"
        case facts.NotFiniteAtPadding():
            return (
                f"the outputs of {fact.queries} padding queries are not finite: the next layer spreads them to tokens"
            )
        case facts.NumbersDiffer() | facts.PathsDiffer():
            return _describe_numbers(fact)
        case facts.WholeError():
            what = "the output" if fact.tensor == OUTPUT else f"the gradient of {fact.tensor}"
            return f"{what} is {float(fact.error):.2g} from float64 (allowed {float(fact.allowed):.2g})"
        case facts.CallsDiffer():
            return f"the layer was to be called with {fact.expected}, and was with {fact.came or 'nothing'}"
        case facts.Raised():
            return f"{'refused' if fact.kind == 'Refusal' else fact.kind}: {fact.message}"


def _describe_numbers(fact: facts.NumbersDiffer | facts.PathsDiffer) -> str:
    if fact.apart in ("nan", "inf"):
        return f"{fact.tensor} is not finite before attention is called"
    other = "exact attention" if isinstance(fact, facts.NumbersDiffer) else "the sequence alone"
    return f"{fact.tensor} differs by {float(fact.apart):.2g} from that of {other} (allowed {float(fact.allowed):.1g})"


def _describe_visibility(fact: Visibility) -> str:
    counts = [
        f"{count:,} {text}" for count, text in ((fact.seen, "hidden keys are seen"), (fact.hidden, "keys are not seen"))
        if count
    ]  # fmt: skip
    without = "" if fact.masked else "; the model hands it no mask"
    return _join(_describe_cause(fact.cause), f"{' and '.join(counts)}, of {fact.pairs:,}{without}")


def _describe_cause(cause: Cause | None) -> str:
    if cause is None:
        return ""
    if cause.argument == "num_key_value_groups":
        return "query heads are given to key heads in another order"
    if cause.argument == "past_key_values" and cause.change == "shifted":
        direction = "earlier" if cause.by < 0 else "later"
        return f"queries are taken for tokens {abs(cause.by)} positions {direction} (past_key_values)"
    if cause.change == "shifted":
        return f"{cause.argument} is off by {cause.by:+d}"
    return f"{cause.argument} is {cause.change}"


def _join(cause: str, rest: str) -> str:
    return f"{cause}: {rest}" if cause else rest
