"""One fact of each kind, as a check would make it."""

from attnbench.records.value_facts import (
    BitsDiffer,
    Compared,
    ConditionViolated,
    Coordinate,
    DeclaredNanMissing,
    Fault,
    Limit,
    LooksLike,
    MeanAmplitudeOff,
    MeanOff,
    NearLimit,
    NotDiagnosed,
    NotEvaluated,
    NotFinite,
    NothingDropped,
    PolicyDeviation,
    RowSumOff,
    ScaleOff,
    SeenPolicy,
    SharedPositions,
    SlopeOff,
    StridesMisread,
    TimedCallChecked,
    UnexpectedQuantity,
    ValueFact,
    ValuesOff,
    WrongDtype,
    WrongShape,
    phrase,
)

OUTPUT = Compared(quantity="output")
PLACE = (
    Coordinate(dimension=0, axis="batch", position=1),
    Coordinate(dimension=1, axis="feature", position=7),
    Coordinate(dimension=1, axis="head", position=2, groups=True),
)
SHARED = (SharedPositions(axis="query", positions=(64, 96), is_range=True, to_the_end=True),)
BUDGET = Limit(allowed=1e-6, origin="budget", factor=4.0, model=2.5e-7, yardstick=2e-7)
OFF = ValuesOff(
    compared=OUTPUT, count=3, total=12, worst=0.25, place=PLACE, value=1.25, expected=1.0, shared=SHARED, limit=BUDGET
)
SCALE = ScaleOff(quantity="output", probe="softmax_scale", off=0.0962, allowed=1e-3)
SIGN = Fault(model=phrase("logits_negated"), acts="backward_alone")
LOOKS = LooksLike(faults=(Fault(model=phrase("scale_of_width")), SIGN))
DEVIATION = PolicyDeviation(policies=(SeenPolicy(name="hidden_rows", seen="mean", declared="zero"),))
FACTS: tuple[ValueFact, ...] = (
    OFF,
    ValuesOff(
        compared=Compared(quantity="output", how=phrase("second_call"), rows="masked"), count=1, total=1, worst=1e-9,
        place=PLACE[:1], value=1.0 + 1e-9, expected=1.0, shared=(), limit=Limit(allowed=1e-12, origin="join"),
    ),
    NotFinite(
        compared=OUTPUT, count=1, total=6, place=(Coordinate(dimension=0, axis="", position=3),), value="nan",
        expected=2.0, shared=(SharedPositions(axis="query", positions=(1, 4)),),
    ),
    BitsDiffer(
        compared=OUTPUT, count=1, total=6, place=PLACE, value=98.00001, expected=98.0,
        shared=(SharedPositions(axis="key", positions=("the bias_k key",)),),
    ),
    WrongShape(compared=OUTPUT, shape=(1, 3), expected=(2, 3)),
    WrongDtype(compared=OUTPUT, dtype="float64", expected="float32"),
    UnexpectedQuantity(quantity="weights"),
    SCALE,
    RowSumOff(compared=Compared(quantity="weights"), off="inf", allowed=1e-6),
    SlopeOff(
        compared=Compared(quantity="grad.key", how=phrase("second_derivative")), off=0.5, slope=4.0, allowed=1e-5,
        rounded=False,
    ),
    SlopeOff(compared=Compared(quantity="grad.key"), off=0.5, slope=4.0, allowed=0.25, rounded=True),
    MeanOff(quantity="output", draws=9, off=11.0, allowed=8.0, place=PLACE),
    MeanAmplitudeOff(quantity="output", draws=9, share=0.08, off=7.0, allowed=6.0),
    NothingDropped(quantity="output", draws=9),
    DeclaredNanMissing(),
    ConditionViolated(violation=phrase("dropped_share", count=3, total=4, rate=0.5)),
    ConditionViolated(violation=phrase("not_finite", quantities="output"), rows="masked_or_other"),
    LOOKS,
    StridesMisread(),
    NotDiagnosed(limit=4_000_000),
    DEVIATION,
    PolicyDeviation(policies=(SeenPolicy(name="detached_weights", seen=False, declared=True),)),
    TimedCallChecked(calls=60),
    NotEvaluated(raised="TypeError", message="no tensor"),
    NearLimit(share=0.8),
)  # fmt: skip
