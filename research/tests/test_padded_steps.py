"""Tests of the study of the steps of ``varlen_packed``: its table, and a small measurement."""

import pytest
import torch

from attnbench.oracle import sentence_encoder
from research import padded_steps
from research.padded import Shape
from research.padded_steps import PACKED, REFERENCE, WHOLE, Step


def test_the_table_has_time_and_share_of_the_ceiling_of_each_step() -> None:
    """A row has the time of a step in each pass, and for products the share; backward has twice the products again."""
    sides = ((REFERENCE, "attention", 4_000), (REFERENCE, WHOLE, 0), (PACKED, "attention", 1_000), (PACKED, WHOLE, 0))
    steps = [Step(side=side, name=name, run=torch.relu, inputs=(), flop=flop) for side, name, flop in sides]
    forward = dict(zip(((side, name) for side, name, _ in sides), (8.0, 10.0, 4.0, 5.0), strict=True))
    both = {key: took * 4 for key, took in forward.items()}
    table = padded_steps.format_table(steps, {"forward": forward, "forward and backward": both}, 1e6)
    assert table == (
        "| side | step | forward, ms | of the ceiling | forward and backward, ms | of the ceiling |\n"
        "| --- | --- | ---: | ---: | ---: | ---: |\n"
        "| reference | attention | 8.00 | 50% | 32.00 | 38% |\n"
        "| reference | the whole call | 10.00 |  | 40.00 |  |\n"
        "| varlen_packed | attention | 4.00 | 25% | 16.00 | 19% |\n"
        "| varlen_packed | the whole call | 5.00 |  | 20.00 |  |\n"
        "\nforward: 2.00 times as fast; 2.50 times if the projections and attention took all the time.\n"
        "\nforward and backward: 2.00 times as fast; 2.50 times if the projections and attention took all the time.\n"
    )


def test_the_steps_of_a_side_give_what_the_whole_call_gives() -> None:
    """The outputs of the last steps of both sides agree with the whole calls, and each step is timed in both passes."""
    if reason := sentence_encoder.describe_missing():
        pytest.skip(reason)
    steps = padded_steps.make_steps(Shape(2, 16))
    named = {(step.side, step.name): step for step in steps}
    assert len(named) == len(steps) == 4 + 7
    whole = named[PACKED, WHOLE]
    unpacked = named[PACKED, "unpack the output"]
    torch.testing.assert_close(unpacked.run(*unpacked.inputs), whole.run(*whole.inputs))
    back, full = named[REFERENCE, "output projection"], named[REFERENCE, WHOLE]
    torch.testing.assert_close(back.run(*back.inputs), full.run(*full.inputs))
    for backward in (False, True):
        times = padded_steps.time_steps(steps, 1, backward=backward)
        assert times.keys() == named.keys()
        assert all(took > 0 for took in times.values())
