"""Tests of modules as other libraries write them: an undeclared deviation is one cause, a declared one is right."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attnbench.analysis.deviations import make_deviation
from attnbench.analysis.root_causes import find_root_causes
from attnbench.cases import Case
from attnbench.checks.requirement import has_tokens
from attnbench.interface import Implementation, Policies
from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.registry import load_operator
from attnbench.processes.candidate_requests import Outcome
from attnbench.records.types import Result
from attnbench.workers.empty_batches import judge_empty_batch

if TYPE_CHECKING:
    from conftest import Conformance

MODULES = Path(__file__).with_name("foreign_modules.py")
# Policies that declare each module's deviation, and the pattern of the cases of core that show it.
DEVIATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "WeightsBeforeDropout": ({"returned_weights": "before_dropout"}, "dropout"),
    "DetachedWeights": ({"detached_weights": True}, "need_weights"),
    "LargeNegativeFill": ({"hidden_rows": "mean"}, "mask=empty"),
    "LargeNegativeBias": ({"hidden_rows": "mean", "hidden_row_gradients": "softmax"}, "mask=empty"),
    "NanGradients": ({"hidden_row_gradients": "nan"}, "mask=empty"),
    "NanRows": ({"hidden_rows": "nan", "hidden_row_gradients": "nan"}, "mask=empty"),
}
# Largest number of cases on which a test runs all checks.
MOST_CASES = 4


def load(name: str, policies: Policies) -> Implementation:
    """Return the wrapped module with the given policies."""
    found = load_implementation(f"{MODULES}:{name}")
    found.policies = policies
    return found


def run_checks(conformance: "Conformance", one: Implementation, pattern: str) -> list[Result]:
    """Run all checks of some cases of core that the implementation supports and whose id contains ``pattern``."""
    found: list[Case] = [
        case
        for case in load_operator("multihead").suite("core")
        if pattern in case.id and case.compiler is None and has_tokens(case) and one.unsupported(case) is None
    ]
    training = sorted(found, key=lambda case: (not case.differentiates, case.problem.queries * case.problem.keys))
    return [
        Result(
            run="r",
            implementation="mine",
            case=case.id,
            findings=tuple(conformance.findings(one, case)),
        )
        for case in training[:MOST_CASES]
    ]


@pytest.mark.parametrize("name", DEVIATIONS)
@pytest.mark.filterwarnings("ignore:.*mismatched key_padding_mask and attn_mask.*")
def test_an_undeclared_deviation_is_one_cause(conformance: "Conformance", name: str) -> None:
    """All failures of an undeclared deviation have one cause, which names the policies."""
    declared, pattern = DEVIATIONS[name]
    (cause,) = find_root_causes(run_checks(conformance, load(name, Policies()), pattern))
    assert (cause.kind, cause.facts) == ("deviation", (make_deviation(Policies(), **declared),))


@pytest.mark.parametrize("name", DEVIATIONS)
@pytest.mark.filterwarnings("ignore:.*mismatched key_padding_mask and attn_mask.*")
def test_a_declared_deviation_fails_nothing(conformance: "Conformance", name: str) -> None:
    """With its deviation declared, a module passes every check."""
    declared, pattern = DEVIATIONS[name]
    results = run_checks(conformance, load(name, Policies(**declared)), pattern)
    findings = [finding for result in results for finding in result.findings]
    assert [finding for finding in findings if finding.status not in ("passed", "unsupported")] == []
    assert sum(finding.status == "passed" for finding in findings) > 20


EMPTY = Case.parse(
    "multihead/B0.L5.S7.E24.H3/bias+batch_first/mask=pad/regime=plain/seed=0/float32/cpu/eval",
    {"multihead": load_operator("multihead").problem},
)


@pytest.mark.parametrize("declared", ["computed", "refused"])
@pytest.mark.parametrize("name", ["EmptyBatchRaises", "DetachedWeights"])
def test_refused_empty_batches_are_as_declared(conformance: "Conformance", name: str, declared: Any) -> None:
    """An exception on an empty batch is an error that names the policy, or a refusal; no exception is a failure."""
    policies = Policies(empty_batches=declared)
    candidate = conformance.candidate(load(name, policies), EMPTY)

    def run_check() -> None:
        candidate.run()

    outcome = judge_empty_batch(policies, EMPTY, candidate.run, run_check)
    raises = name == "EmptyBatchRaises"
    if declared == "computed":
        assert (outcome is None) == (not raises)
        assert outcome is None or (
            outcome.status,
            outcome.facts[-1],
        ) == ("error", make_deviation(policies, empty_batches="refused"))
        return
    assert isinstance(outcome, Outcome)
    assert outcome.status == ("unsupported" if raises else "failed")
    assert raises or outcome.facts == (make_deviation(policies, empty_batches="computed"),)
