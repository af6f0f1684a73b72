"""Tests of the mechanisms against printed worked examples, to within 1e-4, or 2e-4 if the inputs are rounded."""

import torch
from torch import Tensor, nn

from attnbench import masks
from attnmechanisms.modules.attention import attend, attend_loop, dot, softmax_loop
from attnmechanisms.modules.raw_self_attention import raw_scores, raw_self_attention, raw_self_attention_loop
from attnmechanisms.modules.residual_block import ResidualBlock
from attnmechanisms.modules.scaled_self_attention import (
    LinearSelfAttention,
    ScaledSelfAttention,
    scaled_self_attention,
    scaled_self_attention_loop,
)
from attnmechanisms.modules.separate_heads import concatenate_heads, long_projection, separate_heads
from attnmechanisms.modules.stacked_heads import stack, stack_loop, stacked_heads, unstack
from attnzoo.block_matrix import BLOCK_MATRIX, diagonal_blocks
from attnzoo.reshaped import RESHAPED


def parse_rows(text: str) -> Tensor:
    """Parse numbers whose rows are separated by a slash."""
    return torch.tensor([[float(number) for number in row.split()] for row in text.split("/")], dtype=torch.float64)


def assert_close(found: Tensor, printed: Tensor, tolerance: float = 1e-4) -> None:
    """Assert that numbers equal the printed numbers, to within ``tolerance``."""
    torch.testing.assert_close(found.double().reshape(printed.shape), printed, atol=tolerance, rtol=0)


# "Your journey starts with one step": six tokens of width 3.
JOURNEY = parse_rows(
    "0.43 0.15 0.89 / 0.55 0.87 0.66 / 0.57 0.85 0.64 / 0.22 0.58 0.33 / 0.77 0.25 0.10 / 0.05 0.80 0.55"
)

RAW_WEIGHTS = parse_rows("""
    0.2098 0.2006 0.1981 0.1242 0.1220 0.1452 / 0.1385 0.2379 0.2333 0.1240 0.1082 0.1581 /
    0.1390 0.2369 0.2326 0.1242 0.1108 0.1565 / 0.1435 0.2074 0.2046 0.1462 0.1263 0.1720 /
    0.1526 0.1958 0.1975 0.1367 0.1879 0.1295 / 0.1385 0.2184 0.2128 0.1420 0.0988 0.1896
""")
RAW_CONTEXTS = parse_rows("""
    0.4421 0.5931 0.5790 / 0.4419 0.6515 0.5683 / 0.4431 0.6496 0.5671 /
    0.4304 0.6298 0.5510 / 0.4671 0.5910 0.5266 / 0.4177 0.6503 0.5645
""")


def test_raw_scores_of_the_second_token() -> None:
    """Scores, scores divided by their sum, and softmax are as printed; softmax by exponentials equals torch.softmax."""
    scores = raw_scores(JOURNEY[None])[0, 1]
    assert_close(scores, parse_rows("0.9544 1.4950 1.4754 0.8434 0.7070 1.0865"))
    assert_close(scores / scores.sum(), parse_rows("0.1455 0.2278 0.2249 0.1285 0.1077 0.1656"))
    assert_close(torch.softmax(scores, dim=0), parse_rows("0.1385 0.2379 0.2333 0.1240 0.1082 0.1581"))
    torch.testing.assert_close(scores.exp() / scores.exp().sum(), torch.softmax(scores, dim=0))
    torch.testing.assert_close(softmax_loop(scores, [False] * 6), torch.softmax(scores, dim=0))


def test_dot_products_by_elements_by_pairs_and_by_matrix_product_are_equal() -> None:
    """The three computations give the same scores."""
    by_elements = torch.stack([torch.stack([dot(a, b) for b in JOURNEY]) for a in JOURNEY])
    by_pairs = torch.stack([torch.stack([torch.dot(a, b) for b in JOURNEY]) for a in JOURNEY])
    torch.testing.assert_close(by_elements, raw_scores(JOURNEY[None])[0])
    torch.testing.assert_close(by_pairs, raw_scores(JOURNEY[None])[0])


def test_raw_self_attention_gives_the_printed_weights_and_contexts() -> None:
    """All six rows agree with the printed rows, computed by a loop and by matrix products."""
    for form in (raw_self_attention, raw_self_attention_loop):
        contexts, weights = form(JOURNEY[None])
        assert_close(weights, RAW_WEIGHTS)
        assert_close(contexts, RAW_CONTEXTS)


