"""Tests of the grouping of failures by their cause, with made-up findings."""

import random
from collections import Counter
from typing import Any

import pytest

from attnbench.analysis.deviations import make_deviation
from attnbench.analysis.failure_groups import Failure, Key, Kind, _join_by_key
from attnbench.analysis.root_causes import RootCause, find_root_causes
from attnbench.interface import Policies
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import Argument, Raised
from attnbench.records.types import Finding, Result, Status
from attnbench.records.value_facts import (
    Acts,
    BitsDiffer,
    Compared,
    ConditionViolated,
    Coordinate,
    Fault,
    Limit,
    LooksLike,
    NotDiagnosed,
    NotEvaluated,
    Phrase,
    Rows,
    RowSumOff,
    ScaleOff,
    StridesMisread,
    ValuesOff,
)

CASES = [f"multihead/B{n}.L5.S7.E8.H2/-/mask=none/regime=plain/seed=0/float32/cpu/eval" for n in range(4)]
FIRST, SECOND, THIRD, FOURTH = CASES
OUTPUT = Compared(quantity="output")
MEAN = make_deviation(Policies(), hidden_rows="mean")
MEAN_OF_SOFTMAX = make_deviation(Policies(), hidden_rows="mean", hidden_row_gradients="softmax")
EMPTY = make_deviation(Policies(), empty_batches="refused")
VIOLATED = ConditionViolated(violation=Phrase(key="x"))
SCALE = ScaleOff(quantity="output", probe="softmax_scale", off=-0.2, allowed=0.1)
ROW_SUM = RowSumOff(compared=Compared(quantity="weights"), off=0.2, allowed=0.1)


def fail(check: str, *facts: Fact, status: Status = "failed") -> Finding:
    """Return a finding that fails."""
    return Finding(check=check, status=status, facts=facts)


def values_off(*, place: int = 0, value: float = 1.0) -> ValuesOff:
    """Return the fact that values are off, most at a place."""
    return ValuesOff(
        compared=OUTPUT, count=1, total=4, worst=1.0, place=(Coordinate(dimension=0, axis="", position=place),),
        value=value, expected=0.0, shared=(), limit=Limit(allowed=1.0, origin="budget"),
    )  # fmt: skip


def differ(rows: Rows = "") -> BitsDiffer:
    """Return the fact that bits differ."""
    compared = Compared(quantity="output", rows=rows)
    return BitsDiffer(compared=compared, count=3, total=4, place=(), value=1.0, expected=0.0, shared=())


def raised(message: str, kind: str = "RuntimeError") -> NotEvaluated:
    """Return the fact of an exception."""
    return NotEvaluated(raised=kind, message=message)


def looks(*names: str, acts: Acts = "pass", of_mask: bool = False) -> LooksLike:
    """Return a diagnosis with these fault models."""
    return LooksLike(faults=tuple(Fault(model=Phrase(key=name), acts=acts, of_mask=of_mask) for name in names))


def wrong(check: str, *, allowed: float = 1.0, **place: Any) -> Finding:
    """Return a finding with values that are off by twice the allowed error."""
    return Finding(check=check, status="failed", facts=(values_off(**place),), measured=2.0, allowed=allowed)


def group(*failures: tuple[str, Finding], name: str = "mine") -> list[RootCause]:
    """Return the causes of failures, each given with its case."""
    return find_root_causes(
        [Result(run="r", implementation=name, case=case, findings=(finding,)) for case, finding in failures]
    )


def test_one_exception_in_many_checks_is_one_cause() -> None:
    """An exception is one cause in all checks and cases, whatever the numbers in its message."""
    (cause,) = group(
        (FIRST, fail("forward_parity", raised("shape [2, 5]"), status="error")),
        (FIRST, fail("input_gradients", raised("shape [2, 5]"), status="error")),
        (SECOND, fail("forward_parity", raised("shape [3, 4, 7]"), status="error")),
    )
    assert (cause.kind, dict(cause.checks), cause.cases) == (
        "exception",
        {"forward_parity": 2, "input_gradients": 1},
        2,
    )
    assert cause.facts == (raised("shape [2, 5]"),)
    assert cause.reproduce == f"attnbench reproduce '{FIRST}' --check forward_parity mine"


