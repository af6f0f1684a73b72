"""Tests of the grouping of failures by their cause, with made-up findings."""

import random
from collections import Counter

from attnbench.analysis.deviations import FULLY_MASKED, describe_deviation
from attnbench.analysis.diagnoses import NOT_DIAGNOSED
from attnbench.analysis.failure_groups import Failure, Kind, _join_by_key
from attnbench.analysis.root_causes import RootCause, find_root_causes
from attnbench.interface import Policies
from attnbench.records.types import Finding, Result, Status

CASES = [f"multihead/B{n}.L5.S7.E8.H2/-/mask=none/regime=plain/seed=0/float32/cpu/eval" for n in range(4)]
FIRST, SECOND, THIRD, FOURTH = CASES
MEAN = describe_deviation(Policies(), hidden_rows="mean")
MEAN_OF_SOFTMAX = describe_deviation(Policies(), hidden_rows="mean", hidden_row_gradients="softmax")
EMPTY = describe_deviation(Policies(), empty_batches="refused")


def fail(check: str, reason: str, status: Status = "failed") -> Finding:
    """Return a finding that fails."""
    return Finding(check=check, status=status, reason=reason)


def group(*failures: tuple[str, Finding], name: str = "mine") -> list[RootCause]:
    """Return the causes of failures, each given with its case."""
    return find_root_causes(
        [Result(run="r", implementation=name, case=case, findings=(finding,)) for case, finding in failures]
    )


def test_one_exception_in_many_checks_is_one_cause() -> None:
    """An exception is one cause in all checks and cases, whatever its numbers and its place in the source."""
    (cause,) = group(
        (FIRST, fail("forward_parity", "RuntimeError: shape [2, 5] (at a.py:3 in f)", "error")),
        (FIRST, fail("input_gradients", "RuntimeError: shape [2, 5] (at a.py:3 in f)", "error")),
        (SECOND, fail("forward_parity", "RuntimeError: shape [3, 4, 7] (at a.py:9 in g)", "error")),
    )
    assert cause.title == "2 checks failed for one cause, on 2 cases"
    assert cause.reason == "RuntimeError: shape [2, 5] (at a.py:3 in f)"
    assert cause.listing == "failed: forward_parity on 2, input_gradients on 1"
    assert cause.reproduce == f"attnbench reproduce '{FIRST}' --check forward_parity mine"


def test_an_exception_is_one_cause_whatever_the_arguments() -> None:
    """The arguments of the case, which follow an exception, do not divide it into several causes."""
    shapes = ("query (2, 5, 24), key (2, 7, 24)", "query (5, 24), attn_mask (5, 5) bool")
    (cause,) = group(
        *(
            (case, fail("forward_parity", f"TypeError: no. {EMPTY} Arguments of the case: {given}.".strip(), "error"))
            for case, given in zip(CASES, shapes, strict=False)
        ),
        (
            THIRD,
            fail("forward_parity", "TypeError: no (at a.py:3 in f). Arguments of the case: query (1, 2).", "error"),
        ),
        (FOURTH, fail("forward_parity", "TypeError: no (at b.py:4 in g)", "error")),
    )
    assert cause.title == "forward_parity: error, and on 3 more cases"
    assert cause.reason.endswith("key (2, 7, 24).")


def test_of_equally_many_failures_those_with_a_diagnosis_come_first_and_exceptions_last() -> None:
    """Causes that say what to mend come before those that do not; exceptions come last, else the order stays."""
    causes = group(
        (FIRST, fail("inputs_untouched", "Wanted. But changed.")),
        (FIRST, fail("repeats_itself", "Wanted. But not.")),
        (SECOND, fail("forward_parity", "Needed. But off. Diagnosis: looks like no scale.")),
        (SECOND, fail("empty_batch", f"RuntimeError: no. {EMPTY}", "error")),
    )
    assert [cause.finding.check for cause in causes] == [
        "forward_parity", "inputs_untouched", "repeats_itself", "empty_batch",
    ]  # fmt: skip


def test_two_exceptions_are_two_causes() -> None:
    """Exceptions of two types, or with two messages, are two causes, also in one check."""
    causes = group(
        (FIRST, fail("forward_parity", "RuntimeError: no", "error")),
        (SECOND, fail("forward_parity", "ValueError: no", "error")),
        (THIRD, fail("forward_parity", "ValueError: never", "error")),
    )
    assert [cause.title for cause in causes] == ["forward_parity: error"] * 3