SCALED_CONTEXTS = parse_rows("""
    0.2996 0.8053 / 0.3061 0.8210 / 0.3058 0.8203 / 0.2948 0.7939 / 0.2927 0.7891 / 0.2990 0.8040
""")


def test_parameters_drawn_from_seed_123_give_the_printed_numbers() -> None:
    """Printed are the parameters, the second token's projections, scores and attention weights, and all contexts."""
    torch.manual_seed(123)
    module = ScaledSelfAttention(3, 2)
    assert_close(module.w_q, parse_rows("0.2961 0.5166 / 0.2517 0.6886 / 0.0740 0.8665"))
    assert_close(module.w_k, parse_rows("0.1366 0.1025 / 0.1841 0.7264 / 0.3153 0.6871"))
    assert_close(module.w_v, parse_rows("0.0756 0.1966 / 0.3164 0.4017 / 0.1186 0.8274"))
    tokens = JOURNEY.float()[None]
    second = tokens[0, 1]
    assert_close(second @ module.w_q, parse_rows("0.4306 1.4551"))
    assert_close(second @ module.w_k, parse_rows("0.4433 1.1419"))
    assert_close(second @ module.w_v, parse_rows("0.3951 1.0037"))
    assert_close(
        (second @ module.w_q) @ (tokens[0] @ module.w_k).T, parse_rows("1.2705 1.8524 1.8111 1.0795 0.5577 1.5440")
    )
    contexts, weights = module(tokens)
    assert_close(weights[0, 1], parse_rows("0.1500 0.2264 0.2199 0.1311 0.0906 0.1820"))
    assert_close(contexts[0, 1], parse_rows("0.3061 0.8210"))
    assert_close(contexts, SCALED_CONTEXTS)
    looped, _ = scaled_self_attention_loop(tokens, module.w_q, module.w_k, module.w_v)
    assert_close(looped, SCALED_CONTEXTS)


def test_linear_layers_drawn_from_seed_789_give_the_printed_contexts_and_so_do_their_weights_as_parameters() -> None:
    """``take`` copies weights from linear layers to parameters or back, and transposes the weights."""
    torch.manual_seed(789)
    linear, parameters = LinearSelfAttention(3, 2), ScaledSelfAttention(3, 2)
    printed = parse_rows("""
        -0.0739 0.0713 / -0.0748 0.0703 / -0.0749 0.0702 / -0.0760 0.0685 / -0.0763 0.0679 / -0.0754 0.0693
    """)
    tokens = JOURNEY.float()[None]
    assert_close(linear(tokens)[0], printed)
    parameters.take(linear)
    assert_close(parameters(tokens)[0], printed)
    other = LinearSelfAttention(3, 2)
    other.take(parameters)
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), linear.parameters(), strict=True))


