"""Supplementary cases cover what an implementation takes, and nothing else, in the same way on each run."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any, cast

import pytest

from attnbench.analysis.coverage import FEWEST_CHECKED
from attnbench.cases import COMPILED_MODES, Case, Level
from attnbench.interface import Operator
from attnbench.operators.attention_core import OPERATOR as CORE_OPERATOR
from attnbench.operators.covering_array import generate_combinations
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.processes.candidate_requests import Declaration, Declarations, DescribeAll, Outcome
from attnbench.processes.oracle_requests import ListPool
from attnbench.records.outcome_facts import Crashed, DeclarationChanged, Raised
from attnbench.records.types import Completion, Finding, Result
from attnbench.refusals import OtherRefusal
from attnbench.runner import Plan, Session, supplement
from attnbench.runner.greedy_cover import choose_cover
from attnbench.runner.refusal import keep_declaration
from attnbench.runner.supplement import Supplement, choose_supplements, settle_supplements

COVERING = OPERATOR.covering
PROBLEMS = {"multihead": MultiheadProblem, "attention_core": CORE_OPERATOR.problem}
# The values that an implementation takes, of the factors of which it does not take all.
Kept = dict[str, tuple[Any, ...]]
CRASH = Crashed(how="signal", signal="SIGSEGV")
NO = OtherRefusal(text="no")
Rule = Callable[[Case], str | None]
NARROW: Kept = {"widths": ((None, None),), "add_bias_kv": (False,), "add_zero_attn": (False,)}
NO_WEIGHTS: Kept = NARROW | {"weights": ("",)}
SELF: Kept = NO_WEIGHTS | {"sharing": ("self_attention",), "bias": (True,)}
BATCH_FIRST = tuple(layout for layout in COVERING.factors["layout"] if layout[0] and layout[1])
GPT: Kept = SELF | {"attention": ("causal", "hint"), "padding": ("",), "layout": BATCH_FIRST}


class FakeWorker:
    """A worker whose implementation refuses the cases for which ``rule`` returns a reason; also its session."""

    def __init__(self, rule: Rule, operator: Operator = OPERATOR, *, predicted_s: float | None = None) -> None:
        self.operator = operator.name
        self.asked: list[str] = []
        self.pool = operator.pool
        self.predicted_s = predicted_s
        self._rule = rule
        # What a session has.
        self.declared = {"a": SimpleNamespace(operator=operator.name)}
        self.limits = SimpleNamespace(work_s=1.0)

    def ask(self, request: DescribeAll) -> Declarations | Outcome:
        """Answer as a candidate worker does."""
        found: list[Declaration | Outcome] = []
        for case in request.cases:
            try:
                text = self._rule(Case.parse(case, PROBLEMS))
                predicted_s = self.predicted_s if "L66.S72" in case else None
                refusal = OtherRefusal(text=text) if text else None
                found.append(Declaration(unsupported=refusal, untimed=None, predicted_s=predicted_s))
            except ValueError as error:
                raised = Raised(kind="ValueError", message=str(error))
                found.append(Outcome(status="error", facts=(raised,)))
        self.asked += request.cases
        return Declarations(by_case=found, seconds=0.01)

    def ask_oracle(self, request: ListPool) -> list[str]:
        """Answer as the oracle worker does."""
        return [case.with_fields(device=request.device).id for case in self.pool(request.level)]

    @property
    def workers(self) -> "FakeWorker":
        """The pool, which is this object."""
        return self

    def get(self, _: list[str]) -> "FakeWorker":
        """Return the worker, as a pool does."""
        return self

    def keep(self, *_: object) -> None:
        """Keep nothing."""

    def plan(self, cases: Iterable[str]) -> list[Plan]:
        """Return plans, as a session does."""
        return make_plans(cases)


def keep(kept: Kept) -> Rule:
    """Return the rule of an implementation that takes only cases with these values."""

    def rule(case: Case) -> str | None:
        row = COVERING.case_to_row(case)
        return next((f"no other {name}" for name, values in kept.items() if row[name] not in values), None)

    return rule


def make_plans(cases: Iterable[str]) -> list[Plan]:
    """Return plans of these cases."""
    return [Plan(case=case, checks=("x",), missing=None, flop=0) for case in cases]


def list_cases(suite: Level, operator: Operator = OPERATOR) -> list[str]:
    """Return the cases of a suite."""
    return [case.id for case in operator.suite(suite)]


def choose(worker: Any, suite: Level = "core", plans: list[Plan] | None = None, **options: Any) -> Supplement:
    """Choose the supplementary cases of a fake worker's implementation."""
    given = make_plans(list_cases(suite)) if plans is None else plans
    return choose_supplements(cast("Session", worker), ["a"], given, suite=suite, **options)["a"]


