"""Completion: further cases cover what an implementation takes, and nothing else, in the same way on each run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import combinations
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from attnbench.cases import Case, Level
from attnbench.interface import Covering
from attnbench.operators.attention_core import OPERATOR as CORE_OPERATOR
from attnbench.operators.covering_array import generate_combinations
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.processes.candidate_requests import Answers, AskSupport, Opinion, Outcome
from attnbench.records.types import CHANGED_MIND, Completion, Finding, Result
from attnbench.runner import Plan
from attnbench.runner.completion import declarations
from attnbench.runner.completion.combinations import Combinations
from attnbench.runner.completion.complete import complete, settle
from attnbench.runner.completion.search import MOST_ASKED, MOST_REFUSED, Search, drop_redundant
from attnbench.runner.refusal import keep_declaration
from attnbench.runner.session import Supervisor

COVERING = OPERATOR.covering
PROBLEMS = {"multihead": MultiheadProblem, "attention_core": CORE_OPERATOR.problem}
# The values that an implementation takes, of the factors of which it does not take all.
Kept = Mapping[str, tuple[Any, ...]]
NARROW: Kept = {"widths": ((None, None),), "add_bias_kv": (False,), "add_zero_attn": (False,)}
NO_WEIGHTS: Kept = NARROW | {"weights": ("",)}
SELF: Kept = NO_WEIGHTS | {"sharing": ("self_attention",), "bias": (True,)}
BATCH_FIRST = tuple(layout for layout in COVERING.factors["layout"] if layout[0] and layout[1])
GPT: Kept = SELF | {"attention": ("causal", "hint"), "padding": ("",), "layout": BATCH_FIRST}


class FakeWorker:
    """A worker whose implementation refuses the cases for which ``rule`` returns a reason."""

    def __init__(self, rule: Callable[[Case], str | None], operator: str = "multihead") -> None:
        self.operator = operator
        self._rule = rule
        self.asked: list[Case] = []

    def ask(self, request: AskSupport) -> Answers:
        """Answer as a candidate worker does."""
        cases = [Case.parse(case, PROBLEMS) for case in request.cases]
        self.asked += cases
        answers: list[str | None] = []
        raised: list[str | None] = []
        for case in cases:
            try:
                answers.append(self._rule(case))
                raised.append(None)
            except ValueError as error:
                answers.append(None)
                raised.append(f"ValueError: {error}")
        return Answers(unsupported=answers, predicted_s=[None] * len(cases), raised=raised, seconds=0.01)


def keep(kept: Kept) -> Callable[[Case], str | None]:
    """Return the rule of an implementation that takes only cases with these values."""

    def rule(case: Case) -> str | None:
        row = COVERING.case_to_row(case)
        return next((f"no other {name}" for name, values in kept.items() if row[name] not in values), None)

    return rule


def list_plans(suite: Level = "core", operator: Any = OPERATOR) -> list[Plan]:
    """Return plans of the cases of a suite."""
    return [Plan(case=case.id, checks=("x",), missing=None, flop=0) for case in operator.suite(suite)]


def run(worker: Any, name: str = "a", suite: Level = "core", plans: list[Plan] | None = None) -> Completion:
    """Complete a suite for a fake worker's implementation."""
    return complete(
        cast("Supervisor", worker), name, plans or list_plans(suite), run="r", suite=suite, work_limit_s=1.0
    )


def list_covered(cases: Iterable[str], strength: int, covering: Covering = COVERING) -> set[Any]:
    """Return the combinations in the rows of these cases, found without the module under test."""
    covered = set()
    for text in cases:
        row = covering.case_to_row(Case.parse(text, PROBLEMS))
        if covering.is_allowed({name: value for name, value in row.items() if value in covering.factors[name]}):
            covered |= set(combinations(sorted(row.items(), key=lambda item: item[0]), strength))
    return covered


def list_taken(kept: Kept, strength: int) -> set[Any]:
    """Return the combinations that an implementation with these values takes, by enumeration."""
    fixed = {name: values[0] for name, values in kept.items() if len(values) == 1}
    return {
        one
        for one in generate_combinations(COVERING.factors, COVERING.is_allowed, strength)
        if all(value in kept.get(name, (value,)) for name, value in one) and COVERING.is_allowed(fixed | dict(one))
    }