# Three sequences of lengths 4, 3 and 2: scores divided by √3, attention weights, attended values, projected values.
LENGTHS = torch.tensor([4, 3, 2])
SCORES = parse_rows("""
    -0.0170 -0.1186 0.1650 -0.0501 / -0.4638 -0.3019 -0.5509 -0.3744 /
    0.1350 0.0521 0.3532 0.1233 / -0.2920 -0.2106 -0.2852 -0.2374 /
    0.0859 -0.6261 0.4080 0.0228 / -0.0114 -1.2626 0.6670 -0.1373 /
    0.1461 -0.1723 0.2271 0.1562 / 0.2529 -1.5483 1.0716 0.1674 /
    -0.0907 -0.3286 -0.2191 -0.1593 / -0.4125 -1.7913 -0.6960 -0.3861 /
    -0.2193 -1.1654 -0.4594 -0.3091 / -0.1604 -1.0057 -0.3043 -0.1917
""").reshape(3, 4, 4)
WEIGHTS = parse_rows("""
    0.2457 0.2219 0.2947 0.2377 / 0.2389 0.2809 0.2190 0.2612 / 0.2408 0.2217 0.2995 0.2380 /
    0.2411 0.2615 0.2427 0.2546 / 0.3483 0.1709 0.4807 0 / 0.3070 0.0879 0.6051 0 / 0.3557 0.2587 0.3857 0 /
    0.2913 0.0481 0.6606 0 / 0.5592 0.4408 0 0 / 0.7988 0.2012 0 0 / 0.7203 0.2797 0 0 / 0.6996 0.3004 0 0
""").reshape(3, 4, 4)
ATTENDED = parse_rows("""
    0.031098 0.55693 0.25170 / -0.013614 0.54281 0.35157 / 0.037487 0.55560 0.24869 / 0.00041097 0.54734 0.31991 /
    0.068953 0.19005 -0.50370 / 0.064709 0.38920 -0.40146 / 0.062444 0.0074336 -0.59470 / 0.063902 0.48145 -0.35440 /
    -0.25525 0.68594 1.0380 / -0.89557 0.67747 0.71594 / -0.68588 0.68024 0.82142 / -0.63042 0.68097 0.84932
""").reshape(3, 4, 3)
W_OUT = parse_rows("0.4881 0.4734 -0.3643 / -0.4775 0.4050 0.0622 / -0.5061 0.0370 -0.5362")
PROJECTED = parse_rows("""
    0.1871 0.2264 -0.1301 / 0.1222 0.2482 -0.1615 / 0.1907 0.2226 -0.1318 / 0.1428 0.2414 -0.1515 /
    0.3071 0.0127 0.2422 / 0.3621 0.1018 0.1969 / 0.2506 -0.0638 0.2876 / 0.3882 0.1424 0.1755 /
    -0.1780 0.4642 -0.4020 / -0.3772 0.7465 0.0944 / -0.3120 0.6541 -0.0682 / -0.2947 0.6296 -0.1112
""").reshape(3, 4, 3)


def test_padded_scores_become_the_printed_weights() -> None:
    """The matrix form and the loop compute these attention weights; the weights of padded keys are exactly 0."""
    hidden = masks.over_queries(masks.from_lengths(LENGTHS, keys=4), 4)
    _, weights = attend(SCORES, torch.zeros(3, 4, 1, dtype=torch.float64), hidden=hidden)
    assert_close(weights, WEIGHTS, 2e-4)
    # Instead of computing scores, the score function of the loop looks up SCORES by the indices of query and key.
    places = torch.arange(48).reshape(3, 4, 4)
    _, looped = attend_loop(
        lambda place, column: SCORES.flatten()[int(place[int(column[0])])],
        places,
        torch.arange(4)[None, :, None].expand(3, 4, 1),
        torch.zeros(3, 4, 1, dtype=torch.float64),
        hidden=hidden,
    )
    assert_close(looped, WEIGHTS, 2e-4)
    assert not weights[hidden].any()
    assert not looped[hidden].any()


def test_attended_values_are_projected_to_the_printed_output() -> None:
    """A row of W_out gives an output feature, so the values are multiplied by the transpose of W_out."""
    assert_close(nn.functional.linear(ATTENDED, W_OUT), PROJECTED, 2e-4)


def test_heads_stacked_into_the_batch_are_in_the_printed_order() -> None:
    """The head index varies fastest, in the loop and by reshaping; unstacking restores the features."""
    features = torch.arange(1, 33).reshape(2, 2, 8)
    printed = [
        [[1, 2, 3, 4], [9, 10, 11, 12]],
        [[5, 6, 7, 8], [13, 14, 15, 16]],
        [[17, 18, 19, 20], [25, 26, 27, 28]],
        [[21, 22, 23, 24], [29, 30, 31, 32]],
    ]
    assert stack(features, 2).tolist() == printed
    assert stack_loop(features, 2).tolist() == printed
    assert torch.equal(unstack(stack(features, 2), 2), features)


def test_four_dimensional_heads_have_the_printed_shapes() -> None:
    """(30, 9, 512) is split into eight heads of 64; head 1 of a token is features 64 to 127 of its projection."""
    reference = nn.MultiheadAttention(512, 8, batch_first=True).eval()
    module = RESHAPED.build(reference)
    tokens = torch.randn(30, 9, 512)
    q, k, v = module.project(tokens, tokens, tokens)
    assert q.shape == k.shape == v.shape == (30, 8, 9, 64)
    assert (q @ k.mT).shape == (30, 8, 9, 9)
    attended, weights = module.attend(q, k, v, mask=None, is_causal=False, need_weights=True)
    assert attended.shape == (30, 8, 9, 64)
    assert weights.shape == (30, 8, 9, 9)
    assert module(tokens, tokens, tokens)[0].shape == (30, 9, 512)
    w_q, b_q = reference.in_proj_weight[:512], reference.in_proj_bias[:512]
    projected = nn.functional.linear(tokens, w_q, b_q)
    assert torch.equal(q[0, 1, 0], projected[0, 0, 64:128])