@pytest.mark.parametrize("message", ["got 3", "got 1e-05", "got 0.5", "got 2, 5, 8", "got 3 x 4", "got 12×7"])
def test_numbers_of_a_message_do_not_divide_a_cause(message: str) -> None:
    """Integers, fractions, powers of ten and lists of numbers in messages are alike; other words are not."""
    causes = group(
        (FIRST, fail("forward_parity", raised("got 7"), status="error")),
        (SECOND, fail("forward_parity", raised(message), status="error")),
        (THIRD, fail("forward_parity", raised(f"{message} rows"), status="error")),
    )
    assert [len(cause.failures) for cause in causes] == [2, 1]


def test_of_equally_many_failures_those_with_a_diagnosis_come_first_and_exceptions_last() -> None:
    """Causes that say what to mend come before those that do not; exceptions come last, else the order stays."""
    causes = group(
        (FIRST, fail("inputs_untouched", VIOLATED)),
        (FIRST, fail("repeats_itself", VIOLATED)),
        (SECOND, fail("forward_parity", differ(), looks("no_scale"))),
        (SECOND, fail("empty_batch", raised("no"), EMPTY, status="error")),
    )
    assert [cause.finding.check for cause in causes] == [
        "forward_parity", "inputs_untouched", "repeats_itself", "empty_batch",
    ]  # fmt: skip


def test_an_exception_is_one_cause_wherever_it_was_raised() -> None:
    """Place and arguments of an exception do not divide a cause; type and message do."""
    arguments = (Argument(name="query", shape=(2, 5), dtype="float32"),)
    places = (
        Raised(kind="TypeError", message="got 3", file="a.py", line=3, function="f"),
        Raised(kind="TypeError", message="got 4", file="b.py", line=4, function="g", arguments=arguments),
        Raised(kind="ValueError", message="got 3", file="a.py", line=3, function="f"),
    )
    causes = group(*spread(*(fail("forward_parity", fact, status="error") for fact in places)))
    assert [len(cause.failures) for cause in causes] == [2, 1]


def test_two_exceptions_are_two_causes() -> None:
    """Exceptions of two types, with two messages, or with two statuses, are two causes, also in one check."""
    causes = group(
        (FIRST, fail("forward_parity", raised("no"), status="error")),
        (SECOND, fail("forward_parity", raised("no", "ValueError"), status="error")),
        (THIRD, fail("forward_parity", raised("never", "ValueError"), status="error")),
        (FOURTH, fail("forward_parity", raised("no"), status="out_of_memory")),
    )
    assert [len(cause.failures) for cause in causes] == [1] * 4


def test_an_exception_on_empty_batches_alone_is_a_deviation() -> None:
    """If empty batches alone raise, the cause is the deviation; if others raise the same, it is the exception."""
    (cause,) = group(
        (FIRST, fail("forward_parity", raised("no"), EMPTY, status="error")),
        (FIRST, fail("input_gradients", raised("not", "ValueError"), EMPTY, status="error")),
    )
    assert (cause.kind, cause.facts) == ("deviation", (EMPTY,))
    (cause,) = group(
        (FIRST, fail("forward_parity", raised("no"), EMPTY, status="error")),
        (SECOND, fail("forward_parity", raised("no"), status="error")),
    )
    assert (cause.kind, len(cause.failures)) == ("exception", 2)


