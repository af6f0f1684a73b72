"""Tests of both forms of each mechanism: loops and matrix products agree to rounding in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench import masks
from attnmechanisms.modules.additive_pooling import AdditivePooling, additive_pooling, additive_pooling_loop
from attnmechanisms.modules.attention import attend, attend_loop, dot
from attnmechanisms.modules.dot_product_pooling import DotProductPooling, dot_product_pooling, dot_product_pooling_loop
from attnmechanisms.modules.raw_self_attention import raw_self_attention, raw_self_attention_loop
from attnmechanisms.modules.residual_block import ResidualBlock, add_and_norm, add_and_norm_loop, residual_block_loop
from attnmechanisms.modules.scaled_dot_product import scaled_dot_product, scaled_dot_product_loop
from attnmechanisms.modules.scaled_self_attention import (
    LinearSelfAttention,
    ScaledSelfAttention,
    scaled_self_attention,
    scaled_self_attention_loop,
)
from attnmechanisms.modules.separate_heads import concatenate_heads, long_projection, separate_heads
from attnmechanisms.modules.single_head import SingleHeadAttention, single_head, single_head_loop
from attnmechanisms.modules.stacked_heads import stack, stack_loop, stacked_heads, unstack
from attnzoo.block_matrix import diagonal_blocks, diagonal_blocks_loop

Form = Callable[..., tuple[Tensor, Tensor]]
BATCH, LENGTH, WIDTH = 3, 5, 4
PADDING = masks.from_lengths(torch.tensor([5, 3, 1]), LENGTH)


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Return standard normal float64 numbers, drawn with a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TOKENS = draw(BATCH, LENGTH, WIDTH)
# The loop, the matrix products, and the parameters that both take, by mechanism.
FORMS: dict[str, tuple[Form, Form, tuple[Tensor, ...]]] = {
    "raw": (raw_self_attention_loop, raw_self_attention, ()),
    "scaled": (
        scaled_self_attention_loop, scaled_self_attention, tuple(draw(WIDTH, 2, seed=n) for n in (1, 2, 3)),
    ),
    "additive": (
        additive_pooling_loop,
        additive_pooling,
        (draw(1, WIDTH, seed=1), draw(WIDTH, WIDTH, seed=2), draw(WIDTH, WIDTH, seed=3), draw(WIDTH, 1, seed=4)),
    ),
    "dot_product": (dot_product_pooling_loop, dot_product_pooling, (draw(WIDTH, 1, seed=1),)),
    "single_head": (single_head_loop, single_head, tuple(draw(WIDTH, WIDTH, seed=n) for n in (1, 2, 3, 4))),
}  # fmt: skip
POOLS = ("additive", "dot_product")
every_mechanism = pytest.mark.parametrize("name", FORMS)
every_form = pytest.mark.parametrize("form", [0, 1], ids=["loop", "matrix"])


@every_mechanism
@pytest.mark.parametrize("padded", [False, True])
def test_loop_and_matrix_products_agree(name: str, padded: bool) -> None:
    """Output and weights agree to rounding in float64, with padding and without."""
    loop, matrix, parameters = FORMS[name]
    given: dict[str, Any] = {"key_padding_mask": PADDING} if padded else {}
    for found, expected in zip(loop(TOKENS, *parameters, **given), matrix(TOKENS, *parameters, **given), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-14, rtol=1e-13)


@every_mechanism
@every_form
def test_rows_of_weights_sum_to_one_and_padded_keys_get_zero(name: str, form: int) -> None:
    """The weight of a padded key is exactly 0."""
    *forms, parameters = FORMS[name]
    _, weights = forms[form](TOKENS, *parameters, key_padding_mask=PADDING)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
    hidden = PADDING if name in POOLS else PADDING[:, None].expand_as(weights)
    assert not weights[hidden].any()
    assert (weights[~hidden] > 0).all()


@every_mechanism
@every_form
def test_real_tokens_of_a_padded_sequence_have_the_outputs_of_the_unpadded_sequence(name: str, form: int) -> None:
    """Padding does not change the output of a real token."""
    *forms, parameters = FORMS[name]
    padded, _ = forms[form](TOKENS, *parameters, key_padding_mask=PADDING)
    for number, length in enumerate((5, 3, 1)):
        alone, _ = forms[form](TOKENS[number : number + 1, :length], *parameters)
        own = padded[number : number + 1] if name in POOLS else padded[number : number + 1, :length]
        torch.testing.assert_close(own, alone)


@every_mechanism
@every_form
def test_a_sequence_of_padding_only_attends_to_nothing(name: str, form: int) -> None:
    """Output and weights are zero, never NaN."""
    *forms, parameters = FORMS[name]
    tokens = TOKENS.clone().requires_grad_()
    hidden = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    output, weights = forms[form](tokens, *parameters, key_padding_mask=hidden)
    assert not output.any()
    assert not weights.any()


@every_mechanism
@every_form
def test_tokens_in_another_order_give_weights_in_that_order(name: str, form: int) -> None:
    """No mechanism depends on the position of a token."""
    *forms, parameters = FORMS[name]
    order = torch.tensor([3, 0, 4, 1, 2])
    output, weights = forms[form](TOKENS, *parameters)
    moved, shares = forms[form](TOKENS[:, order], *parameters)
    if name in POOLS:
        torch.testing.assert_close(moved, output)
        torch.testing.assert_close(shares, weights[:, order])
    else:
        torch.testing.assert_close(moved, output[:, order])
        torch.testing.assert_close(shares, weights[:, order][:, :, order])


@every_mechanism
@every_form
def test_gradients_are_those_of_finite_differences(name: str, form: int) -> None:
    """Gradients with respect to the tokens and every parameter are right, with padding."""
    *forms, parameters = FORMS[name]
    leaves = [x.clone().requires_grad_() for x in (TOKENS[:2, :3], *parameters)]
    padding = masks.from_lengths(torch.tensor([3, 2]), 3)
    assert torch.autograd.gradcheck(lambda *given: forms[form](*given, key_padding_mask=padding), leaves)


@pytest.mark.parametrize("form", [single_head_loop, single_head])
def test_a_single_head_equals_the_reference_with_one_head(form: Form) -> None:
    """Output and weights agree without a mask, with either mask, with both, and with padding repeated per query."""
    reference = nn.MultiheadAttention(WIDTH, 1, bias=False, batch_first=True, dtype=torch.float64)
    parameters = (*reference.in_proj_weight.chunk(3), reference.out_proj.weight)
    later = masks.causal(LENGTH, LENGTH)
    repeated = masks.over_queries(PADDING, LENGTH)
    for given in (
        {},
        {"key_padding_mask": PADDING},
        {"attn_mask": later},
        {"key_padding_mask": PADDING, "attn_mask": later},
        {"attn_mask": repeated},
    ):
        output, weights = form(TOKENS, *parameters, **given)
        expected, shares = reference(TOKENS, TOKENS, TOKENS, **given)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(weights, shares)
    alike, _ = form(TOKENS, *parameters, attn_mask=repeated)
    torch.testing.assert_close(alike, form(TOKENS, *parameters, key_padding_mask=PADDING)[0])


def test_scaled_dot_product_agrees_with_torch_under_a_keep_mask() -> None:
    """The loop, the matrix products and torch's function agree; true keeps a key."""
    q, k, v = draw(2, 3, 4, seed=1), draw(2, 5, 4, seed=2), draw(2, 5, 6, seed=3)
    keep = masks.causal(3, 5, polarity="keep")
    expected = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    for form in (scaled_dot_product_loop, scaled_dot_product):
        output, weights = form(q, k, v, keep=keep)
        torch.testing.assert_close(output, expected)
        assert not weights[masks.inverted(keep).expand_as(weights)].any()


