"""Tests of the sentences about deviations from declared policies."""

import pytest

from attnbench.analysis.deviations import describe_deviation, find_declaration, find_sentence, join_sentences
from attnbench.interface import Policies


def test_an_undeclared_deviation_names_the_policy() -> None:
    """The sentence says what was seen, and the policy that declares it."""
    assert describe_deviation(Policies(), detached_weights=True) == (
        "Deviation: the returned weights are detached from the graph; if this is meant, declare "
        "Policies(detached_weights=True)."
    )


def test_a_false_declaration_is_to_be_removed() -> None:
    """If the default is seen where something else is declared, the sentence says to remove the declaration."""
    assert describe_deviation(Policies(hidden_rows="mean"), hidden_rows="zero") == (
        "Deviation: a fully masked row is zero, but Policies(hidden_rows='mean') is declared: remove "
        "Policies(hidden_rows='mean')."
    )


def test_sentences_are_found_in_reasons() -> None:
    """A sentence and its policies are found in a longer reason; a reason without one has none."""
    sentence = describe_deviation(Policies(), hidden_rows="mean", hidden_row_gradients="softmax")
    assert find_sentence(f"Needed. But off (by 3.0). {sentence}") == sentence
    assert find_declaration(sentence) == {"hidden_rows": "'mean'", "hidden_row_gradients": "'softmax'"}
    assert find_sentence("Needed. But off.") == ""
    assert find_declaration("") == {}


def test_sentences_are_joined() -> None:
    """Facts and policies of several sentences become one sentence, each told once."""
    one = describe_deviation(Policies(), hidden_rows="nan")
    both = describe_deviation(Policies(), hidden_rows="nan", hidden_row_gradients="nan")
    assert join_sentences([one, describe_deviation(Policies(), hidden_row_gradients="nan"), one]) == both


def test_gradients_of_a_softmax_need_the_mean() -> None:
    """Gradients of a softmax are refused for fully masked rows that are not the mean of the values."""
    with pytest.raises(ValueError, match=r"^hidden_row_gradients='softmax' needs hidden_rows='mean', got .*'zero'$"):
        Policies(hidden_row_gradients="softmax")