@pytest.mark.parametrize(
    ("kept", "suite"),
    [(NARROW, "core"), (NO_WEIGHTS, "core"), (SELF, "core"), (GPT, "core"), (NO_WEIGHTS, "full"), (GPT, "full")],
    ids=["narrow", "no_weights", "self", "gpt", "no_weights_full", "gpt_full"],
)
def test_every_combination_that_is_taken_is_covered(kept: Kept, suite: Level) -> None:
    """The list and the further cases contain exactly the taken combinations; without the further cases, many lack."""
    rule, strength = keep(kept), {"core": 2, "full": 3}[suite]
    made = run(FakeWorker(rule), suite=suite)
    taken = list_taken(kept, strength)
    assert all(rule(Case.parse(case, PROBLEMS)) is None for case in made.cases)
    listed = [plan.case for plan in list_plans(suite)]
    own = [case for case in listed if rule(Case.parse(case, PROBLEMS)) is None]
    assert not set(made.cases) & set(listed)
    before, after = list_covered(own, strength) & taken, list_covered([*own, *made.cases], strength) & taken
    assert after == taken
    assert (made.taken, made.covered_by_list, made.covered) == (len(taken), len(before), len(taken))
    assert len(before) < 0.6 * len(taken)
    assert made.notes == ()
    declared = made.get_declarations(listed)
    assert {case for case, reason in declared.items() if reason is None} == {*own, *made.cases}


def test_the_cases_depend_on_the_answers_only() -> None:
    """Two implementations that refuse the same cases for other reasons get the same further cases."""
    one, other = (
        run(FakeWorker(lambda case, i=i: keep(GPT)(case) and f"reason {i}"), name) for i, name in enumerate("ab")
    )  # type: ignore[misc]
    assert one.cases == other.cases
    assert one.completion_hash == other.completion_hash != ""
    assert one.refused != other.refused


def test_an_implementation_that_takes_everything_is_asked_about_the_list_only() -> None:
    """No case is drawn and none is added."""
    worker = FakeWorker(lambda _: None)
    made = run(worker)
    assert (made.cases, made.refused, made.notes, made.completion_hash) == ((), {}, (), "")
    assert made.taken == made.covered == made.combinations
    assert len(worker.asked) == len(list_plans())


def test_a_combination_counts_as_not_taken_after_200_refused_cases() -> None:
    """Each value of each factor is in at least 200 drawn cases of an implementation that refuses everything."""
    worker = FakeWorker(lambda _: "no")
    made = run(worker)
    assert (made.taken, made.covered, made.cases, made.restrictions) == (0, 0, (), ())
    assert made.combinations == len(list(generate_combinations(COVERING.factors, COVERING.is_allowed, 2)))
    drawn = worker.asked[len(list_plans()) :]
    for name, values in COVERING.factors.items():
        for value in values:
            count = sum(COVERING.case_to_row(case)[name] == value for case in drawn)
            assert count >= MOST_REFUSED, (name, value)


@pytest.mark.parametrize("partner", ["float64", "bfloat16"])
def test_a_value_that_is_taken_with_one_other_value_only_is_found(partner: str) -> None:
    """Pairs are drawn that no listed case with the implementation's other values contains."""
    listed = {case.id for case in OPERATOR.suite("core")}

    def rule(case: Case) -> str | None:
        if case.id in listed and case.problem.kdim:
            return "listed"
        return "kdim needs another dtype" if case.problem.kdim and case.dtype != partner else None

    made = run(FakeWorker(rule))
    row = dict(zip(("dtype", "widths"), (partner, (10, 14)), strict=True))
    assert tuple(sorted(row.items())) in list_covered(made.cases, 2)


def test_an_implementation_that_takes_no_listed_case_is_completed() -> None:
    """Cases are drawn near the plainest one as long as no case is known to be taken."""

    def rule(case: Case) -> str | None:
        row = COVERING.case_to_row(case)
        free = {"dtype", "mode", "lengths", "heads"}
        others = {name: values[0] for name, values in COVERING.factors.items() if name not in free}
        plain = all(row[name] == value for name, value in others.items())
        return None if plain and row["heads"] != (3, 8) and row["lengths"] != (5, 7) else "not plain"

    worker = FakeWorker(rule)
    made = run(worker)
    assert made.covered == made.taken > 0
    assert len(made.cases) >= 20


def test_random_refusals_end() -> None:
    """An implementation that refuses without any pattern is completed, in a bounded number of questions."""
    worker = FakeWorker(lambda case: "no" if Random(case.id).random() < 0.9 else None)
    made = run(worker)
    assert made.covered == made.taken > 0.95 * made.combinations
    assert len(worker.asked) < MOST_ASKED[2]


