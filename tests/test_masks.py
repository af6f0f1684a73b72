"""Tests of the public functions of ``attnbench.masks``."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench import masks

HIDDEN = -math.inf


def test_causal_lets_a_query_see_the_keys_up_to_its_own_position() -> None:
    """Query i sees keys 0 to i (top-left alignment), also where the numbers of queries and keys differ."""
    assert masks.causal(2, 3, polarity="keep").tolist() == [[True, False, False], [True, True, False]]
    assert masks.causal(3, 2, polarity="keep").tolist() == [[True, False], [True, True], [True, True]]


def test_lengths_hide_the_keys_behind_them() -> None:
    """For a sequence of length n, ``from_lengths`` hides keys n, n + 1, …; true means hidden, as in the reference."""
    hidden = masks.from_lengths(torch.tensor([3, 1, 0]), keys=3)
    assert hidden.tolist() == [[False, False, False], [False, True, True], [True, True, True]]


def test_additive_converts_a_keep_mask() -> None:
    """A kept key becomes 0 and a hidden key minus infinity, in the requested dtype."""
    number = masks.additive(torch.tensor([True, False]), torch.float16)
    assert number.dtype == torch.float16
    assert number.tolist() == [0.0, HIDDEN]


def test_combined_boolean_masks_hide_a_key_that_either_hides() -> None:
    """Two boolean keep masks combine to a boolean mask, which keeps a key where both masks keep it."""
    first, second = torch.tensor([True, True, False]), torch.tensor([True, False, True])
    assert masks.combined(first, second, torch.float32).tolist() == [True, False, False]


def test_a_boolean_and_a_float_mask_combine_to_a_float_mask() -> None:
    """The result is the float mask's number where the boolean mask keeps the key, and minus infinity elsewhere."""
    both = masks.combined(torch.tensor([True, False]), torch.tensor([0.5, 0.5]), torch.float32)
    assert both.tolist() == [0.5, HIDDEN]


def test_a_key_that_two_float_masks_hide_stays_hidden() -> None:
    """Minus infinity combined with minus infinity is minus infinity, never NaN."""
    both = masks.combined(torch.tensor([HIDDEN, 1.0]), torch.tensor([HIDDEN, 2.0]), torch.float32)
    assert both.tolist() == [HIDDEN, 3.0]


def test_a_mask_combined_with_none_is_returned_unchanged() -> None:
    """If one mask is None, ``combined`` returns the other mask itself; if both are None, it returns None."""
    mask = torch.tensor([True])
    assert masks.combined(mask, None, torch.float32) is mask
    assert masks.combined(None, mask, torch.float32) is mask
    assert masks.combined(None, None, torch.float32) is None


def test_reference_masks_change_polarity() -> None:
    """``reference_mask`` inverts a boolean mask: true hides a key in attn_mask, and keeps a key in a kernel's mask."""
    mask = masks.reference_mask(torch.tensor([[False, True]]), None, num_heads=1, dtype=torch.float32)
    assert mask.tolist() == [[True, False]]


def test_float_masks_of_the_reference_are_unchanged() -> None:
    """``reference_mask`` does not invert a float mask: its numbers are added to the logits."""
    mask = masks.reference_mask(torch.tensor([[0.5, HIDDEN]]), None, num_heads=1, dtype=torch.float32)
    assert mask.tolist() == [[0.5, HIDDEN]]


def test_three_dimensional_masks_count_heads_fastest() -> None:
    """Entry b · num_heads + h of an attn_mask belongs to batch element b and head h."""
    mask = torch.arange(6.0).reshape(6, 1, 1)
    split = masks.reference_mask(mask, None, num_heads=3, dtype=torch.float32)
    assert split.shape == (2, 3, 1, 1)
    assert split[1, 2].item() == 5.0


def test_padding_depends_on_the_batch_element_and_the_key() -> None:
    """A key_padding_mask is the same for every head and query."""
    mask = masks.reference_mask(None, torch.zeros(2, 5, dtype=torch.bool), num_heads=3, dtype=torch.float32)
    assert mask.shape == (2, 1, 1, 5)