def test_deviations_of_fully_masked_rows_are_one_cause() -> None:
    """Findings that show a part of what fully masked rows do, or are confined to them, are one cause."""
    (cause,) = group(
        (FIRST, fail("forward_parity", differ(), MEAN)),
        (SECOND, fail("input_gradients", differ(), MEAN_OF_SOFTMAX)),
        (SECOND, fail("padding_cannot_leak", differ("masked"))),
        (SECOND, fail("stays_finite", ConditionViolated(violation=Phrase(key="x"), rows="masked_or_other"))),
    )
    assert list(cause.checks) == ["forward_parity", "input_gradients", "padding_cannot_leak", "stays_finite"]
    assert cause.facts == (MEAN_OF_SOFTMAX,)
    assert [one.finding.check for one in cause.attributed] == ["padding_cannot_leak", "stays_finite"]
    assert cause.count_attributions() == {"masked_rows": 2}


def test_contradicting_deviations_are_two_causes() -> None:
    """Fully masked rows that are the mean in one case and NaN in another are two causes."""
    nan = make_deviation(Policies(), hidden_rows="nan")
    causes = group((FIRST, fail("forward_parity", differ(), MEAN)), (SECOND, fail("forward_parity", differ(), nan)))
    assert [cause.facts for cause in causes] == [(MEAN,), (nan,)]


def test_a_failure_in_fully_masked_rows_without_a_deviation_keeps_its_check() -> None:
    """A failure that is confined to fully masked rows is told by its check if no deviation explains it."""
    (cause,) = group((FIRST, fail("padding_cannot_leak", differ("masked"))))
    assert (cause.kind, cause.facts) == ("check", ())


def test_one_diagnosis_in_several_checks_is_one_cause() -> None:
    """A diagnosis joins checks. An ambiguous one, and failures of its check without one, join it."""
    (cause,) = group(
        (FIRST, fail("forward_parity", differ(), looks("no_scale", "wrong_sign"))),
        (SECOND, fail("input_gradients", differ(), looks("no_scale"))),
        (THIRD, fail("forward_parity", differ())),
    )
    assert (cause.facts, dict(cause.checks)) == ((looks("no_scale"),), {"forward_parity": 2, "input_gradients": 1})
    assert cause.count_attributions() == {"same_check": 1}


def test_a_diagnosis_of_one_check_is_told_by_check() -> None:
    """Diagnoses that occur in a single check give one entry for the check, as failures without diagnosis do."""
    (cause,) = group(
        (FIRST, fail("forward_parity", differ(), looks("no_scale"))),
        (SECOND, fail("forward_parity", differ(), looks("wrong_sign"))),
        (THIRD, fail("forward_parity", differ())),
    )
    assert (cause.kind, len(cause.failures)) == ("check", 3)


def off(check: str, *faults: str, **properties: Any) -> Finding:
    """Return a finding with wrong values; with faults, its diagnosis names them."""
    return fail(check, differ(), *([looks(*faults, **properties)] if faults else []))


def spread(*findings: Finding) -> list[tuple[str, Finding]]:
    """Give each finding a case."""
    return [(CASES[number % len(CASES)], finding) for number, finding in enumerate(findings)]


def test_a_diagnosis_of_few_findings_names_no_cause() -> None:
    """A diagnosis of 3 of 12 findings names no cause: the checks do, and say how many findings have the diagnosis."""
    told = [off("forward_parity", "no_scale"), off("forward_parity", "no_scale"), off("input_gradients", "no_scale")]
    causes = group(*spread(*told, *[off("forward_parity")] * 6, *[off("input_gradients")] * 3))
    assert [(cause.kind, cause.finding.check, len(cause.failures)) for cause in causes] == [
        ("check", "forward_parity", 8), ("check", "input_gradients", 4),
    ]  # fmt: skip
    first, second = causes
    assert first.share is not None
    assert (first.share.diagnosis, first.share.count, first.share.total) == (looks("no_scale"), 2, 8)
    assert second.share is None
    assert [len(cause.finding.facts) for cause in causes] == [1, 1]