def test_an_exception_on_empty_batches_alone_is_a_deviation() -> None:
    """If empty batches alone raise, the cause is the deviation; if others raise the same, it is the exception."""
    (cause,) = group(
        (FIRST, fail("forward_parity", f"RuntimeError: no. {EMPTY}", "error")),
        (FIRST, fail("input_gradients", f"ValueError: not. {EMPTY}", "error")),
    )
    assert (cause.kind, cause.reason) == ("deviation", EMPTY)
    (cause,) = group(
        (FIRST, fail("forward_parity", f"RuntimeError: no. {EMPTY}", "error")),
        (SECOND, fail("forward_parity", "RuntimeError: no.", "error")),
    )
    assert cause.kind == "exception"
    assert cause.title == "forward_parity: error, and on 1 more case"


def test_deviations_of_fully_masked_rows_are_one_cause() -> None:
    """Findings that show a part of what fully masked rows do, or are confined to them, are one cause."""
    (cause,) = group(
        (FIRST, fail("forward_parity", f"Needed. But off. {MEAN}")),
        (SECOND, fail("input_gradients", f"Needed. But off. {MEAN_OF_SOFTMAX}")),
        (SECOND, fail("padding_cannot_leak", f"Needed. But 3 of 4 differ {FULLY_MASKED}, the first at 0.")),
    )
    assert list(cause.checks) == ["forward_parity", "input_gradients", "padding_cannot_leak"]
    assert cause.reason == MEAN_OF_SOFTMAX
    assert cause.reason.count("Deviation") == 1


def test_contradicting_deviations_are_two_causes() -> None:
    """Fully masked rows that are the mean in one case and NaN in another are two causes."""
    nan = describe_deviation(Policies(), hidden_rows="nan")
    causes = group(
        (FIRST, fail("forward_parity", f"Needed. But off. {MEAN}")),
        (SECOND, fail("forward_parity", f"Needed. But off. {nan}")),
    )
    assert [cause.reason for cause in causes] == [MEAN, nan]


def test_a_failure_in_fully_masked_rows_without_a_deviation_keeps_its_check() -> None:
    """A failure that is confined to fully masked rows is told by its check if no deviation explains it."""
    (cause,) = group((FIRST, fail("padding_cannot_leak", f"Needed. But 3 of 4 differ {FULLY_MASKED}.")))
    assert (cause.kind, cause.title) == ("check", "padding_cannot_leak: failed")


def test_one_diagnosis_in_several_checks_is_one_cause() -> None:
    """A diagnosis joins checks. An ambiguous one, and failures of its check without one, join it."""
    (cause,) = group(
        (FIRST, fail("forward_parity", "Needed. But off. Diagnosis: looks like no scale or a wrong sign.")),
        (SECOND, fail("input_gradients", "Wanted. But off. Diagnosis: looks like no scale.")),
        (THIRD, fail("forward_parity", "Needed. But off.")),
    )
    assert cause.title == "2 checks failed for one cause, on 3 cases"
    assert cause.listing == "failed: forward_parity on 2, input_gradients on 1"


def test_a_diagnosis_of_one_check_is_told_by_check() -> None:
    """Diagnoses that occur in a single check give one entry for the check, as failures without diagnosis do."""
    (cause,) = group(
        (FIRST, fail("forward_parity", "Needed. But off. Diagnosis: looks like no scale.")),
        (SECOND, fail("forward_parity", "Needed. But off. Diagnosis: looks like a wrong sign.")),
        (THIRD, fail("forward_parity", "Needed. But off.")),
    )
    assert cause.title == "forward_parity: failed, and on 2 more cases"


def off(check: str, *faults: str) -> Finding:
    """Return a finding with wrong values; with faults, its diagnosis names them."""
    looks = f" Diagnosis: looks like {' or '.join(faults)}." if faults else ""
    return fail(check, f"Needed. But off.{looks}")


def spread(*findings: Finding) -> list[tuple[str, Finding]]:
    """Give each finding a case."""
    return [(CASES[number % len(CASES)], finding) for number, finding in enumerate(findings)]


