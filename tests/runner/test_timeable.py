"""Tests of the count of implementations that will be timed on each case."""

from pathlib import Path

import pytest

from attnbench.api.selection import choose_timed_implementations
from attnbench.runner import Limits, Session, list_gating_checks, list_profile_cases, list_timeable

NAMES = ("torch_mha", "sdpa", "sdpa_cudnn", "naive_loop")
RAISING = """
from attnbench.interface import Implementation


class Raising(Implementation):
    name = "raising"
    source = "https://example.org"

    def unsupported(self, case):
        raise ValueError("no answer")


RAISING = Raising()
"""


@pytest.mark.parametrize("keeps", [True, False])
def test_what_implementations_declare_is_asked_before_anything_is_run(keeps: bool) -> None:
    """A case that is refused, or predicted to take too long, is not timed; without a kept worker nobody is asked."""
    with Session(limits=Limits(work_s=0.12)) as session:
        chosen = choose_timed_implementations(session, NAMES, asked=True, operators=("multihead",), keeps=keeps)
        plans = session.plan(list_profile_cases(session, [16, 512], ["forward"]), list_gating_checks())
        plans = [plan for plan in plans if plan.operator == "multihead"]
        found = list_timeable(session, chosen, plans)
        short, long = (plan.case for plan in plans)
        both = [short, long]
        left = {"sdpa_cudnn": [], "naive_loop": [short]} if keeps else {}
        assert found == dict.fromkeys(NAMES, both) | left
        assert session.workers.find("sdpa") is None


def test_a_declaration_that_raises_counts_as_refused(tmp_path: Path) -> None:
    """An implementation that raises when it is asked will not be timed."""
    path = tmp_path / "raising.py"
    path.write_text(RAISING)
    with Session() as session:
        (*_, name) = choose_timed_implementations(
            session, [f"{path}:RAISING"], asked=True, operators=("multihead",), keeps=True
        )
        plans = session.plan(list_profile_cases(session, [16], ["forward"], of=["multihead"]), list_gating_checks())
        found = list_timeable(session, ["torch_mha", name], plans)
        assert found == {"torch_mha": [plans[0].case], name: []}