def test_dropout_drops_the_same_weights_in_both_forms_and_scales_the_rest() -> None:
    """After equal seeds both forms agree; kept weights are divided by 1 − p, and the output is weights times values."""
    q, k, v = draw(2, 6, 4, seed=1), draw(2, 7, 4, seed=2), draw(2, 7, 3, seed=3)
    _, whole = scaled_dot_product(q, k, v)
    torch.manual_seed(1)
    looped = scaled_dot_product_loop(q, k, v, dropout_p=0.5)
    torch.manual_seed(1)
    output, weights = scaled_dot_product(q, k, v, dropout_p=0.5)
    torch.testing.assert_close(looped, (output, weights))
    torch.testing.assert_close(output, weights @ v)
    dropped = weights == 0
    assert 0.2 < dropped.double().mean() < 0.8
    torch.testing.assert_close(weights[~dropped], 2 * whole[~dropped])
    with pytest.raises(ValueError, match="dropout_p must be at least 0 and less than 1, got 1"):
        scaled_dot_product(q, k, v, dropout_p=1.0)


def test_separate_heads_one_long_projection_and_heads_in_the_batch_agree() -> None:
    """Projecting with concatenated matrices and splitting the result gives the numbers of separate projections."""
    heads = [tuple(draw(3, WIDTH, seed=10 * h + n) for n in range(3)) for h in range(2)]
    w_o = draw(6, 6, seed=5)
    expected, shares = separate_heads(TOKENS, heads, w_o, PADDING)
    output, weights = long_projection(TOKENS, concatenate_heads(heads), w_o, num_heads=2, key_padding_mask=PADDING)
    torch.testing.assert_close(output, expected, atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(weights, shares, atol=1e-14, rtol=1e-13)
    q, k, v = (nn.functional.linear(TOKENS, w) for w in concatenate_heads(heads))
    hidden = masks.over_heads(masks.over_queries(PADDING, LENGTH), 2).flatten(0, 1)
    batched = stacked_heads(q, k, v, num_heads=2, attn_mask=hidden)
    torch.testing.assert_close(nn.functional.linear(batched, w_o), expected, atol=1e-13, rtol=1e-13)


SQUARE, NARROW, QUERY = draw(WIDTH, WIDTH), draw(WIDTH, 2), draw(1, WIDTH)
HEAD = (draw(2, WIDTH), draw(2, WIDTH), draw(2, WIDTH))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            lambda: raw_self_attention(TOKENS[0]),
            ValueError,
            "tokens must have shape (batch, length, width), got (5, 4)",
        ),
        (
            lambda: raw_self_attention_loop(TOKENS, PADDING[:1]),
            ValueError,
            "key_padding_mask must have shape (batch, length) with batch = 3, length = 5, got (1, 5)",
        ),
        (
            lambda: raw_self_attention(TOKENS, PADDING.double()),
            TypeError,
            "key_padding_mask must be boolean, got torch.float64; "
            "attnbench.masks.from_additive converts an additive mask",
        ),
        (
            lambda: scaled_self_attention(TOKENS, NARROW, NARROW.T, NARROW),
            ValueError,
            "w_k must have shape (width, out_width) with width = 4, out_width = 2, got (2, 4)",
        ),
        (
            lambda: scaled_self_attention_loop(TOKENS, NARROW, SQUARE, NARROW),
            ValueError,
            "w_k must have shape (width, out_width) with width = 4, out_width = 2, got (4, 4)",
        ),
        (
            lambda: dot_product_pooling(TOKENS, QUERY),
            ValueError,
            "query must have shape (width, 1) with width = 4, got (1, 4)",
        ),
        (
            lambda: dot_product_pooling_loop(TOKENS, QUERY.T, PADDING.T),
            ValueError,
            "key_padding_mask must have shape (batch, length) with batch = 3, length = 5, got (5, 3)",
        ),
        (
            lambda: additive_pooling(TOKENS, QUERY, SQUARE, NARROW, QUERY.T),
            ValueError,
            "w_k must have shape (width, width) with width = 4, got (4, 2)",
        ),
        (
            lambda: additive_pooling_loop(TOKENS, QUERY, SQUARE, SQUARE, QUERY),
            ValueError,
            "w must have shape (width, 1) with width = 4, got (1, 4)",
        ),
        (
            lambda: single_head(TOKENS, SQUARE, SQUARE, SQUARE, NARROW),
            ValueError,
            "w_out must have shape (embed_dim, embed_dim) with embed_dim = 4, got (4, 2)",
        ),
        (
            lambda: single_head_loop(TOKENS, SQUARE, SQUARE, SQUARE, SQUARE, attn_mask=masks.causal(5, 6)),
            ValueError,
            "attn_mask must have shape (length, length) or (batch, length, length) with length = 5, batch = 3, "
            "got (5, 6)",
        ),
        (
            lambda: scaled_dot_product(TOKENS, TOKENS, TOKENS[:, :4]),
            ValueError,
            "v must have shape (batch, keys, width) with batch = 3, keys = 5, got (3, 4, 4)",
        ),
        (
            lambda: scaled_dot_product_loop(TOKENS, TOKENS, TOKENS, keep=torch.ones(5, 5)),
            TypeError,
            "keep must be boolean, got torch.float32; attnbench.masks.from_additive converts an additive mask",
        ),
        (
            lambda: separate_heads(TOKENS, [HEAD, HEAD], NARROW),
            ValueError,
            "w_o must have shape (embed_dim, embed_dim) with embed_dim = 4, got (4, 2)",
        ),
        (lambda: separate_heads(TOKENS, [], SQUARE), ValueError, "heads must contain at least one head, got none"),
        (
            lambda: long_projection(TOKENS, concatenate_heads([HEAD, HEAD]), SQUARE, num_heads=3),
            ValueError,
            "num_heads must divide embed_dim = 4, got 3",
        ),
        (lambda: stack(TOKENS, 3), ValueError, "num_heads must divide embed_dim = 4, got 3"),
        (lambda: unstack(TOKENS, 2), ValueError, "num_heads must divide batch·heads = 3, got 2"),
        (
            lambda: stacked_heads(TOKENS, TOKENS, TOKENS, num_heads=2, attn_mask=masks.over_queries(PADDING, 5)),
            ValueError,
            "attn_mask must have shape (queries, keys) or (batch·heads, queries, keys) with queries = 5, keys = 5, "
            "batch·heads = 6, got (3, 5, 5)",
        ),
        (
            lambda: diagonal_blocks(SQUARE[None], 3),
            ValueError,
            "num_heads must divide heads·queries = 4, got 3",
        ),
        (
            lambda: add_and_norm(TOKENS, TOKENS[:1], QUERY[0], QUERY[0]),
            ValueError,
            "attended must have shape (batch, length, embed_dim) with batch = 3, length = 5, embed_dim = 4, "
            "got (1, 5, 4)",
        ),
        (
            lambda: residual_block_loop(
                TOKENS, in_proj_weight=SQUARE, in_proj_bias=QUERY[0], out_proj_weight=SQUARE, out_proj_bias=QUERY[0],
                norm_weight=QUERY[0], norm_bias=QUERY[0], num_heads=2,
            ),
            ValueError,
            "in_proj_weight must have shape (12, embed_dim) with embed_dim = 4, got (4, 4)",
        ),
        (lambda: raw_self_attention(None), TypeError, "tokens must be a tensor, got NoneType"),
        (lambda: raw_self_attention_loop(TOKENS.int()), TypeError, "tokens must be floating point, got torch.int32"),
        (
            lambda: single_head_loop(TOKENS, SQUARE.float(), SQUARE, SQUARE, SQUARE),
            TypeError,
            "w_q must have the dtype of tokens, torch.float64, got torch.float32",
        ),
        (
            lambda: scaled_dot_product(TOKENS[..., :0], TOKENS[..., :0], TOKENS),
            ValueError,
            "q must have shape (batch, queries, head_dim) with head_dim at least 1, got (3, 5, 0)",
        ),
        (
            lambda: ScaledSelfAttention(6, 3).take(LinearSelfAttention(1, 3)),
            ValueError,
            "w_q must have shape (width, out_width) with width = 6, out_width = 3, got (1, 3)",
        ),
        (
            lambda: LinearSelfAttention(6, 3).take(ScaledSelfAttention(6, 1)),
            ValueError,
            "w_q must have shape (width, out_width) with width = 6, out_width = 3, got (6, 1)",
        ),
        (
            lambda: ResidualBlock(nn.MultiheadAttention(WIDTH, 2), WIDTH),
            ValueError,
            "attention must have batch_first=True, got batch_first=False, which would mix sequences",
        ),
        (
            lambda: attend(TOKENS, TOKENS[:1]),
            ValueError,
            "values must have shape (batch, keys, width) with batch = 3, keys = 4, got (1, 5, 4)",
        ),
        (
            lambda: attend(TOKENS, TOKENS[:, :4], hidden=torch.zeros(3, 3, 5, 4, dtype=torch.bool)),
            ValueError,
            "hidden must be broadcastable to (3, 5, 4), got (3, 3, 5, 4)",
        ),
        (
            lambda: attend_loop(dot, TOKENS, TOKENS[:1], TOKENS),
            ValueError,
            "keys must have shape (batch, keys, key_width) with batch = 3, got (1, 5, 4)",
        ),
        (
            lambda: unstack(SQUARE, 2),
            ValueError,
            "heads must have shape (batch·heads, length, head_dim), got (4, 4)",
        ),
        (
            lambda: diagonal_blocks(SQUARE, 2),
            ValueError,
            "matrix must have shape (batch, heads·queries, heads·keys), got (4, 4)",
        ),
        (
            lambda: diagonal_blocks_loop(SQUARE[None, None], 1),
            ValueError,
            "matrix must have shape (batch, heads·queries, heads·keys), got (1, 1, 4, 4)",
        ),
        (
            lambda: concatenate_heads([HEAD, (SQUARE[:2, :3],) * 3]),
            ValueError,
            "heads[1][0] must have shape (head_dim, width) with head_dim = 2, width = 4, got (2, 3)",
        ),
        (
            lambda: concatenate_heads([HEAD[:2]]),
            ValueError,
            "heads[0] must be 3 weight matrices (of queries, keys and values), got 2",
        ),
    ],
)  # fmt: skip
def test_the_error_about_a_wrong_argument_is_one_line(
    wrong: Callable[[], object], error: type[Exception], message: str
) -> None:
    """The line names the argument, what it must be and what it is; wrong shapes never broadcast."""
    with pytest.raises(error) as raised:
        wrong()
    assert str(raised.value) == message