def test_a_diagnosis_of_half_the_findings_names_no_cause_and_of_more_than_half_does() -> None:
    """Most findings are more than half of those that could have a diagnosis."""
    told = [off("forward_parity", "no_scale"), off("input_gradients", "no_scale")]
    assert {cause.kind for cause in group(*spread(*told, *[off("forward_parity")] * 2))} == {"check"}
    (cause,) = group(*spread(*told, off("forward_parity")))
    assert (cause.kind, len(cause.evidence)) == ("diagnosis", 2)


def test_findings_that_cannot_have_a_diagnosis_do_not_count_against_it() -> None:
    """A case that is too large for a diagnosis joins the diagnosis of its check."""
    large = fail("forward_parity", differ(), NotDiagnosed(limit=10))
    told = [off("forward_parity", "no_scale"), off("input_gradients", "no_scale")]
    (cause,) = group(*spread(*told, *[large] * 5))
    assert (cause.kind, len(cause.failures)) == ("diagnosis", 7)


def test_a_diagnosis_keeps_the_checks_that_it_fits() -> None:
    """Where a diagnosis fits all findings of two checks and few of a third, the third is told apart."""
    told = [off(check, "no_scale") for check in ("forward_parity", "weights_parity", "input_gradients")]
    causes = group(*spread(*told, *[off("input_gradients")] * 9))
    assert [(cause.kind, list(cause.checks)) for cause in causes] == [
        ("check", ["input_gradients"]), ("diagnosis", ["forward_parity", "weights_parity"]),
    ]  # fmt: skip


def test_a_fault_of_the_backward_pass_at_least_is_the_same_fault() -> None:
    """A diagnosis that is limited because the case shows it only in gradients joins the same fault without limits."""
    limited = off("input_gradients", "no_scale", acts="backward_at_least")
    (cause,) = group(*spread(off("forward_parity", "no_scale"), limited))
    assert (cause.facts, cause.attributed) == ((looks("no_scale"),), ())


def test_a_diagnosis_of_strides_joins_checks() -> None:
    """Strides that are misread in two checks are one cause."""
    checks = ("strided_inputs", "expanded_inputs")
    (cause,) = group(*spread(*(fail(check, differ(), StridesMisread()) for check in checks)))
    assert cause.facts == (StridesMisread(),)


def test_a_scale_is_told_by_the_finding_that_measured_it() -> None:
    """The number of the cause and its command are of one finding, also if another check comes first."""
    gradient = fail(
        "effective_gradient_scale", ScaleOff(quantity="grad.query", probe="amplitude", off=0.5, allowed=0.1)
    )
    output = fail("effective_scale", SCALE)
    (cause,) = group((FIRST, gradient), (SECOND, output))
    assert (cause.facts, cause.finding, cause.attributed) == ((SCALE,), output, ())
    assert cause.reproduce == f"attnbench reproduce '{SECOND}' --check effective_scale mine"


def test_a_scale_that_is_no_number_is_no_cause() -> None:
    """A scale of NaN measures nothing."""
    nan = ScaleOff(quantity="output", probe="softmax_scale", off="nan", allowed=0.1)
    causes = group((FIRST, fail("effective_scale", nan)), (FIRST, wrong("forward_parity")))
    assert [cause.kind for cause in causes] == ["check", "check"]


def test_wrong_values_are_attributed_to_a_wrong_scale() -> None:
    """Beside a measured scale, findings with wrong values are counted with it, with the reason."""
    values = wrong("forward_parity")
    (scale,) = group((FIRST, values), (FIRST, fail("effective_scale", SCALE)))
    assert [failure.finding for failure in scale.attributed] == [values]
    assert scale.count_attributions() == {"wrong_scale": 1}


