"""Tests of deviations from declared policies: what to declare or to remove."""

import pytest

from attnbench.analysis.deviations import find_remedy, is_default, join_deviations, make_deviation
from attnbench.interface import Policies


def test_an_undeclared_deviation_is_to_be_declared() -> None:
    """The remedy has the policies with the values that were seen."""
    deviation = make_deviation(Policies(), hidden_rows="mean", hidden_row_gradients="softmax")
    assert find_remedy(deviation) == {"hidden_rows": "mean", "hidden_row_gradients": "softmax"}
    assert not is_default(deviation)


def test_a_false_declaration_is_to_be_removed() -> None:
    """If the default is seen where something else is declared, the remedy has the declaration."""
    deviation = make_deviation(Policies(hidden_rows="mean"), hidden_rows="zero", hidden_row_gradients="exact")
    assert (is_default(deviation), find_remedy(deviation)) == (True, {"hidden_rows": "mean"})


def test_deviations_are_joined_by_their_remedy() -> None:
    """Policies to declare become one deviation, each once, and those to remove another."""
    one = make_deviation(Policies(), hidden_rows="nan")
    both = make_deviation(Policies(), hidden_rows="nan", hidden_row_gradients="nan")
    removed = make_deviation(Policies(detached_weights=True), detached_weights=False)
    other = make_deviation(Policies(), hidden_row_gradients="nan")
    assert join_deviations([one, removed, other, one]) == (both, removed)


def test_gradients_of_a_softmax_need_the_mean() -> None:
    """Gradients of a softmax are refused for fully masked rows that are not the mean of the values."""
    with pytest.raises(ValueError, match=r"^hidden_row_gradients='softmax' needs hidden_rows='mean', got .*'zero'$"):
        Policies(hidden_row_gradients="softmax")