def test_a_diagnosis_of_few_findings_names_no_cause() -> None:
    """A diagnosis of 3 of 12 findings names no cause: the checks do, and say how many findings have the diagnosis."""
    told = [off("forward_parity", "no scale"), off("forward_parity", "no scale"), off("input_gradients", "no scale")]
    causes = group(*spread(*told, *[off("forward_parity")] * 6, *[off("input_gradients")] * 3))
    assert [(cause.kind, cause.finding.check, len(cause.failures)) for cause in causes] == [
        ("check", "forward_parity", 8), ("check", "input_gradients", 4),
    ]  # fmt: skip
    assert [cause.shared for cause in causes] == ["2 of 8 findings look like no scale.", ""]
    assert not any("Diagnosis" in cause.reason for cause in causes)


def test_a_diagnosis_of_half_the_findings_names_no_cause_and_of_more_than_half_does() -> None:
    """Most findings are more than half of those that could have a diagnosis."""
    told = [off("forward_parity", "no scale"), off("input_gradients", "no scale")]
    assert {cause.kind for cause in group(*spread(*told, *[off("forward_parity")] * 2))} == {"check"}
    (cause,) = group(*spread(*told, off("forward_parity")))
    assert (cause.kind, cause.shared) == ("diagnosis", "Diagnosis: no scale (named by 2 findings).")


def test_findings_that_cannot_have_a_diagnosis_do_not_count_against_it() -> None:
    """A case that is too large for a diagnosis joins the diagnosis of its check."""
    large = fail("forward_parity", f"Needed. But off. {NOT_DIAGNOSED}the case has too many pairs.")
    told = [off("forward_parity", "no scale"), off("input_gradients", "no scale")]
    (cause,) = group(*spread(*told, *[large] * 5))
    assert (cause.kind, len(cause.failures)) == ("diagnosis", 7)


def test_a_diagnosis_keeps_the_checks_that_it_fits() -> None:
    """Where a diagnosis fits all findings of two checks and few of a third, the third is told apart."""
    told = [off(check, "no scale") for check in ("forward_parity", "weights_parity", "input_gradients")]
    causes = group(*spread(*told, *[off("input_gradients")] * 9))
    assert [(cause.kind, list(cause.checks)) for cause in causes] == [
        ("check", ["input_gradients"]), ("diagnosis", ["forward_parity", "weights_parity"]),
    ]  # fmt: skip


def test_a_fault_of_the_backward_pass_at_least_is_the_same_fault() -> None:
    """A diagnosis that is limited because the case shows it only in gradients joins the same fault without limits."""
    limited = "no scale (in the backward pass at least: on this case it changes no output)"
    (cause,) = group(*spread(off("forward_parity", "no scale"), off("input_gradients", limited)))
    assert cause.shared == "Diagnosis: no scale."


def test_a_diagnosis_of_strides_is_one_fault() -> None:
    """The words "strides or offsets" are no choice between two faults."""
    strides = "Diagnosis: the same call with contiguous tensors is right, so strides or offsets are misread."
    (cause,) = group(*spread(*(fail(check, f"x But y. {strides}") for check in ("strided_inputs", "expanded_inputs"))))
    assert cause.shared == strides


def test_a_scale_is_told_by_the_finding_that_measured_it() -> None:
    """The number of the cause, its reason and its command are of one finding, also if another check comes first."""
    gradient = fail("effective_gradient_scale", "x But the amplitude estimated from grad is off by +0.5; allowed 0.1.")
    output = fail("effective_scale", "x But the softmax scale estimated from output is off by -0.2; allowed 0.1.")
    (cause,) = group((FIRST, gradient), (SECOND, output))
    assert (cause.shared, cause.finding) == ("The softmax scale is off by -20 %.", output)
    assert cause.reproduce == f"attnbench reproduce '{SECOND}' --check effective_scale mine"


def test_what_does_not_name_a_scale_or_a_policy_follows_from_it() -> None:
    """Beside a measured scale, and beside a deviation of fully masked rows, other findings follow, with the reason."""
    values = Finding(check="forward_parity", status="failed", reason="x But 3 are off.", measured=2.0, allowed=1.0)
    (scale,) = group((FIRST, values), (FIRST, fail("effective_scale", SCALE)))
    assert [failure.finding for failure in scale.following] == [values]
    assert scale.tie == "A wrong scale changes all values, so they may follow from it."
    rows = fail("padding_cannot_leak", f"Needed. But 3 of 4 differ {FULLY_MASKED}.")
    (policy,) = group((FIRST, fail("forward_parity", f"Needed. But off. {MEAN}")), (FIRST, rows))
    assert [failure.finding for failure in policy.following] == [rows]
    assert policy.tie == "They are wrong in fully masked rows only."