def test_what_is_measured_as_a_number_joins_the_diagnosis_of_its_case() -> None:
    """A scale and a sum of rows that are off on a case with a diagnosis are no causes of their own."""
    told = [off(check, "no_scale") for check in ("forward_parity", "weights_parity")]
    others = (fail("effective_scale", SCALE), fail("weights_are_shares", ROW_SUM))
    (cause,) = group(*((FIRST, one) for one in (*told, *others)))
    assert (cause.kind, cause.facts, len(cause.failures)) == ("diagnosis", (looks("no_scale"),), 4)
    assert cause.count_attributions() == {"same_case": 2}


def test_a_number_of_a_case_without_the_diagnosis_is_a_cause_of_its_own() -> None:
    """On another case, or on a case whose values the diagnosis does not explain, a scale that is off stays apart."""
    told = [(FIRST, off("forward_parity", "no_mask")), (FIRST, off("input_gradients", "no_mask"))]
    for others in ([], [(SECOND, off("forward_parity"))]):
        causes = group(*told, (SECOND, fail("effective_scale", SCALE)), *others)
        assert [cause.finding.check for cause in causes] == ["forward_parity", "effective_scale"]


def test_wrong_values_of_a_case_join_the_diagnosis_that_explains_the_case() -> None:
    """Values that are off beyond an allowed error join the case's largest diagnosis; exact checks do not."""
    told = [
        (case, off(check, "no_scale")) for case in (FIRST, SECOND) for check in ("forward_parity", "weights_parity")
    ]
    exact = wrong("repeats_itself", allowed=0.0, place=1)
    causes = group(*told, (FIRST, wrong("initial_parameters")), (FIRST, exact))
    assert [(cause.kind, len(cause.failures)) for cause in causes] == [("diagnosis", 5), ("check", 1)]


def test_a_diagnosis_of_a_mask_explains_that_hidden_tokens_have_an_effect() -> None:
    """A leak on a case with a diagnosis of a mask has this cause; beside a diagnosis of the scale, it stays apart."""
    leaks = [(FIRST, fail(check, differ())) for check in ("padding_cannot_leak", "future_cannot_leak")]
    for of_mask, counts in ((True, [4]), (False, [2, 2])):
        told = [(FIRST, off(check, "fault", of_mask=of_mask)) for check in ("forward_parity", "weights_parity")]
        causes = group(*told, *leaks)
        assert [len(cause.failures) for cause in causes] == counts
    assert {cause.kind for cause in causes} == {"diagnosis", "leak"}


def test_a_diagnosis_that_all_findings_of_a_check_have_is_the_cause() -> None:
    """Two findings of one check with the same faults are called by the faults; one finding is called by its check."""
    (cause,) = group(*spread(*[off("forward_parity", "no_scale", "wrong_sign")] * 2))
    assert (cause.kind, cause.facts) == ("diagnosis", (looks("no_scale", "wrong_sign"),))
    (cause,) = group((FIRST, off("forward_parity", "no_scale")))
    assert (cause.kind, cause.says_what_to_mend) == ("check", True)


def test_the_cause_of_most_failures_comes_first() -> None:
    """A diagnosis of two findings comes after a check with three, and an exception after all wrong values."""
    told = [off("forward_parity", "no_scale"), off("weights_parity", "no_scale")]
    untouched = [fail("inputs_untouched", VIOLATED)] * 3
    errors = [fail("empty_batch", raised("no"), status="error")] * 4
    causes = group(*((CASES[n % 4], one) for n, one in enumerate((*errors, *told, *untouched))))
    assert [len(cause.failures) for cause in causes] == [3, 2, 4]


def test_independent_failures_stay_apart() -> None:
    """Failures of two checks without a common fact are two causes, and so are those of two implementations."""
    one, other = fail("forward_parity", VIOLATED), fail("inputs_untouched", VIOLATED)
    assert len(group((FIRST, one), (FIRST, other))) == 2
    results = [Result(run="r", implementation=name, case=FIRST, findings=(one,)) for name in ("a", "b")]
    assert [cause.implementation for cause in find_root_causes(results)] == ["a", "b"]