def list_covered(cases: Iterable[str], strength: int) -> set[Any]:
    """Return the combinations in the rows of these cases, found without the module under test."""
    covered = set()
    for text in cases:
        row = COVERING.case_to_row(Case.parse(text, PROBLEMS))
        if COVERING.is_allowed({name: value for name, value in row.items() if value in COVERING.factors[name]}):
            covered |= set(combinations(sorted(row.items(), key=lambda item: item[0]), strength))
    return covered & set(generate_combinations(COVERING.factors, COVERING.is_allowed, strength))


@pytest.mark.parametrize(
    ("kept", "suite", "share"),
    [(NARROW, "core", 1.0), (NO_WEIGHTS, "core", 1.0), (SELF, "core", 0.99), (GPT, "core", 0.95), (GPT, "full", 0.93)],
    ids=["narrow", "no_weights", "self", "gpt", "gpt_full"],
)
def test_what_the_pool_can_cover_is_covered(kept: Kept, suite: Level, share: float) -> None:
    """The list and the supplementary cases have all combinations that the implementation takes in list and pool.

    ``share`` is the smallest share of these among all combinations that it takes, counted by enumeration.
    """
    rule, strength = keep(kept), {"core": 2, "full": 3}[suite]
    made = choose(FakeWorker(rule), suite).completion
    listed, pool = list_cases(suite), [case.id for case in OPERATOR.pool(suite)]
    own, offered = ([case for case in cases if rule(Case.parse(case, PROBLEMS)) is None] for cases in (listed, pool))
    assert set(made.cases) <= set(offered) - set(listed)
    assert list_covered([*own, *made.cases], strength) == list_covered([*own, *offered], strength)
    assert (made.covered_by_list, made.covered) == (
        len(list_covered(own, strength)), len(list_covered([*own, *offered], strength)),
    )  # fmt: skip
    assert made.taken == made.covered
    fixed = {name: values[0] for name, values in kept.items() if len(values) == 1}
    every = generate_combinations(COVERING.factors, lambda row: COVERING.is_allowed(fixed | row), strength)
    taken = sum(all(value in kept.get(name, (value,)) for name, value in one) for one in every)
    assert made.covered >= share * taken
    assert made.covered_by_list < 0.6 * made.covered


@pytest.mark.parametrize("kept", [NO_WEIGHTS, SELF, GPT], ids=["no_weights", "self", "gpt"])
def test_a_small_suite_is_supplemented_until_a_verdict_can_be_given(kept: Kept) -> None:
    """20 cases are to be checked, none more; the cases of the pool are eager, small and supported."""
    rule = keep(kept)
    listed = list_cases("quick")
    made = choose(FakeWorker(rule), "quick")
    own = [case for case in listed if rule(Case.parse(case, PROBLEMS)) is None]
    assert len(own) < FEWEST_CHECKED
    assert len(own) + len(made.plans) == FEWEST_CHECKED
    assert made.completion.strength == 0
    for plan in made.plans:
        case = Case.parse(plan.case, PROBLEMS)
        assert rule(case) is None
        assert case.id not in listed
        assert case.mode not in COMPILED_MODES
        assert case.problem.queries * case.problem.keys <= 33 * 33


def test_the_cases_depend_on_pool_and_answers_only() -> None:
    """Two implementations that refuse the same cases for other reasons get the same cases."""
    one, other = (choose(FakeWorker(lambda case, i=i: keep(GPT)(case) and f"reason {i}")).completion for i in range(2))  # type: ignore[misc]
    assert one.cases == other.cases
    assert one.completion_hash == other.completion_hash != ""
    assert one.pool_digest == other.pool_digest != ""
    assert one.refusals != other.refusals