@pytest.mark.parametrize("shape", [(0, 4, 5), (6, 4, 0)])
def test_empty_three_dimensional_masks_keep_their_heads(shape: tuple[int, int, int]) -> None:
    """An attn_mask of an empty batch, or without keys, is reshaped to (batch, heads, queries, keys)."""
    mask = masks.reference_mask(torch.zeros(shape), None, num_heads=3, dtype=torch.float32)
    assert mask.shape == (shape[0] // 3, 3, *shape[1:])


def test_extra_columns_are_visible() -> None:
    """``extended`` appends a column per extra key (bias_k, add_zero_attn): true in a keep mask, 0 in an additive one.

    Without a mask it returns None.
    """
    assert masks.extended(torch.tensor([[False]]), 2).tolist() == [[False, True, True]]
    assert masks.extended(torch.tensor([[HIDDEN]]), 1).tolist() == [[HIDDEN, 0.0]]
    assert masks.extended(None, 2) is None


def test_a_fully_masked_row_has_zero_weights_and_zero_gradients() -> None:
    """If every logit of a row is minus infinity, the row's softmax and gradient are 0; the other rows are as usual."""
    logits = torch.tensor([[HIDDEN, HIDDEN], [0.0, HIDDEN], [0.0, 0.0]], requires_grad=True)
    weights = masks.softmax_over_visible(logits)
    weights.square().sum().backward()
    assert weights.tolist() == [[0.0, 0.0], [1.0, 0.0], [0.5, 0.5]]
    assert logits.grad is not None
    assert logits.grad[0].tolist() == [0.0, 0.0]
    assert logits.grad.isfinite().all()


def test_softmax_over_no_keys_is_empty() -> None:
    """The softmax of a (2, 0) tensor has shape (2, 0)."""
    assert masks.softmax_over_visible(torch.zeros(2, 0)).shape == (2, 0)


TOKENS = torch.tensor([[5, 2, 1, 0, 0], [1, 3, 1, 4, 0]])


def test_padding_tokens_are_hidden() -> None:
    """The mask is true at every padding token, also inside a sequence; with polarity="keep" it is false there."""
    hide = masks.from_tokens(TOKENS, padding=0)
    assert hide.tolist() == [[False, False, False, True, True], [False, False, False, False, True]]
    assert torch.equal(hide, masks.from_lengths(torch.tensor([3, 4]), keys=5))
    assert torch.equal(masks.from_tokens(TOKENS, padding=0, polarity="keep"), ~hide)
    assert masks.from_tokens(TOKENS, padding=1).sum() == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda polarity: masks.causal(3, 4, polarity=polarity),
        lambda polarity: masks.from_lengths(torch.tensor([2, 0]), 3, polarity=polarity),
        lambda polarity: masks.from_tokens(TOKENS, polarity=polarity),
        lambda polarity: masks.from_additive(torch.tensor([[0.0, HIDDEN]]), polarity=polarity),
        lambda polarity: masks.union(
            masks.from_tokens(TOKENS, polarity=polarity), masks.causal(5, 5, polarity=polarity), polarity=polarity
        ),
    ],
)
def test_every_mask_is_made_in_both_polarities(make: Callable[[str], Tensor]) -> None:
    """The "hide" mask is the inverse of the "keep" mask; any other value of ``polarity`` raises ValueError."""
    hide, keep = make("hide"), make("keep")
    assert torch.equal(masks.inverted(hide), keep)
    assert torch.equal(masks.inverted(keep), hide)
    assert not torch.equal(hide, keep)
    with pytest.raises(
        ValueError, match=r"polarity must be 'hide' \(true hides\) or 'keep' \(true keeps\), got 'show'"
    ):
        make("show")


def test_masks_hide_by_default() -> None:
    """By default, true hides a key in the mask of every function, as it does in the reference's attn_mask."""
    for made, hidden in (
        (masks.causal(2, 2), [[False, True], [False, False]]),
        (masks.from_lengths(torch.tensor([1]), 2), [[False, True]]),
        (masks.from_tokens(torch.tensor([[7, 0]])), [[False, True]]),
    ):
        assert made.tolist() == hidden


def test_a_union_hides_a_key_that_either_mask_hides() -> None:
    """The union of a padding mask and a causal mask hides, for each query, the padding and the later tokens."""
    padding, later = masks.from_tokens(TOKENS), masks.causal(5, 5)
    both = masks.union(padding, later)
    assert both.shape == (2, 5, 5)
    assert both[0].tolist() == [
        [False, True, True, True, True],
        [False, False, True, True, True],
        [False, False, False, True, True],
        [False, False, False, True, True],
        [False, False, False, True, True],
    ]
    assert torch.equal(masks.union(padding, later.expand(2, 5, 5)), both)
    kept = masks.reference_mask(later, padding, num_heads=1, dtype=torch.float32)
    assert kept is not None
    assert torch.equal(~both, kept[:, 0])


