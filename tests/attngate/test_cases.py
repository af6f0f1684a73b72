"""Tests of the cases that a gate times: the page lists them, and operators make cases of them."""

import re
from pathlib import Path

from attnbench.cases import CaseId
from attnbench.runner import Limits, Session
from attngate.cases import USES, list_uses

PAGE = (Path(__file__).parents[2] / "docs" / "gate.md").read_text(encoding="utf-8")


def test_the_page_lists_the_timed_cases() -> None:
    """A row of the page has the name, the sizes, the mask and the pass of a use."""
    rows = [
        (
            use.name, f"{use.shape.queries} × {use.shape.keys}", f"{use.shape.batch}",
            f"{use.shape.heads} × {use.shape.head_dim}",
            f"{100 * use.shape.padding:.0f} % padding" if use.shape.padding else use.shape.mask, use.timed,
        )
        for use in USES
    ]  # fmt: skip
    table = PAGE.partition("## The timed cases")[2].partition("They stand for")[0]
    assert re.findall(r"^\| (.*) \|$", table, re.MULTILINE)[1:] == [" | ".join(row) for row in rows]


def test_an_operator_has_the_cases_whose_shapes_it_has() -> None:
    """Those of attention have all shapes, shortest first; an operator that is not timed has none."""
    with Session(limits=Limits()) as session:
        found = {name: list_uses(session, name) for name in ("multihead", "attention_core", "additive_pooling")}
        forward = list_uses(session, "multihead", ["forward"])
    assert len(found["multihead"]) == len(found["attention_core"]) == len(USES)
    lengths = [CaseId.parse(case).lengths for case in found["multihead"]]
    assert lengths == sorted(lengths)
    assert set(forward) < set(found["multihead"])
    assert found["additive_pooling"] == []
