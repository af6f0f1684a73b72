"""The least floating-point operations and bytes of a case, from the exact number of visible query-key pairs."""

from collections.abc import Iterator

from attnbench.cases import NUMBER_FORMATS, Case
from attnbench.interface import Work
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["count_visible_pairs", "count_work"]

# Number of bytes per element, by dtype.
MASK_BYTES = 1


def count_work(case: Case) -> Work:
    """Count the operations of the projections and of visible query-key pairs, and the bytes of all tensors.

    A multiply-add counts as two operations. For each matrix product of the forward pass, the backward pass has one
    matrix product for each factor that takes a gradient. Every tensor, and every gradient, counts once in the bytes.
    """
    problem: MultiheadProblem = case.problem
    factors = case.tracks_inputs + case.tracks_parameters
    # ``incoming`` is the number of matrix products of one input projection, in forward and backward together.
    # ``outgoing`` is the number of matrix products of the output projection. The input of the output projection depends
    # on parameters, so it takes a gradient even if query, key and value take none.
    incoming, outgoing = 1 + factors, 1 + (case.differentiates + case.tracks_parameters)
    # The forward pass has two matrix products: the logits, and the weighted sum of values. The backward pass has two
    # matrix products for each matrix product of the forward pass, no matter which tensors take gradients.
    attention = 2 * (3 if case.differentiates else 1)
    batch, embed = problem.sequences, problem.embed_dim
    given = problem.queries * embed + problem.keys * ((problem.kdim or embed) + (problem.vdim or embed))
    flop = 2 * (
        batch * embed * (incoming * given + outgoing * problem.queries * embed)
        + attention * count_visible_pairs(case) * problem.head_dim
    )
    return Work(flop=flop, pairs=problem.pairs, bytes=sum(_count_moved_bytes(case)))


def count_visible_pairs(case: Case) -> int:
    """Count the visible query-key pairs of all sequences and heads; extra keys (bias_k, zero key) are always visible.

    In cases with sentences of the real encoder all pairs count as visible, because the sentence lengths are unknown
    until the tokenizer has run.
    """
    problem: MultiheadProblem = case.problem
    rows = problem.sequences * problem.num_heads * problem.queries
    extra = rows * (problem.columns - problem.keys)
    if problem.mask == "none" or problem.encoder_layer is not None:
        return rows * problem.keys + extra
    if problem.has_causal_mask and not problem.padding_mask:
        triangle = sum(min(query + 1, problem.keys) for query in range(problem.queries))
        return problem.sequences * problem.num_heads * triangle + extra
    return _count_drawn_pairs(case) + extra


def _count_drawn_pairs(case: Case) -> int:
    """Draw the masks of a case and count the query-key pairs that the masks leave visible."""
    import torch

    from attnbench.interface import Inputs
    from attnbench.operators.multihead.draw_masks import draw_masks
    from attnbench.operators.multihead.rows import find_visible
    from attnbench.oracle.inputs import Draw, round_inputs

    dtype = getattr(torch, case.given_dtype)
    # The masks are rounded to the dtype of the parameters. In this dtype, finite numbers of two masks may have the sum
    # minus infinity, which hides a key.
    masks = Inputs(
        parameters={"out_proj.weight": torch.empty(0, dtype=dtype)},
        tensors=draw_masks(case.problem, Draw(case.seed)),
    )
    return int(find_visible(case, round_inputs(masks, dtype)).sum())


def _count_moved_bytes(case: Case) -> Iterator[int]:
    """Yield numbers of bytes; their sum is the size of all tensors that a call reads or writes, each counted once."""
    problem: MultiheadProblem = case.problem
    given, made = NUMBER_FORMATS[case.given_dtype].bytes, NUMBER_FORMATS[case.dtype].bytes
    additive, boolean = _count_mask_elements(problem)
    inputs = (sum(_count_token_elements(problem)) + additive) * given
    parameters = sum(_count_parameter_elements(problem)) * given
    output = problem.sequences * problem.queries * problem.embed_dim * made
    heads = 1 if problem.average_attn_weights else problem.num_heads
    weights = problem.sequences * heads * problem.queries * problem.columns * made * problem.need_weights
    yield inputs + parameters + boolean * MASK_BYTES
    yield output + weights
    if case.differentiates:
        yield output + weights  # the gradients of output and weights are read
    # Gradients that are written.
    constant = problem.queries * problem.keys if "attn_mask" in problem.constant_masks else 0
    yield (inputs - constant * given) * case.tracks_inputs + parameters * case.tracks_parameters


def _count_token_elements(problem: MultiheadProblem) -> Iterator[int]:
    """Yield the numbers of elements of query, key and value; a tensor that is passed several times counts once."""
    embed = problem.embed_dim
    yield problem.sequences * problem.queries * embed
    if problem.self_attention:
        return
    if not problem.query_is_key:
        yield problem.sequences * problem.keys * (problem.kdim or embed)
    if not problem.key_is_value:
        yield problem.sequences * problem.keys * (problem.vdim or embed)


def _count_mask_elements(problem: MultiheadProblem) -> tuple[int, int]:
    """Return the number of elements of additive masks, and the number of elements of boolean masks."""
    counts = {True: 0, False: 0}
    if kind := problem.attention_mask:
        shared = 1 if kind.endswith("2d") or problem.has_causal_mask else problem.sequences * problem.num_heads
        counts["attn_mask" in problem.additive_masks] += shared * problem.queries * problem.keys
    if problem.padding_mask:
        counts["key_padding_mask" in problem.additive_masks] += problem.sequences * problem.keys
    return counts[True], counts[False]


def _count_parameter_elements(problem: MultiheadProblem) -> Iterator[int]:
    embed = problem.embed_dim
    yield embed * (2 * embed + (problem.kdim or embed) + (problem.vdim or embed))
    if problem.bias:
        yield 4 * embed
    if problem.add_bias_kv:
        yield 2 * embed
