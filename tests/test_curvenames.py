"""Names beside the ends of curves."""

from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnbench.report import curvenames
from attnbench.report.curvenames import End

PANEL = 3.6


def end(name: str, length: int, value: float, *, beyond: bool = False) -> End:
    """Of a curve."""
    return End(name=name, colour="#000000", length=length, value=value, beyond=beyond)


def test_places_move_only_where_they_are_too_near_and_stay_inside() -> None:
    """Neighbours part around their middle; at the top and bottom of a panel there is no further."""
    assert curvenames.spread([0.2, 0.8], 0.1) == [0.2, 0.8]
    assert curvenames.spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert curvenames.spread([0.0, 0.01], 0.1) == pytest.approx([0.0, 0.1])
    assert curvenames.spread([0.99, 1.0], 0.1) == pytest.approx([0.9, 1.0])


def test_a_long_name_gets_the_room_that_it_needs() -> None:
    """Such as a file's."""
    short, long = (curvenames.room([name], PANEL) for name in ("sdpa", "my_attention.py:MyAttention"))
    assert short < 1 < 1.5 < long


@pytest.mark.parametrize("longest", [32, 512])
def test_names_of_curves_that_end_together_do_not_stand_upon_one_another(longest: int) -> None:
    """Beside the panel, and inside it where longer calls were not started."""
    figure = Figure(figsize=(PANEL + 2, 3.5))
    axes = figure.subplots()
    axes.set_yscale("log")
    axes.set_xlim(32, longest + 1)
    axes.set_ylim(1, 1000)
    curvenames.place(axes, [end(name, 32, 30.0, beyond=True) for name in ("one", "two", "three")], longest)
    figure.draw_without_rendering()
    # Of the names alone, without the lines that lead to them.
    boxes = sorted((Text.get_window_extent(text) for text in axes.texts), key=lambda box: box.y0)
    assert len(boxes) == 3
    assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))