@pytest.mark.parametrize("suite", ["quick", "core"])
def test_an_implementation_that_takes_everything_is_asked_about_the_list_only(suite: Level) -> None:
    """No case is added, and the pool is not asked about."""
    worker = FakeWorker(lambda _: None)
    made = choose(worker, suite).completion
    assert (made.cases, made.refusals, made.completion_hash, made.pool_digest) == ((), (), "", "")
    assert made.taken == made.covered == made.combinations
    assert worker.asked == list_cases(suite)
    assert (made.asked, made.unasked) == (len(worker.asked), 0)


def test_an_implementation_that_refuses_everything_gets_no_case() -> None:
    """Nothing is taken; all cases of list and pool were asked about."""
    made = choose(FakeWorker(lambda _: "no")).completion
    assert (made.taken, made.covered, made.cases) == (0, 0, ())
    assert made.combinations == len(list(generate_combinations(COVERING.factors, COVERING.is_allowed, 2)))
    assert made.asked == len({*list_cases("core"), *(case.id for case in OPERATOR.pool("core"))})


def test_a_declaration_that_raises_is_counted() -> None:
    """The cases on which it raises count as refused, and have no frozen declaration."""

    def rule(case: Case) -> str | None:
        if case.problem.kdim:
            raise ValueError("kdim?")
        return None

    made = choose(FakeWorker(rule))
    assert made.completion.first_raised == Raised(kind="ValueError", message="kdim?")
    listed = list_cases("core")
    raised = {case for case in listed if ".K" in case.split("/")[1]}
    assert set(listed) - set(made.declared) == raised
    assert made.completion.raised > len(raised)
    assert made.completion.covered == made.completion.taken < made.completion.combinations


def test_a_slow_declaration_ends_the_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second request has the time that the first left; without an answer about the whole list, no case is added."""
    limits = []

    class Slow(FakeWorker):
        def ask(self, request: DescribeAll) -> Declarations | Outcome:
            limits.append(request.limit_s)
            few = super().ask(DescribeAll(implementation="a", cases=request.cases[: self.most], limit_s=1.0))
            assert isinstance(few, Declarations)
            return Declarations(by_case=few.by_case, seconds=20.0)

        most = 10

    made = choose(Slow(lambda _: "no")).completion
    assert (made.asked, made.unasked, made.asked_s) == (10, 548, 20.0)
    assert (made.strength, made.cases) == (0, ())
    assert made.refusals == ((OtherRefusal(text="no"), tuple(range(10))),)
    assert made.unanswered == tuple(range(10, 558))
    monkeypatch.setattr(Slow, "most", 578)
    made = choose(Slow(keep(GPT))).completion
    assert limits == [30.0, 30.0, 10.0]
    assert (made.asked, made.strength) == (1136, 2)
    assert made.unasked > 1000


def test_an_outcome_in_place_of_answers_is_told() -> None:
    """If the worker dies while it is asked, no case is added, and its reason is kept."""

    class Dead(FakeWorker):
        def ask(self, request: DescribeAll) -> Declarations | Outcome:
            return Outcome(status="crashed", facts=(CRASH,))

    made = choose(Dead(lambda _: None)).completion
    assert (made.no_answer, made.cases) == (CRASH, ())
    assert len(made.unanswered) == made.listed


def test_a_case_that_cannot_be_run_covers_nothing() -> None:
    """Neither a case over the work limit, nor a listed case without its data."""
    made = choose(FakeWorker(keep(NARROW), predicted_s=9.0)).completion
    assert made.covered < made.taken
    assert not any("L66.S72" in case for case in made.cases)
    lacking = [replace(plan, missing="data") for plan in make_plans(list_cases("core"))]
    assert choose(FakeWorker(lambda _: None), plans=lacking).completion.covered_by_list == 0


def test_options_of_a_run() -> None:
    """A run without supplementary cases covers less; parts divide them; a stored completion is used for its list."""
    whole = choose(FakeWorker(keep(GPT)))
    none = choose(FakeWorker(keep(GPT)), adds=False).completion
    assert none == replace(whole.completion, cases=(), covered=whole.completion.covered_by_list)
    parts = [choose(FakeWorker(keep(GPT)), part=(i, 2)).plans for i in (1, 2)]
    assert sorted(plan.case for part in parts for plan in part) == sorted(whole.completion.cases)
    worker = FakeWorker(lambda _: None)
    assert choose(worker, stored={"a": whole.completion}) == whole
    assert worker.asked == []
    assert choose(worker, "quick", stored={"a": whole.completion}) != whole
    plans = [replace(plan, case=plan.case.replace("/cpu/", "/cuda/")) for plan in make_plans(list_cases("core"))]
    there = choose(FakeWorker(keep(GPT)), plans=plans).completion
    assert there.cases == tuple(case.replace("/cpu/", "/cuda/") for case in whole.completion.cases)


@pytest.mark.parametrize("suite", ["quick", "core"])
def test_the_other_operator_has_a_pool_too(suite: Level) -> None:
    """attention_core has a covering array and a pool of its own."""
    worker = FakeWorker(lambda case: None if case.problem.window is None else "window", CORE_OPERATOR)
    made = choose(worker, suite, make_plans(list_cases(suite, CORE_OPERATOR))).completion
    assert made.covered == made.taken
    assert made.cases
    assert all("window" not in case for case in made.cases)


def test_an_operator_without_a_pool_takes_the_next_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few supported cases of ``core`` all supplement ``quick``, compiled ones last; nothing is counted."""
    listed = list_cases("quick")
    further = [case for case in OPERATOR.suite("core") if case.id not in listed]
    few = [case.id for case in further if case.compiler] + [case.id for case in further][-9:]
    monkeypatch.setattr(supplement, "load_operator", lambda _: SimpleNamespace(covering=None))
    worker = FakeWorker(lambda case: None if case.id in few else "no")
    worker.pool = lambda level: Operator.pool(OPERATOR, level)
    made = choose(worker, "quick").completion
    assert set(made.cases) == set(few)
    compiled = [Case.parse(case, PROBLEMS).mode in COMPILED_MODES for case in made.cases]
    assert compiled == sorted(compiled)
    assert any(compiled)
    assert (made.strength, made.combinations) == (0, 0)
    assert Operator.pool(OPERATOR, "full") == ()


