"""Tests of the text of causes."""

from collections.abc import Sequence

from syrupy.assertion import SnapshotAssertion

from attnbench.analysis.root_causes import RootCause, find_root_causes
from attnbench.records.facts import Fact
from attnbench.records.types import Finding, Result
from attnbench.records.value_facts import ConditionViolated, LooksLike, NotEvaluated, Phrase
from attnbench.words.causes import describe_attributions, describe_cause, describe_shared, name_cause, title_cause
from made_facts import DEVIATION, LOOKS, OFF, SCALE

CASE = "multihead/B2.L5.S7.E8.H2/-/mask=none/regime=plain/seed=0/float32/cpu/eval"
ONE = LooksLike(faults=LOOKS.faults[:1])
RAISED = NotEvaluated(raised="TypeError", message="no")
OWN = ConditionViolated(violation=Phrase(key="own words"))


def find_cause(*found: tuple[str, Sequence[Fact]]) -> RootCause:
    """Return the only cause of findings, each with its check and facts."""
    findings = tuple(
        Finding(
            check=check, status="error" if RAISED in facts else "failed", facts=tuple(facts), measured=2.0, allowed=1.0
        )
        for check, facts in found
    )
    (cause,) = find_root_causes([Result(run="r", implementation="mine", case=CASE, findings=findings)])
    return cause


CAUSES = {
    "diagnosis": (("forward_parity", (OFF, ONE)), ("weights_parity", (OFF, ONE)), ("effective_scale", (SCALE,))),
    "scale": (("effective_scale", (SCALE,)), ("forward_parity", (OFF,))),
    "deviation": (("forward_parity", (OFF, DEVIATION)),),
    "exception": (("forward_parity", (RAISED,)), ("input_gradients", (RAISED,))),
    "exception in one check": (("forward_parity", (RAISED,)),),
    "leak": (("padding_cannot_leak", (OWN,)), ("future_cannot_leak", (OWN,))),
    "check": (("inputs_untouched", (OWN,)),),
}


def test_causes_are_told(snapshot: SnapshotAssertion) -> None:
    """A cause of each kind has a name, a title, lines for a terminal, and what its findings have in common."""
    causes = {name: find_cause(*found) for name, found in CAUSES.items()}
    assert {cause.kind for cause in causes.values()} == {name.partition(" ")[0] for name in causes}
    assert {
        name: [
            name_cause(cause), title_cause(cause), *describe_cause(cause), describe_shared(cause),
            describe_attributions(cause),
        ]
        for name, cause in causes.items()
    } == snapshot  # fmt: skip


def test_a_finding_of_an_older_schema_is_told_by_its_reason() -> None:
    """The stored text is shown without the requirement that it begins with."""
    old = Finding(check="own_check", status="failed", reason="Needed. But off.")
    (cause,) = find_root_causes([Result(run="r", implementation="mine", case=CASE, findings=(old,))])
    assert describe_cause(cause)[0] == "Needed. But off."
    assert name_cause(cause) == "own_check"