def test_the_number_of_further_cases_is_bounded() -> None:
    """There are at most as many further cases as the suite has cases, and a note says that some are left out."""
    made = run(FakeWorker(keep(NARROW)), plans=list_plans()[:30])
    assert len(made.cases) == 30
    assert made.covered < made.taken
    (note,) = made.notes
    assert note.endswith("further cases, only 30 are run: as many as the suite has cases")


def test_a_declaration_that_raises_is_told_in_one_line() -> None:
    """The cases on which it raises count as refused, and have no frozen declaration."""

    def rule(case: Case) -> str | None:
        if case.problem.kdim:
            raise ValueError("kdim?")
        return None

    made = run(FakeWorker(rule))
    (note,) = made.notes
    assert note.startswith("declarations raised on ")
    assert note.endswith("which count as refused; the first exception: ValueError: kdim?")
    listed = [plan.case for plan in list_plans()]
    assert set(listed) - set(made.get_declarations(listed)) == {case for case in listed if ".K" in case.split("/")[1]}
    assert made.covered == made.taken < made.combinations


def test_a_slow_declaration_ends_the_completion() -> None:
    """If the list alone exceeds the time limit, nothing is drawn; one line says so."""

    class Slow(FakeWorker):
        def ask(self, request: AskSupport) -> Answers:
            few = super().ask(AskSupport(implementation="a", cases=request.cases[:10], limit_s=1.0))
            return Answers(unsupported=few.unsupported, predicted_s=few.predicted_s, raised=few.raised, seconds=30.5)

    made = run(Slow(lambda _: "no"))
    assert made.notes == (
        "unsupported(case) is slow: 10 cases took 30.5 s, 3.05e+03 ms each; no further case was asked after 30 s",
    )
    assert (made.strength, made.cases, made.refused) == (0, (), {"no": tuple(range(10))})
    assert made.unanswered == tuple(range(10, len(list_plans())))


def test_an_outcome_in_place_of_answers_is_told() -> None:
    """If the worker dies while it is asked, there is no completion, and one line says why."""
    dead = SimpleNamespace(operator="multihead", ask=lambda _: Outcome(status="crashed", reason="signal 11"))
    made = run(dead)
    assert made.notes == ("unsupported(case) gave no answer on many cases: signal 11",)
    assert len(made.unanswered) == made.listed


def test_a_case_over_the_work_limit_covers_nothing() -> None:
    """A combination whose every case is predicted to take too long is taken, but not covered."""

    class Predicts(FakeWorker):
        def ask(self, request: AskSupport) -> Answers:
            made = super().ask(request)
            long = [9.0 if "L66.S72" in case else None for case in request.cases]
            return Answers(unsupported=made.unsupported, predicted_s=long, raised=made.raised, seconds=0.0)

    made = run(Predicts(keep(NARROW)))
    assert made.covered < made.taken
    assert not any("L66.S72" in case for case in made.cases)


def test_a_case_without_data_covers_nothing() -> None:
    """A listed case that this machine cannot run is not counted as covered."""
    plans = list_plans()
    lacking = [replace(plan, missing="data") for plan in plans]
    assert run(FakeWorker(lambda _: None), plans=lacking).covered == 0
    assert run(FakeWorker(lambda _: None), plans=plans).covered > 0


def test_restrictions_are_told_in_words() -> None:
    """The values that are taken alone, or the lost ones if they are fewer; the largest share of values first."""
    made = run(FakeWorker(keep(SELF | {"regime": ("flat", "plain", "peaked", "onehot")})))
    # Self-attention has no kdim and vdim, so their absence is no restriction of its own.
    assert made.restrictions == (
        "self-attention", "no weights", "with bias", "no add_bias_kv", "no add_zero_attn", "no regime huge",
    )  # fmt: skip
    assert run(FakeWorker(keep(NARROW))).restrictions == ("no kdim or vdim", "no add_bias_kv", "no add_zero_attn")


def test_the_other_operator_is_completed_too() -> None:
    """attention_core has a covering array of its own."""
    worker = FakeWorker(lambda case: "window" if case.problem.window is not None else None, "attention_core")
    made = run(worker, plans=list_plans("core", CORE_OPERATOR))
    assert made.covered == made.taken < made.combinations
    assert made.restrictions == ("no window",)