def test_findings_of_older_schemas_are_grouped_by_check_and_status() -> None:
    """The text of a finding without facts is not read: not even a diagnosis or an exception in it joins findings."""

    def old(check: str, status: Status = "failed") -> Finding:
        return Finding(check=check, status=status, reason="Needed. But off. Diagnosis: looks like no scale.")

    causes = group(
        (FIRST, old("forward_parity")),
        (SECOND, old("forward_parity")),
        (THIRD, old("forward_parity", "error")),
        (FIRST, old("weights_parity")),
    )
    assert [(cause.kind, len(cause.failures)) for cause in causes] == [("check", 2), ("check", 1), ("check", 1)]


def test_passed_findings_have_no_cause() -> None:
    """Findings that do not fail have no cause."""
    assert group((FOURTH, Finding(check="forward_parity", status="passed"))) == []


def test_the_cause_of_most_failures_is_taken_first_until_none_is_left() -> None:
    """The groups are those of a plain search, which counts the findings of every key again after each group."""
    draw = random.Random(0)
    kinds: tuple[Kind, ...] = ("deviation", "exception", "diagnosis")
    for _ in range(200):
        failures = [Failure(FIRST, fail(draw.choice("st"), VIOLATED)) for _ in range(12)]
        keys: list[list[Key]] = [
            [(draw.choice(kinds), name) for name in draw.sample("abcde", draw.randrange(4))] for _ in failures
        ]
        expected, left = [], set(range(len(failures)))
        while key := _find_commonest(failures, keys, left):
            expected.append((key, [number for number in sorted(left) if key in keys[number]]))
            left.difference_update(expected[-1][1])
        remaining = set(range(len(failures)))
        assert list(_join_by_key(failures, keys, remaining)) == expected
        assert remaining == left


def _find_commonest(failures: list[Failure], keys: list[list[Key]], left: set[int]) -> Key | None:
    """Return the key that most of the failures in ``left`` have; a diagnosis needs failures of two checks."""
    counts = Counter(key for number in sorted(left) for key in keys[number])
    order: tuple[Kind, ...] = ("deviation", "exception", "diagnosis")
    joining = [
        key
        for key in counts
        if key[0] != "diagnosis" or len({failures[n].finding.check for n in left if key in keys[n]}) > 1
    ]
    return max(joining, key=lambda key: (counts[key], -order.index(key[0])), default=None)


@pytest.mark.parametrize(("fitting", "attributed"), [(("no_scale",), 0), ((), 1)])
def test_a_measured_scale_that_the_diagnosis_explains_is_evidence_for_it(
    fitting: tuple[str, ...], attributed: int
) -> None:
    """A scale that fits the fault model of a diagnosis supports it; another scale is only counted with it."""
    scale = ScaleOff(
        quantity="output", probe="softmax_scale", off=-0.4, allowed=0.1,
        fitting=tuple(Phrase(key=name) for name in fitting),
    )  # fmt: skip
    told = [(FIRST, off(check, "no_scale")) for check in ("forward_parity", "input_gradients")]
    (cause,) = group(*told, (FIRST, fail("effective_scale", scale)))
    assert (cause.facts, len(cause.failures), len(cause.attributed)) == ((looks("no_scale"),), 3, attributed)
    assert len(cause.evidence) == 2


def test_a_second_check_that_sees_the_same_worst_element_is_no_second_cause() -> None:
    """Equal case, element and values are one fault; another element is a cause of its own."""

    def count(value: float) -> list[int]:
        causes = group(
            *((FIRST, off(check, "no_mask")) for check in ("forward_parity", "input_gradients")),
            (SECOND, wrong("forward_parity", value=31.625)),
            (SECOND, wrong("exact_uniform_mean", value=value)),
        )
        return [len(cause.failures) for cause in causes]

    assert count(31.625) == [4]
    assert count(31.0) == [3, 1]