def test_cases_that_are_refused_only_when_called_cover_nothing() -> None:
    """After the run, their number is stored, and their combinations are no longer covered."""
    worker = FakeWorker(keep(GPT))
    made = choose(worker)
    silent = Finding(check="x", status="unsupported", facts=(OtherRefusal(text="Refusal"),))
    passed = Finding(check="x", status="passed")
    late = made.completion.cases[:5]
    results = [
        Result(run="r", implementation="a", case=case, findings=(silent if case in late else passed,))
        for case, refusal in made.declared.items()
        if refusal is None
    ]

    def settle(some: list[Result]) -> Completion:
        return settle_supplements(cast("Session", worker), {"a": made}, some)["a"]

    settled = settle(results)
    assert settled.refused_when_called == 5
    assert settled.covered < made.completion.covered
    whole = settle([one for one in results if one.case not in late])
    assert (whole.refused_when_called, whole.covered) == (0, made.completion.covered)


def test_a_cover_is_greedy_and_stable() -> None:
    """The case with most missing combinations comes first, of equal ones the first; a useless case is left out."""
    cases = {"one": 0b0001, "two": 0b0011, "three": 0b1100, "four": 0b1110, "five": 0b10000}
    assert choose_cover(cases, 0b1111) == ["four", "one"]
    assert choose_cover(cases, 0b0011) == ["two"]
    assert choose_cover(cases, ~0) == ["four", "one", "five"]
    assert choose_cover({}, 0b1) == []


@pytest.mark.parametrize(
    ("now", "planned", "changed"),
    [(None, None, False), (NO, NO, False), (NO, None, True), (None, NO, True)],
)
def test_the_planned_answer_counts(now: OtherRefusal | None, planned: OtherRefusal | None, *, changed: bool) -> None:
    """A later answer is replaced by the answer of the plan, and the difference is told; an exception is not."""
    declared, told = keep_declaration(Declaration(unsupported=now, untimed=NO, predicted_s=2.0), planned)
    assert isinstance(declared, Declaration)
    assert (declared.unsupported, declared.untimed, declared.predicted_s) == (planned, NO, 2.0)
    assert told == (DeclarationChanged(before=planned, now=now) if changed else None)
    raised = Outcome(status="error", facts=(Raised(kind="KeyError", message="x"),))
    assert keep_declaration(raised, planned) == (raised, None)
