"""Tests of the lengths that are drawn from those of real sentences."""

import pytest

from attnbench.cases import Case
from attnbench.operators.sentence_lengths import compute_padded_share, draw_sentence_lengths
from attnbench.plugins.registry import load_operator, load_problem_types

MULTIHEAD = "multihead/B4.L10.S10.E8.H2/bias+batch_first+self_attention+padding={}/mask={}/regime=plain/seed=0"
CORE = "attention_core/B4.H2.L10.S10.D4/padding={}/mask={}/regime=plain/seed=0"
END = "/float32/cpu/train"


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize(("batch", "keys"), [(2, 10), (8, 77), (33, 512)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_share_comes_out_as_nearly_as_lengths_allow(share: float, batch: int, keys: int, seed: int) -> None:
    """The number of padded positions is the nearest one, but the longest sequence has no padding, and none is empty."""
    lengths = draw_sentence_lengths(share, batch, keys, seed)
    assert (len(lengths), max(lengths)) == (batch, keys)
    assert min(lengths) >= 1
    most = (batch - 1) * (keys - 1) / (batch * keys)
    assert abs(compute_padded_share(lengths, keys) - min(share, most)) <= 0.5 / (batch * keys) + 1e-12


def test_lengths_are_the_same_on_every_machine() -> None:
    """The lengths depend on nothing but the arguments: stored results rely on these numbers."""
    assert draw_sentence_lengths(0.3, 8, 77, 0) == (56, 44, 73, 44, 12, 49, 77, 76)
    assert draw_sentence_lengths(0.3, 8, 77, 1) != draw_sentence_lengths(0.3, 8, 77, 0)


def test_lengths_are_in_proportion_to_sentences() -> None:
    """At other numbers of positions, the same sentences have proportional lengths."""
    short, long = (draw_sentence_lengths(0.5, 8, keys, 0) for keys in (100, 1000))
    assert all(abs(10 * one - other) <= 10 for one, other in zip(short, long, strict=True))


@pytest.mark.parametrize(("form", "mask"), [(MULTIHEAD, "pad"), (CORE, "ragged")])
def test_a_case_has_its_share_of_hidden_keys(form: str, mask: str) -> None:
    """The masks of a case with a share hide the drawn keys, and its id is read back."""
    case = Case.parse(form.format(0.4, mask) + END, load_problem_types())
    assert case.id == form.format(0.4, mask) + END
    operator = load_operator(case.operator)
    visible = operator.visible(case, operator.inputs(case))
    assert (~visible).sum().item() / visible.numel() == pytest.approx(0.4)


@pytest.mark.parametrize(("form", "mask"), [(MULTIHEAD, "pad"), (CORE, "ragged")])
def test_a_share_needs_padding_and_several_sequences(form: str, mask: str) -> None:
    """A share outside (0, 1), without padding, or without a batch is no case; a changed case loses its share."""
    problems = load_problem_types()
    for share, own, batch, reason in (
        (1.0, mask, "B4", "above 0 and below 1, got 1"),
        (0.3, "none", "B4", f"a mask whose name contains '{mask}', got 'none'"),
        (0.3, mask, "B1", "a batch of at least 2 sequences, got 1"),
    ):
        with pytest.raises(ValueError, match=reason):
            Case.parse(form.format(share, own).replace("B4", batch) + END, problems)
    with pytest.raises(ValueError, match="a regime with random inputs"):
        Case.parse(
            form.format(0.3, mask).replace("self_attention+", "").replace("plain", "zeroleak").replace("bias+", "")
            + END,
            problems,
        )
    case = Case.parse(form.format(0.3, mask) + END, problems)
    assert case.with_problem(mask="none").problem.padding == 0
    assert case.with_problem(queries=10).problem.padding == 0.3
