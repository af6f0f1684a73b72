"""A case as a standalone program."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from attnbench.cases import Case
from attnbench.inputs import rounded
from attnbench.operators.multihead import OPERATOR
from attnbench.operators.multihead.script import script
from attnbench.registry import load_lines

LOAD = load_lines("attnzoo.reshaped:RESHAPED")
DRAWN = [c for c in OPERATOR.suite("quick") if c.problem.encoder_layer is None and not c.problem.dropout]


@pytest.mark.parametrize("case", DRAWN, ids=lambda case: case.id)
def test_the_program_draws_the_numbers_of_the_case(case: Case) -> None:
    """Run up to its call, the program holds the very inputs that the harness draws."""
    text = script(case, LOAD)
    names: dict[str, object] = {}
    exec(text[: text.index("\n\ndef reference")], names)
    drawn = rounded(OPERATOR.inputs(case), getattr(torch, case.dtype))
    for ours, theirs in ((drawn.parameters, names["parameters"]), (drawn.tensors, names["call"])):
        assert isinstance(theirs, dict)
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            torch.testing.assert_close(theirs[name], tensor, rtol=0, atol=0)


def test_the_program_runs_without_the_harness() -> None:
    """It prints an error of rounding's size, and its own text names no attnbench."""
    case = DRAWN[0]
    text = script(case, LOAD)
    assert "attnbench" not in text
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    first = done.stdout.splitlines()[0]
    assert first.startswith("output: largest error ")
    assert float(first.rpartition(" ")[2]) < 1e-5


@pytest.mark.parametrize(
    ("changes", "mode", "reason"),
    [
        ({"regime": "minilm0", "embed_dim": 384, "num_heads": 12}, "eval", "real encoder"),
        ({"dropout": 0.5}, "train", "no single right answer"),
    ],
)
def test_a_case_without_a_program_says_why(changes: dict[str, object], mode: str, reason: str) -> None:
    """Real weights and random outputs have none."""
    case = replace(DRAWN[0].with_problem(**changes), mode=mode)
    with pytest.raises(ValueError, match=reason):
        script(case, LOAD)
