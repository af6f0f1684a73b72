"""Tests of mutants: each mutant fails the check named in its ``caught_by``, and correct variants pass every check."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch

from attnbench.cases import COMPILED_MODES, Case
from attnbench.checks.catalogue import read_checks
from attnbench.checks.chapters import size
from attnbench.interface import Implementation
from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.multihead import MUTANTS
from attnbench.mutants.multihead.formula import Formula
from attnbench.mutants.multihead.sizes import shapes
from attnbench.mutants.mutant import Equivalent, ModuleImplementation, Mutant
from attnbench.plugins.registry import load, load_operator, load_problem_types
from attnbench.records.outcome_facts import NoGradient
from attnbench.records.value_facts import ValueFact
from registered_mutants import MUTANT_SETS

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from conftest import Conformance

# Reading them reads the metadata of every installed distribution.
TYPES = load_problem_types()
# ALL: the mutants of every operator. RIGHT: for each operator, the correct implementation that its mutants change.
ALL = [mutant for one_set in MUTANT_SETS.values() for mutant in one_set.mutants]
RIGHT = {
    "multihead": ModuleImplementation(Formula),
    "attention_core": ModuleImplementation(CoreFormula, operator="attention_core"),
}
# For an attention mechanism, the correct implementation has the name of the operator.
RIGHT |= {name: load(name) for name in MUTANT_SETS if name not in RIGHT}


@pytest.fixture
def untouched_process() -> Iterator[None]:
    """Restore torch's global settings after a test, because a mutant may change them."""
    threads, generator = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
    torch.set_rng_state(generator)
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.backends.mha.set_fastpath_enabled(True)


# Number of query-key pairs of a head above which a case takes more than a second.
MANY_PAIRS = 2**20
# Cases on which a correct variant can differ most: partial means that are rounded, by autocast or because they are
# stored, a large product under autocast, and a fully masked row where one number is estimated from all rows.
VARIED = (
    "multihead/B3.L5.S17.E21.H3/batch_first/mask=bool3d/regime=uniform/seed=0/bfloat16/cpu/inference",
    "multihead/B1.L2.S15.E32.H4/need_weights/mask=padholes/regime=uniform/seed=0/bfloat16/cpu/autocast",
    "multihead/B1.L2.S8.E32.H4/need_weights/mask=none/regime=uniform/seed=0/bfloat16/cpu/autocast",
    "multihead/B2.L7.S4.E4.H1/-/mask=none/regime=overflow/seed=0/float16/cpu/autocast",
    "multihead/B2.L6.S4.E24.H4/batch_first+key_is_value/mask=bool2d+padleft/regime=identity/seed=471/float32/cpu/eval",
)


def parse_case(mutant: Mutant | Equivalent) -> Case:
    """Return the case on which the change of a mutant shows, its ``shown_by``."""
    return Case.parse(mutant.shown_by, TYPES)


def mark_long(case: str) -> list[pytest.MarkDecorator]:
    """Return the mark of tests on a case that compiles, or that has more than ``MANY_PAIRS`` query-key pairs."""
    shown = Case.parse(case, TYPES)
    lengths = [int(number) for number in re.findall(r"[LS](\d+)", shown.id.split("/")[1])]
    return [pytest.mark.extended] if shown.mode in COMPILED_MODES or math.prod(lengths) > MANY_PAIRS else []


