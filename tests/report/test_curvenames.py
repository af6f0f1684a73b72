"""Tests of the labels beside the ends of curves."""

from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnbench.report import curvenames
from attnbench.report.curvenames import End

PANEL = 3.6


def make_end(name: str, length: int, value: float, *, beyond: bool = False) -> End:
    """Make the end of a curve with this name, at this length and value."""
    return End(name=name, colour="#000000", length=length, value=value, beyond=beyond)


def test_labels_move_only_where_they_are_too_close_and_stay_inside() -> None:
    """Labels that are too close move apart around their centre, and stay inside the panel."""
    assert curvenames.spread([0.2, 0.8], 0.1) == [0.2, 0.8]
    assert curvenames.spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert curvenames.spread([0.0, 0.01], 0.1) == pytest.approx([0.0, 0.1])
    assert curvenames.spread([0.99, 1.0], 0.1) == pytest.approx([0.9, 1.0])


def test_a_clear_place_is_the_nearest_free_one() -> None:
    """The place is the nearest free one inside the panel; where none is free, it is the requested one, moved inside."""
    assert curvenames.find_clear_place(0.5, 0.1, [(0.7, 0.9)]) == 0.5
    assert curvenames.find_clear_place(0.5, 0.1, [(0.45, 0.8)]) == pytest.approx(0.35)
    assert curvenames.find_clear_place(0.1, 0.1, [(0.05, 0.2)]) == pytest.approx(0.3)
    # The nearest place outside the first interval is inside the second.
    assert curvenames.find_clear_place(0.5, 0.1, [(0.45, 0.6), (0.3, 0.4)]) == pytest.approx(0.7)
    assert curvenames.find_clear_place(0.99, 0.1, []) == curvenames.find_clear_place(0.99, 0.1, [(0.0, 1.0)]) == 0.9


def test_a_label_inside_a_panel_does_not_cross_the_curves() -> None:
    """The label of a curve that ends early does not overlap the other curves."""
    figure = Figure(figsize=(PANEL / 0.775, 3.5))
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(30, 600)
    axes.set_ylim(1, 1000)
    for start in (2.0, 4.0, 8.0):
        axes.plot([32, 128, 512], [start, start * 4, start * 16])
    curvenames.place(axes, [make_end("loop", 32, 4.0, beyond=True)], 512, PANEL)
    figure.draw_without_rendering()
    (text,) = axes.texts
    name = Text.get_window_extent(text)
    assert name.y0 > axes.bbox.y0
    assert name.y1 < axes.bbox.y1
    for line in axes.lines:
        assert not line.get_transform().transform_path(line.get_path()).intersects_bbox(name, filled=False)


def test_a_long_name_gets_the_room_that_it_needs() -> None:
    """The room for a name in inches grows with the length of the name."""
    short, long = (curvenames.compute_room([name], PANEL) for name in ("sdpa", "my_attention.py:MyAttention"))
    assert short < 1 < 1.5 < long


@pytest.mark.parametrize("longest", [32, 512])
def test_labels_of_curves_that_end_together_do_not_overlap(longest: int) -> None:
    """Three labels of curves that end at one point do not overlap, beside the panel or inside it."""
    figure = Figure(figsize=(PANEL + 2, 3.5))
    axes = figure.subplots()
    axes.set_yscale("log")
    axes.set_xlim(32, longest + 1)
    axes.set_ylim(1, 1000)
    curvenames.place(axes, [make_end(name, 32, 30.0, beyond=True) for name in ("one", "two", "three")], longest, PANEL)
    figure.draw_without_rendering()
    # The extents of the names alone, without their leader lines.
    boxes = sorted((Text.get_window_extent(text) for text in axes.texts), key=lambda box: box.y0)
    assert len(boxes) == 3
    assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))