NUMBERS: dict[str, Callable[[Any], object]] = {
    "stack": lambda number: stack(TOKENS, number),
    "unstack": lambda number: unstack(TOKENS, number),
    "diagonal_blocks": lambda number: diagonal_blocks(SQUARE[None], number),
    "AdditivePooling": AdditivePooling,
    "DotProductPooling": DotProductPooling,
    "SingleHeadAttention": SingleHeadAttention,
    "ScaledSelfAttention": lambda number: ScaledSelfAttention(number, 3),
    "LinearSelfAttention": lambda number: LinearSelfAttention(6, number),
    "ResidualBlock": lambda number: ResidualBlock(nn.Identity(), number),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("number", [0, -1, 2.0, 2.5, "2", None, True])
def test_widths_and_heads_are_whole_numbers(name: str, number: Any) -> None:
    """Every function and module with such an argument refuses any other value, with one message for all."""
    with pytest.raises((ValueError, TypeError), match=f" must be a whole number of at least 1, got {number!r}$"):
        NUMBERS[name](number)


@every_mechanism
@pytest.mark.parametrize(("batch", "length"), [(0, LENGTH), (BATCH, 0), (0, 0)])
def test_loop_and_matrix_products_agree_on_empty_inputs(name: str, batch: int, length: int) -> None:
    """For no sequences or no tokens, both forms give outputs and weights of equal shapes, and all values are 0."""
    loop, matrix, parameters = FORMS[name]
    tokens, padding = TOKENS[:batch, :length], PADDING[:batch, :length]
    for found, expected in zip(
        loop(tokens, *parameters, key_padding_mask=padding),
        matrix(tokens, *parameters, key_padding_mask=padding),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)
        assert not found.any()


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_without_keys_each_query_gets_zero(dropout_p: float) -> None:
    """The loop and the matrix products give output 0 and rows of weights without elements."""
    keys, values = draw(BATCH, 0, WIDTH), draw(BATCH, 0, 2)
    for form in (scaled_dot_product_loop, scaled_dot_product):
        output, weights = form(TOKENS, keys, values, dropout_p=dropout_p)
        torch.testing.assert_close(output, torch.zeros(BATCH, LENGTH, 2, dtype=torch.float64))
        assert weights.shape == (BATCH, LENGTH, 0)


@pytest.mark.parametrize("shape", [(0, LENGTH, WIDTH), (BATCH, 0, WIDTH)])
def test_adding_and_stacking_agree_on_empty_inputs(shape: tuple[int, int, int]) -> None:
    """For no sequences or no tokens, both forms give the same shapes."""
    empty = torch.zeros(shape)
    norm = torch.ones(WIDTH)
    torch.testing.assert_close(add_and_norm_loop(empty, empty, norm, norm), add_and_norm(empty, empty, norm, norm))
    assert stack_loop(empty, 2).shape == stack(empty, 2).shape


@every_mechanism
@every_form
def test_under_autocast_dtypes_may_be_mixed(name: str, form: int) -> None:
    """Half-precision tokens from a previous layer may meet float32 parameters."""
    *forms, parameters = FORMS[name]
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = forms[form](TOKENS.bfloat16(), *(parameter.float() for parameter in parameters))
    assert output.isfinite().all()


def test_both_forms_of_diagonal_blocks_agree() -> None:
    """The loop takes the blocks one by one; the other form takes a diagonal of the reshaped matrix."""
    matrix = draw(2, 6, 9)
    assert torch.equal(diagonal_blocks_loop(matrix, 3), diagonal_blocks(matrix, 3))


def test_adding_and_normalising_agree_token_by_token() -> None:
    """The loop equals torch's LayerNorm of the sum, and gradients of the loop equal finite differences."""
    given = [
        x.clone().requires_grad_() for x in (TOKENS, draw(*TOKENS.shape, seed=1), draw(WIDTH), draw(WIDTH, seed=2))
    ]
    torch.testing.assert_close(add_and_norm_loop(*given), add_and_norm(*given), atol=1e-13, rtol=1e-13)
    assert torch.autograd.gradcheck(add_and_norm_loop, [x[:1, :2] if x.dim() == 3 else x for x in given])


def test_the_residual_block_repeats_itself_and_can_be_trained() -> None:
    """Two calls give equal outputs bit for bit, and every parameter gets a gradient."""
    block = ResidualBlock(nn.MultiheadAttention(WIDTH, 2, batch_first=True, dtype=torch.float64), WIDTH).double()
    first, _ = block(TOKENS)
    second, _ = block(TOKENS)
    assert torch.equal(first, second)
    (first * TOKENS).sum().backward()
    assert all(parameter.grad is not None for parameter in block.parameters())


@pytest.mark.parametrize("module", [AdditivePooling, DotProductPooling, SingleHeadAttention])
def test_modules_accept_either_form(module: Callable[..., nn.Module]) -> None:
    """With equal parameters, a module gives equal numbers by the loop and by matrix products."""
    loops = {
        AdditivePooling: additive_pooling_loop,
        DotProductPooling: dot_product_pooling_loop,
        SingleHeadAttention: single_head_loop,
    }
    torch.manual_seed(0)
    matrix, looped = module(WIDTH).double(), module(WIDTH, loops[module]).double()
    looped.load_state_dict(matrix.state_dict())
    for found, expected in zip(looped(TOKENS, PADDING), matrix(TOKENS, PADDING), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-14, rtol=1e-13)