def test_masks_are_repeated_over_queries_and_heads() -> None:
    """A (2, 5) mask becomes (2, 5, 5) over queries and (2, 8, 5, 5) over heads.

    Flattened over batch and heads, the (2, 8, 5, 5) mask is a valid attn_mask.
    """
    padding = masks.from_tokens(TOKENS)
    queries = masks.over_queries(padding, 5)
    heads = masks.over_heads(queries, 8)
    assert queries.shape == (2, 5, 5)
    assert heads.shape == (2, 8, 5, 5)
    assert torch.equal(heads[1, 7, 4], padding[1])
    kept = masks.reference_mask(heads.flatten(0, 1), None, num_heads=8, dtype=torch.float32)
    assert kept is not None
    assert torch.equal(kept, ~heads)


def test_additive_and_keep_masks_are_converted_both_ways() -> None:
    """A mask converted by ``additive`` and then by ``from_additive``, or in the other order, equals the original."""
    keep = masks.causal(3, 4, polarity="keep")
    assert torch.equal(masks.from_additive(masks.additive(keep, torch.float16)), keep)
    numbers = torch.tensor([[0.0, HIDDEN], [HIDDEN, 0.0]])
    assert torch.equal(masks.additive(masks.from_additive(numbers), torch.float32), numbers)


HIDE = masks.from_tokens(TOKENS)


