"""Tests of the mask surface."""

import math

import pytest
import torch

from attnbench import masks

HIDDEN = -math.inf


def test_causal_lets_a_query_see_the_keys_up_to_its_own_place() -> None:
    """Query i sees keys 0 to i, counted from the top left, also where there are more keys or more queries."""
    assert masks.causal(2, 3).tolist() == [[True, False, False], [True, True, False]]
    assert masks.causal(3, 2).tolist() == [[True, False], [True, True], [True, True]]


def test_lengths_hide_what_lies_behind_them() -> None:
    """A sequence of length n hides the keys from n on, in the reference's polarity."""
    hidden = masks.from_lengths(torch.tensor([3, 1, 0]), keys=3)
    assert hidden.tolist() == [[False, False, False], [False, True, True], [True, True, True]]


def test_additive_turns_keep_into_numbers() -> None:
    """A kept key gets 0 and a hidden one minus infinity, in the dtype asked for."""
    number = masks.additive(torch.tensor([True, False]), torch.float16)
    assert number.dtype == torch.float16
    assert number.tolist() == [0.0, HIDDEN]


def test_two_boolean_masks_hide_what_either_hides() -> None:
    """Boolean masks stay boolean: a key is kept where both keep it."""
    first, second = torch.tensor([True, True, False]), torch.tensor([True, False, True])
    assert masks.combined(first, second, torch.float32).tolist() == [True, False, False]


def test_a_boolean_and_a_float_mask_add_up() -> None:
    """A number survives where the boolean mask keeps the key, and is minus infinity where it hides it."""
    both = masks.combined(torch.tensor([True, False]), torch.tensor([0.5, 0.5]), torch.float32)
    assert both.tolist() == [0.5, HIDDEN]


def test_two_hidden_numbers_stay_hidden() -> None:
    """Minus infinity twice is minus infinity, never NaN."""
    both = masks.combined(torch.tensor([HIDDEN, 1.0]), torch.tensor([HIDDEN, 2.0]), torch.float32)
    assert both.tolist() == [HIDDEN, 3.0]


def test_no_mask_leaves_the_other_one() -> None:
    """What is combined with nothing is returned as it is; nothing and nothing is nothing."""
    mask = torch.tensor([True])
    assert masks.combined(mask, None, torch.float32) is mask
    assert masks.combined(None, mask, torch.float32) is mask
    assert masks.combined(None, None, torch.float32) is None


def test_reference_masks_change_polarity() -> None:
    """The reference's true hides; a kernel's true keeps."""
    mask = masks.reference_mask(torch.tensor([[False, True]]), None, num_heads=1, dtype=torch.float32)
    assert mask.tolist() == [[True, False]]


def test_reference_numbers_are_added_as_they_are() -> None:
    """A float mask has no polarity."""
    mask = masks.reference_mask(torch.tensor([[0.5, HIDDEN]]), None, num_heads=1, dtype=torch.float32)
    assert mask.tolist() == [[0.5, HIDDEN]]


def test_three_dimensional_masks_count_heads_fastest() -> None:
    """Entry b · num_heads + h of an attn_mask belongs to batch element b and head h."""
    mask = torch.arange(6.0).reshape(6, 1, 1)
    split = masks.reference_mask(mask, None, num_heads=3, dtype=torch.float32)
    assert split.shape == (2, 3, 1, 1)
    assert split[1, 2].item() == 5.0


def test_padding_belongs_to_the_batch_and_the_keys() -> None:
    """A key_padding_mask is the same for every head and query."""
    mask = masks.reference_mask(None, torch.zeros(2, 5, dtype=torch.bool), num_heads=3, dtype=torch.float32)
    assert mask.shape == (2, 1, 1, 5)


@pytest.mark.parametrize("shape", [(0, 4, 5), (6, 4, 0)])
def test_empty_three_dimensional_masks_keep_their_heads(shape: tuple[int, int, int]) -> None:
    """A batch of nothing, or no keys, is split into heads like any other."""
    mask = masks.reference_mask(torch.zeros(shape), None, num_heads=3, dtype=torch.float32)
    assert mask.shape == (shape[0] // 3, 3, *shape[1:])


def test_extra_columns_are_visible() -> None:
    """Columns beyond the given keys are kept by a boolean mask and get 0 from an additive one."""
    assert masks.extended(torch.tensor([[False]]), 2).tolist() == [[False, True, True]]
    assert masks.extended(torch.tensor([[HIDDEN]]), 1).tolist() == [[HIDDEN, 0.0]]
    assert masks.extended(None, 2) is None


def test_a_row_without_visible_keys_has_no_weights_and_no_gradient() -> None:
    """Where every logit is minus infinity the softmax and its gradient are 0; other rows are untouched."""
    logits = torch.tensor([[HIDDEN, HIDDEN], [0.0, HIDDEN], [0.0, 0.0]], requires_grad=True)
    weights = masks.softmax_over_visible(logits)
    weights.square().sum().backward()
    assert weights.tolist() == [[0.0, 0.0], [1.0, 0.0], [0.5, 0.5]]
    assert logits.grad is not None
    assert logits.grad[0].tolist() == [0.0, 0.0]
    assert logits.grad.isfinite().all()


def test_softmax_over_no_keys_is_empty() -> None:
    """Without keys there is nothing to weigh."""
    assert masks.softmax_over_visible(torch.zeros(2, 0)).shape == (2, 0)