def test_every_form_of_heads_equals_the_reference_with_its_weights() -> None:
    """The reference's in_proj_weight is split into W_q, W_k and W_v, in this order, as the parameters of every form."""
    torch.manual_seed(0)
    reference = nn.MultiheadAttention(6, 2, bias=False, batch_first=True, dtype=torch.float64)
    tokens = torch.randn(3, 4, 6, dtype=torch.float64)
    padding = masks.from_lengths(LENGTHS, keys=4)
    expected, shares = reference(tokens, tokens, tokens, key_padding_mask=padding, average_attn_weights=False)
    projections = reference.in_proj_weight.chunk(3)
    w_o = reference.out_proj.weight
    heads = list(zip(*(projection.chunk(2) for projection in projections), strict=True))

    for output, weights in (
        separate_heads(tokens, heads, w_o, padding),
        long_projection(tokens, concatenate_heads(heads), w_o, num_heads=2, key_padding_mask=padding),
        BLOCK_MATRIX.build(reference)(tokens, tokens, tokens, key_padding_mask=padding, average_attn_weights=False),
    ):
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(weights, shares)
    q, k, v = (nn.functional.linear(tokens, w) for w in projections)
    full = masks.over_heads(masks.over_queries(padding, 4), 2).flatten(0, 1)
    output = stacked_heads(q, k, v, num_heads=2, attn_mask=full)
    torch.testing.assert_close(nn.functional.linear(output, w_o), expected)


def test_diagonal_blocks_are_the_scores_of_the_heads() -> None:
    """In the product of all heads' queries with all heads' keys, block (i, i) holds the scores of head i."""
    q, k = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    large = q.flatten(1, 2) @ k.flatten(1, 2).mT
    assert large.shape == (2, 15, 21)
    torch.testing.assert_close(diagonal_blocks(large, 3), q @ k.mT)


def test_the_softmax_of_wide_draws_is_one_hot_and_of_narrow_ones_spread_out() -> None:
    """Of 20,000 numbers with standard deviation 100, one gets over 99 % of the weight; at 1, each gets under 1 %."""
    draws = 100 * torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.softmax(draws, dim=0).max() > 0.99
    assert torch.softmax(draws / 100, dim=0).max() < 0.01


def test_masks_from_token_numbers_reach_the_weights_of_eight_heads() -> None:
    """Attention weights of padded keys are exactly 0; the residual block keeps the shape and normalises each token."""
    tokens = torch.tensor([[5, 2, 1, 0, 0], [1, 3, 1, 4, 0]])
    padding = masks.from_tokens(tokens, padding=0)
    hidden = torch.randn(2, 5, 512)
    block = ResidualBlock(nn.MultiheadAttention(512, 8, batch_first=True), 512)
    output, weights = block(hidden, key_padding_mask=padding, average_attn_weights=False)
    assert output.shape == (2, 5, 512)
    assert weights.shape == (2, 8, 5, 5)
    assert not weights[masks.over_heads(masks.over_queries(padding, 5), 8)].any()
    torch.testing.assert_close(output.mean(dim=-1), torch.zeros(2, 5), atol=1e-5, rtol=0)
    torch.testing.assert_close(output.var(dim=-1, correction=0), torch.ones(2, 5), atol=1e-3, rtol=0)


def test_scaled_self_attention_divides_by_the_root_of_the_key_width() -> None:
    """For a projection from width 3 to 2, scores are divided by √2, not by √3."""
    torch.manual_seed(0)
    w_q, w_k, w_v = torch.rand(3, 3, 2, dtype=torch.float64)
    _, weights = scaled_self_attention(JOURNEY[None], w_q, w_k, w_v)
    expected = torch.softmax((JOURNEY @ w_q) @ (JOURNEY @ w_k).T / 2**0.5, dim=-1)
    torch.testing.assert_close(weights[0], expected)