@pytest.mark.usefixtures("untouched_process")
@pytest.mark.parametrize(
    "mutant", [pytest.param(mutant, id=mutant.name, marks=mark_long(mutant.shown_by)) for mutant in ALL]
)
def test_a_mutant_fails_the_check_that_it_names(
    conformance: "Conformance", monkeypatch: pytest.MonkeyPatch, mutant: Mutant
) -> None:
    """On its case ``shown_by``, a mutant fails its check ``caught_by``, by what the check compared.

    If the output of a mutant has no gradient graph, a check of gradients has nothing to compare.
    """
    if mutant.caught_by == "far_offsets":
        monkeypatch.setattr(size, "PAIRS", 2**17)
        monkeypatch.setattr(shapes.OffsetsIn32Bits, "largest", 2**17)
    finding = conformance.finding(mutant.implementation, parse_case(mutant), mutant.caught_by)
    assert finding.status == "failed", finding
    assert isinstance(finding.facts[0], ValueFact | NoGradient)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case, marks=mark_long(case)) for case in sorted({one.shown_by for one in ALL})]
)
def test_the_formula_that_mutants_change_passes_the_same_checks(
    conformance: "Conformance", monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The correct implementation passes the mutants' checks on their case: only the change makes them fail."""
    shown = Case.parse(case, TYPES)
    assert shown.id == case
    named = {mutant.caught_by for mutant in ALL if mutant.shown_by == case}
    checks = [check for check in conformance.applicable(shown) if check in named]
    assert set(checks) == named
    monkeypatch.setattr(size, "PAIRS", 2**17)
    found = conformance.findings(RIGHT[shown.operator], shown, checks)
    # Second derivatives are checked only if the implementation declares them, and the formula has no constructor of
    # its own.
    left_out = ("second_derivatives", "constructed_parameters")
    wanted = {check: "unsupported" if check in left_out else "passed" for check in checks}
    assert {finding.check: finding.status for finding in found} == wanted, found


def test_every_check_has_a_mutant() -> None:
    """The mutants' ``caught_by`` name every check, because a check that no mutant fails proves nothing."""
    assert {mutant.caught_by for mutant in ALL} == set(read_checks())


def test_every_check_of_attention_core_has_a_mutant_of_that_operator(conformance: "Conformance") -> None:
    """Every check that applies to a case of attention_core catches a mutant of attention_core."""
    applicable = {
        check for case in load_operator("attention_core").suite("full") for check in conformance.applicable(case)
    }
    assert {mutant.caught_by for mutant in MUTANT_SETS["attention_core"].mutants} == applicable


def test_the_mutant_set_has_its_promised_size() -> None:
    """The set of multihead has at least 80 mutants and 15 correct variants; each chapter of checks catches a mutant."""
    assert len(MUTANTS.mutants) >= 80
    assert len(MUTANTS.variants) >= 15
    chapters = {read_checks()[mutant.caught_by].chapter for mutant in ALL}
    assert chapters == {check.chapter for check in read_checks().values()}


def test_names_are_unique_and_every_mutant_has_its_reason() -> None:
    """No two implementations of the mutant sets have the same name; no two mutants have the same text ``why``."""
    named = [one for one_set in MUTANT_SETS.values() for one in one_set.implementations()]
    assert [name for name, count in Counter(one.name for one in named).items() if count > 1] == []
    assert all(mutant.why for mutant in ALL)
    assert len({mutant.why for mutant in ALL}) == len(ALL)


@pytest.mark.parametrize("equivalent", MUTANTS.equivalents, ids=lambda equivalent: equivalent.name)
def test_an_equivalent_mutant_passes_every_check_and_its_proof_holds(
    conformance: "Conformance", equivalent: Equivalent
) -> None:
    """An equivalent mutant passes every check on the case where its change would show if it had an effect.

    The condition of its proof, ``holds()``, is true.
    """
    case = parse_case(equivalent)
    found = conformance.findings(equivalent.implementation, case)
    assert [finding for finding in found if finding.status not in ("passed", "unsupported")] == []
    assert sum(finding.status == "passed" for finding in found) > 10
    assert equivalent.holds()
    assert equivalent.proof


def list_variant_cases(operator: str) -> list[Case]:
    """Return the cases on which correct variants are checked: those of quick, and for multihead ``VARIED``."""
    cases = [case for case in load_operator(operator).suite("quick") if case.compiler is None]
    if operator != "multihead":
        return cases
    plain = [case for case in cases if case.problem.encoder_layer is None]
    return [*plain, *(Case.parse(text, TYPES) for text in VARIED)]


def deal_cases(operator: str) -> list[Any]:
    """Return (variant, its cases) as values of a parameter: each case with one variant that supports it, in turn.

    A second value of each variant has all its cases; it belongs to ``make test-scores``.
    """
    variants = MUTANT_SETS[operator].variants
    dealt: dict[str, list[Case]] = {variant.name: [] for variant in variants}
    cases = list_variant_cases(operator)
    supported = {one.name: [case for case in cases if one.unsupported(case) is None] for one in variants}
    for case in cases:
        able = [one.name for one in variants if case in supported[one.name]]
        dealt[min(able, key=lambda name: len(dealt[name]))].append(case)
    return [
        *(
            pytest.param(one, dealt[one.name] or supported[one.name][:1], id=f"{one.name}-one-of-each")
            for one in variants
        ),
        *(pytest.param(one, supported[one.name], id=one.name, marks=pytest.mark.scores) for one in variants),
    ]


@pytest.mark.parametrize(("variant", "cases"), deal_cases("multihead"))
def test_a_correct_variant_passes_every_check(
    conformance: "Conformance", variant: Implementation, cases: list[Case]
) -> None:
    """A correct variant of multihead passes every applicable check, on every case of quick and of ``VARIED``."""
    found = [(case.id, finding) for case in cases for finding in conformance.findings(variant, case)]
    # A check that needs attention weights is unsupported for a variant that returns none.
    assert [(case, f) for case, f in found if f.status not in ("passed", "unsupported")] == []
    assert "passed" in {finding.status for _, finding in found}


def test_correct_variants_are_checked_by_the_main_chapters(conformance: "Conformance") -> None:
    """The cases of correct variants have checks of the chapters on results, layouts, invariants and hygiene."""
    for operator, chapters in (
        ("multihead", {"forward", "layouts", "invariants", "hygiene"}),
        ("attention_core", {"positions", "grouping", "invariants"}),
    ):
        asked = {check for case in list_variant_cases(operator) for check in conformance.applicable(case)}
        assert chapters <= {read_checks()[check].chapter for check in asked}


def test_every_case_that_shows_a_mutant_is_in_a_list() -> None:
    """The case ``shown_by`` of every mutant is in the suite full or, if only a large size shows it, in slow or huge."""
    listed = {
        case.id for name in MUTANT_SETS for level in ("slow", "huge") for case in load_operator(name).suite(level)
    }
    assert [mutant.name for mutant in ALL if mutant.shown_by not in listed] == []


def test_a_mutant_set_is_of_its_operator() -> None:
    """All implementations of an operator's mutant set compute that operator; attention_core has 50 mutants or more."""
    assert all(
        one.operator == operator for operator, one_set in MUTANT_SETS.items() for one in one_set.implementations()
    )
    assert len(MUTANT_SETS["attention_core"].mutants) >= 50


@pytest.mark.parametrize(("variant", "cases"), deal_cases("attention_core"))
def test_a_correct_kernel_passes_every_check(
    conformance: "Conformance", variant: Implementation, cases: list[Case]
) -> None:
    """A correct variant of attention_core passes every applicable check, on every case of quick."""
    found = [(case.id, finding) for case in cases for finding in conformance.findings(variant, case)]
    assert [(case, finding) for case, finding in found if finding.status != "passed"] == []