SCALE = "x But the softmax scale estimated from output is off by -0.2; allowed 0.1."


def test_what_is_measured_as_a_number_joins_the_diagnosis_of_its_case() -> None:
    """A scale and a sum of rows that are off on a case with a diagnosis are no causes of their own."""
    told = [off(check, "the scale missing") for check in ("forward_parity", "weights_parity")]
    sums = fail("weights_are_shares", "x But the sum of a row of weights is off by 0.2; allowed 0.1.")
    (cause,) = group(*((FIRST, one) for one in (*told, fail("effective_scale", SCALE), sums)))
    assert (cause.kind, cause.name, len(cause.failures)) == ("diagnosis", "the scale missing", 4)
    assert cause.shared == "Diagnosis: the scale missing (named by 2 findings)."


def test_a_number_of_a_case_without_the_diagnosis_is_a_cause_of_its_own() -> None:
    """On another case, or on a case whose values the diagnosis does not explain, a scale that is off stays apart."""
    told = [(FIRST, off("forward_parity", "no mask")), (FIRST, off("input_gradients", "no mask"))]
    for others in ([], [(SECOND, off("forward_parity"))]):
        causes = group(*told, (SECOND, fail("effective_scale", SCALE)), *others)
        assert [cause.finding.check for cause in causes] == ["forward_parity", "effective_scale"]


def test_wrong_values_of_a_case_join_the_diagnosis_that_explains_the_case() -> None:
    """Values that are off beyond an allowed error join the case's largest diagnosis; exact checks do not."""
    told = [
        (case, off(check, "no scale")) for case in (FIRST, SECOND) for check in ("forward_parity", "weights_parity")
    ]
    values = Finding(check="initial_parameters", status="failed", reason="x But 3 are off.", measured=2.0, allowed=1.0)
    exact = Finding(check="repeats_itself", status="failed", reason="x But 3 are off.", measured=2.0, allowed=0.0)
    causes = group(*told, (FIRST, values), (FIRST, exact))
    assert [(cause.kind, len(cause.failures)) for cause in causes] == [("diagnosis", 5), ("check", 1)]


def test_a_diagnosis_of_a_mask_explains_that_hidden_tokens_have_an_effect() -> None:
    """A leak on a case with a diagnosis of a mask has this cause; beside a diagnosis of the scale, it stays apart."""
    leaks = [(FIRST, fail(check, "x But 1 differs.")) for check in ("padding_cannot_leak", "future_cannot_leak")]
    for fault, counts in (("the key_padding_mask ignored", [4]), ("the scale missing", [2, 2])):
        told = [(FIRST, off(check, fault)) for check in ("forward_parity", "weights_parity")]
        assert [len(cause.failures) for cause in group(*told, *leaks)] == counts


def test_a_diagnosis_that_all_findings_of_a_check_have_is_the_cause() -> None:
    """Two findings of one check with the same faults are called by the faults; one finding is called by its check."""
    (cause,) = group(*spread(*[off("forward_parity", "no scale", "a wrong sign")] * 2))
    assert (cause.kind, cause.name) == ("diagnosis", "no scale or a wrong sign")
    (cause,) = group((FIRST, off("forward_parity", "no scale")))
    assert (cause.kind, cause.says_what_to_mend) == ("check", True)


def test_the_cause_of_most_failures_comes_first() -> None:
    """A diagnosis of two findings comes after a check with three, and an exception after all wrong values."""
    told = [off("forward_parity", "no scale"), off("weights_parity", "no scale")]
    untouched = [fail("inputs_untouched", "Wanted. But changed.")] * 3
    raised = [fail("empty_batch", "RuntimeError: no", "error")] * 4
    causes = group(*((CASES[n % 4], one) for n, one in enumerate((*raised, *told, *untouched))))
    assert [len(cause.failures) for cause in causes] == [3, 2, 4]


def test_independent_failures_stay_apart() -> None:
    """Failures of two checks without a common reason are two causes, and so are those of two implementations."""
    one, other = fail("forward_parity", "Needed. But off."), fail("inputs_untouched", "Wanted. But changed.")
    assert len(group((FIRST, one), (FIRST, other))) == 2
    results = [Result(run="r", implementation=name, case=FIRST, findings=(one,)) for name in ("a", "b")]
    assert [cause.implementation for cause in find_root_causes(results)] == ["a", "b"]