def test_cases_on_a_device_are_drawn_for_it() -> None:
    """The further cases of a run on CUDA are CUDA cases."""
    plans = [
        Plan(case=plan.case.replace("/cpu/", "/cuda/"), checks=("x",), missing=None, flop=0) for plan in list_plans()
    ]
    worker = FakeWorker(keep(GPT))
    made = run(worker, plans=plans)
    assert made.cases
    assert {case.device for case in worker.asked} == {"cuda"}
    assert all("/cuda/" in case for case in made.cases)


def test_an_operator_without_a_covering_array_is_only_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The declarations are frozen, and nothing is drawn."""
    bare = SimpleNamespace(name="multihead", covering=None)
    monkeypatch.setitem(complete.__globals__, "load_operator", lambda _: bare)
    made = run(FakeWorker(keep(GPT)))
    assert (made.strength, made.combinations, made.cases) == (0, 0, ())
    assert sum(map(len, made.refused.values())) > 200


def test_cases_that_are_refused_only_when_called_cover_nothing() -> None:
    """After the run, their number is stored, and their combinations are no longer covered."""
    made = run(FakeWorker(keep(GPT)))
    declared = made.get_declarations([plan.case for plan in list_plans()])
    silent = Finding(check="x", status="unsupported", reason="Refusal")
    passed = Finding(check="x", status="passed")
    late = made.cases[:5]
    results = [
        Result(run="r", implementation="a", case=case, findings=(silent if case in late else passed,))
        for case, reason in declared.items()
        if reason is None
    ]
    settled = settle(made, "multihead", declared, results)
    assert settled.refused_when_called == 5
    assert settled.covered < made.covered
    whole = settle(made, "multihead", declared, [one for one in results if one.case not in late])
    assert (whole.refused_when_called, whole.covered) == (0, made.covered)


def test_redundant_rows_are_dropped() -> None:
    """A row whose combinations are in other rows as well is left out."""
    small = Covering(
        factors={"a": (1, 2), "b": (1, 2), "c": (1, 2)}, is_allowed=lambda _: True,
        row_to_case=lambda _: OPERATOR.suite("quick")[0], case_to_row=lambda _: {},
    )  # fmt: skip
    space = Combinations(small, 2)
    rows = [space.encode(dict(zip("abc", row, strict=True))) for row in [(1, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)]]
    useless = space.encode({"a": 1, "b": 1, "c": 2})
    missing = space.allowed[2]
    assert set(drop_redundant([useless, *rows], missing)) == set(rows)


def test_answers_end_when_no_more_may_be_asked() -> None:
    """A search whose questions are no longer answered ends."""
    space = Combinations(COVERING, 2)
    search = Search(space, lambda _: [], "seed")
    assert search.run(space.make_flags(2)) == []
    assert search.exhausted


def test_the_time_limit_counts_all_requests() -> None:
    """The limit of a request is what the requests before it left over."""
    limits: list[float] = []

    def ask(request: AskSupport) -> Answers:
        limits.append(request.limit_s)
        return Answers(unsupported=[None], predicted_s=[None], raised=[None], seconds=4.0)

    worker = cast("Supervisor", SimpleNamespace(ask=ask))
    asking = declarations.Declarations(worker=worker, implementation="a", limit_s=10.0, work_limit_s=1.0)
    for _ in range(3):
        asking.ask(["x"])
    assert limits == [10.0, 6.0, 2.0]


@pytest.mark.parametrize(
    ("now", "planned", "change"),
    [
        (None, None, ""),
        ("", None, ""),
        ("no", "no", ""),
        ("no", None, "supported when the run was planned, now refused (no)"),
        (None, "no", "refused (no) when the run was planned, now supported"),
    ],
)
def test_the_planned_answer_counts(now: str | None, planned: str | None, change: str) -> None:
    """A later answer is replaced by the answer of the plan, and the difference is told."""
    opinion, told = keep_declaration(Opinion(unsupported=now, untimed="slow", predicted_s=2.0), planned)
    assert isinstance(opinion, Opinion)
    assert (opinion.unsupported or None, opinion.untimed, opinion.predicted_s) == (planned, "slow", 2.0)
    assert told == (f"{CHANGED_MIND}: {change}" if change else "")


def test_an_exception_is_not_replaced_by_the_planned_answer() -> None:
    """A declaration that raises during the run remains an error."""
    raised = Outcome(status="error", reason="KeyError")
    assert keep_declaration(raised, None) == (raised, "")