def make_positional(**given: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return the keep mask and the additive mask of 3 queries and 5 keys; an argument that is left out is None."""
    default = {"causal": None, "window": None, "key_lengths": None, "slopes": None, "dtype": torch.float32}
    arguments = default | given
    masks.demand_positions(5, **{name: arguments[name] for name in ("causal", "window", "key_lengths")})
    return masks.positional(3, 5, **arguments)


def convert_attn_mask(attn_mask: Tensor, num_heads: int) -> Tensor | None:
    """Convert the reference's attn_mask, without a padding mask, to a kernel's mask."""
    return masks.reference_mask(attn_mask, None, num_heads=num_heads, dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.uint16, torch.int32, torch.int64])
def test_lengths_mean_the_same_in_every_dtype(dtype: torch.dtype) -> None:
    """Lengths of any integer dtype give the masks of int64: distances do not wrap around in an unsigned dtype."""
    lengths = torch.tensor([1, 2, 5])
    keep, added = make_positional(causal="bottom_right", window=1, key_lengths=lengths.to(dtype), slopes=[0.5])
    expected, numbers = make_positional(causal="bottom_right", window=1, key_lengths=lengths, slopes=[0.5])
    assert torch.equal(keep, expected)
    assert torch.equal(added, numbers)
    assert torch.equal(masks.from_lengths(lengths.to(dtype), 5), masks.from_lengths(lengths, 5))


def test_the_padding_token_is_not_converted_to_the_dtype_of_the_tokens() -> None:
    """With uint8 tokens and padding=300, no token is padding: 300 does not wrap around to 44."""
    assert not masks.from_tokens(torch.tensor([[44, 0]], dtype=torch.uint8), padding=300).any()


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: masks.from_tokens(TOKENS[0]), ValueError, r"tokens must have shape \(batch, keys\), got \(5,\)"),
        (lambda: masks.from_tokens(TOKENS.float()), TypeError, "tokens must be whole numbers, got torch.float32"),
        (lambda: masks.from_lengths(TOKENS, 5), ValueError, r"lengths must have shape \(batch\), got \(2, 5\)"),
        (
            lambda: masks.from_lengths(TOKENS[0], 4),
            ValueError,
            "lengths must be from 0 to 4, the number of keys, got 0 to 5",
        ),
        (lambda: masks.from_lengths(TOKENS[0] > 1, 4), TypeError, "lengths must be whole numbers, got torch.bool"),
        (
            lambda: masks.union(masks.from_tokens(TOKENS), masks.causal(3, 4)),
            ValueError,
            r"attn_mask must have shape \(queries, keys\) or \(batch, queries, keys\) with keys = 5, batch = 2, "
            r"got \(3, 4\)",
        ),
        (
            lambda: masks.union(masks.causal(2, 5)[None], masks.causal(5, 5)),
            ValueError,
            r"key_padding_mask must have shape \(batch, keys\), got \(1, 2, 5\)",
        ),
        (
            lambda: masks.union(TOKENS, masks.causal(5, 5)),
            TypeError,
            "key_padding_mask must be boolean, got torch.int64",
        ),
        (lambda: masks.inverted(torch.zeros(2)), TypeError, "mask must be boolean, got torch.float32"),
        (lambda: masks.additive(TOKENS, torch.float32), TypeError, "keep must be boolean, got torch.int64"),
        (lambda: masks.from_additive(TOKENS > 0), TypeError, "mask must be floating point, got torch.bool"),
        (
            lambda: masks.from_additive(torch.tensor([-1e9])),
            ValueError,
            r"mask must contain only 0 and -inf to become a boolean mask, got -1e\+09",
        ),
        (lambda: masks.over_queries(TOKENS[0], 3), ValueError, r"key_padding_mask must have shape \(batch, keys\)"),
        (
            lambda: masks.over_heads(TOKENS, 3),
            ValueError,
            r"mask must have shape \(batch, queries, keys\), got \(2, 5\)",
        ),
        (
            lambda: masks.over_heads(TOKENS[None] > 0, 0),
            ValueError,
            "num_heads must be a whole number of at least 1, got 0",
        ),
        (lambda: masks.causal(-1, 4), ValueError, "queries must be a whole number of at least 0, got -1"),
        (lambda: masks.union(HIDE, HIDE, polarity="Hide"), ValueError, "polarity must be 'hide'"),
        (lambda: masks.union(None, HIDE), TypeError, "key_padding_mask must be a tensor, got NoneType"),
        (lambda: masks.from_tokens(TOKENS.tolist()), TypeError, "tokens must be a tensor, got list"),
        (lambda: masks.from_tokens(TOKENS, None), TypeError, "padding must be a whole number, got None"),
        (lambda: masks.from_tokens(TOKENS, "x"), TypeError, "padding must be a whole number, got 'x'"),
        (lambda: masks.from_tokens(TOKENS, math.nan), TypeError, "padding must be a whole number, got nan"),
        (lambda: masks.from_lengths(TOKENS[0], 2.5), TypeError, "keys must be a whole number of at least 0, got 2.5"),
        (lambda: masks.over_queries(HIDE, -1), ValueError, "queries must be a whole number of at least 0, got -1"),
        (lambda: masks.over_heads(HIDE[None], True), TypeError, "num_heads must be a whole number of at least 1, got"),
        (lambda: masks.additive(HIDE, torch.bool), TypeError, "dtype must be floating point, got torch.bool"),
        (lambda: masks.extended(HIDE, -1), ValueError, "columns must be a whole number of at least 0, got -1"),
        (lambda: masks.extended(TOKENS, 1), TypeError, "mask must be boolean or floating point, got torch.int64"),
        (
            lambda: masks.combined(HIDE, TOKENS, torch.float32),
            TypeError,
            "second must be boolean or floating point, got torch.int64",
        ),
        (
            lambda: convert_attn_mask(TOKENS, 1),
            TypeError,
            "attn_mask must be boolean or floating point, got torch.int64",
        ),
        (
            lambda: convert_attn_mask(HIDE[None, None], 1),
            ValueError,
            r"attn_mask must have shape \(queries, keys\) or \(batch·heads, queries, keys\), got \(1, 1, 2, 5\)",
        ),
        (lambda: convert_attn_mask(HIDE[None], 0), ValueError, "num_heads must be a whole number of at least 1, got 0"),
        (lambda: convert_attn_mask(HIDE[None], 2), ValueError, "num_heads must divide batch·heads = 1, got 2"),
        (
            lambda: masks.reference_mask(None, HIDE[None], num_heads=1, dtype=torch.float32),
            ValueError,
            r"key_padding_mask must have shape \(batch, keys\), got \(1, 2, 5\)",
        ),
        (
            lambda: make_positional(causal="middle"),
            ValueError,
            "causal must be 'top_left' or 'bottom_right', or None, got 'mid",
        ),
        (
            lambda: make_positional(causal=True),
            ValueError,
            "causal must be 'top_left' or 'bottom_right', or None, got True",
        ),
        (lambda: make_positional(window=-1), ValueError, "window must be a whole number of at least 0, got -1"),
        (lambda: make_positional(window=math.nan), TypeError, "window must be a whole number of at least 0, got nan"),
        (lambda: make_positional(key_lengths=[1]), TypeError, "key_lengths must be a tensor, got list"),
        (
            lambda: make_positional(key_lengths=torch.tensor([9])),
            ValueError,
            "key_lengths must be from 0 to 5, the number of keys, got 9 to 9",
        ),
        (
            lambda: make_positional(key_lengths=torch.tensor([-1])),
            ValueError,
            "key_lengths must be from 0 to 5, the number of keys, got -1 to -1",
        ),
        (
            lambda: make_positional(key_lengths=torch.tensor([1.5])),
            TypeError,
            "key_lengths must be whole numbers, got torch.flo",
        ),
    ],
)
def test_wrong_arguments_are_errors(wrong: Callable[[], Tensor], error: type[Exception], message: str) -> None:
    """The message is one line that names the argument, the values it may have and the value it has."""
    with pytest.raises(error, match=message) as raised:
        wrong()
    assert "\n" not in str(raised.value)