def test_a_wrong_declared_refusal_is_one_cause() -> None:
    """What was declared unsupported, but returned a wrong result, is one cause for each declared reason."""
    declared = "declared unsupported (no masks), yet the call returned a wrong result instead of raising an exception"
    (cause,) = group(
        (FIRST, fail("forward_parity", f"{declared}: Needed. But 3 are off.")),
        (SECOND, fail("input_gradients", f"{declared}: Wanted. But 4 are off.")),
    )
    assert cause.title == "2 checks failed for one cause, on 2 cases"


def test_passed_findings_have_no_cause() -> None:
    """Findings that do not fail have no cause."""
    assert group((FOURTH, Finding(check="forward_parity", status="passed"))) == []


def test_the_cause_of_most_failures_is_taken_first_until_none_is_left() -> None:
    """The groups are those of a plain search, which counts the findings of every key again after each group."""
    draw = random.Random(0)
    kinds: tuple[Kind, ...] = ("deviation", "exception", "diagnosis")
    for _ in range(200):
        failures = [Failure(FIRST, fail(draw.choice("st"), "x")) for _ in range(12)]
        keys = [[(draw.choice(kinds), name) for name in draw.sample("abcde", draw.randrange(4))] for _ in failures]
        expected, left = [], set(range(len(failures)))
        while key := _find_commonest(failures, keys, left):
            expected.append((key, [number for number in sorted(left) if key in keys[number]]))
            left.difference_update(expected[-1][1])
        remaining = set(range(len(failures)))
        assert list(_join_by_key(failures, keys, remaining)) == expected
        assert remaining == left


def _find_commonest(
    failures: list[Failure], keys: list[list[tuple[Kind, str]]], left: set[int]
) -> tuple[Kind, str] | None:
    """Return the key that most of the failures in ``left`` have; a diagnosis needs failures of two checks."""
    counts = Counter(key for number in sorted(left) for key in keys[number])
    order: tuple[Kind, ...] = ("deviation", "exception", "diagnosis")
    joining = [
        key
        for key in counts
        if key[0] != "diagnosis" or len({failures[n].finding.check for n in left if key in keys[n]}) > 1
    ]
    return max(joining, key=lambda key: (counts[key], -order.index(key[0])), default=None)


EVERY = [f"multihead/B{n}.L5.S7.E24.H3/-/mask=none/regime=plain/seed=0/float32/cpu/eval" for n in range(4)]
WHOLE = "the scale 1/√E of the whole width in place of 1/√D"


def test_a_measured_scale_that_is_the_scale_of_the_diagnosis_names_the_cause() -> None:
    """With three heads, 1/√E is 0.577 of 1/√D: a scale off by -0.445 agrees with it, one off by -0.2 does not."""
    for off, follows in (("-0.445", 0), ("-0.2", 1)):
        (cause,) = group(
            (EVERY[0], fail("forward_parity", f"x But y are off. Diagnosis: looks like {WHOLE}.")),
            (EVERY[0], fail("input_gradients", f"x But y are off. Diagnosis: looks like {WHOLE}.")),
            (
                EVERY[0],
                fail("effective_scale", f"x But the softmax scale estimated from output is off by {off}; allowed 0.1."),
            ),
        )
        assert (cause.name, len(cause.failures), len(cause.following)) == (WHOLE, 3, follows)


def test_a_second_check_that_sees_the_same_worst_element_is_no_second_cause() -> None:
    """Equal case, element and values are one fault; another element is a cause of its own."""
    worst = "the worst by 32.4 at batch 1, query 0, feature 7 (head 1) ({}, must be -0.75); allowed 1."

    def count(value: str) -> list[int]:
        causes = group(
            (FIRST, fail("forward_parity", "x But y are off. Diagnosis: looks like the mask ignored.")),
            (FIRST, fail("input_gradients", "x But y are off. Diagnosis: looks like the mask ignored.")),
            (SECOND, fail("forward_parity", f"x But y are off; {worst.format('31.625')}")),
            (SECOND, fail("exact_uniform_mean", f"x But y are off; {worst.format(value)}")),
        )
        return [len(cause.failures) for cause in causes]

    assert count("31.625") == [4]
    assert count("31") == [3, 1]
