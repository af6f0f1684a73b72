"""What a case needs at the least, by closed form: floating-point operations and bytes, masks counted exactly."""

from collections.abc import Iterator

from attnbench.cases import Case
from attnbench.interface import Work
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["visible_pairs", "work"]

# Unit: bytes of one element.
ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
MASK_BYTES = 1


def work(case: Case) -> Work:
    """Matrix products of the four projections and of visible query-key pairs, and every tensor moved once.

    Two operations for each multiply-add. A product's backward is one product for each factor that takes a gradient.
    """
    problem: MultiheadProblem = case.problem
    pairs = problem.sequences * problem.num_heads * problem.queries * problem.columns
    factors = case.tracks_inputs + case.tracks_parameters
    # Tokens before their projection and heads before theirs: the former are inputs, the latter lie behind parameters.
    incoming, outgoing = 1 + factors, 1 + (case.differentiates + case.tracks_parameters)
    # Logits and output are two products; backward is two for each of them, whatever takes a gradient in the end.
    attention = 2 * (3 if case.differentiates else 1)
    batch, embed = problem.sequences, problem.embed_dim
    given = problem.queries * embed + problem.keys * ((problem.kdim or embed) + (problem.vdim or embed))
    flop = 2 * (
        batch * embed * (incoming * given + outgoing * problem.queries * embed)
        + attention * visible_pairs(case) * problem.head_dim
    )
    return Work(flop=flop, pairs=pairs, bytes=sum(_moved(case)))


def visible_pairs(case: Case) -> int:
    """Query-key pairs that masks leave, over batch and heads; extra columns are always visible.

    Of sentences through the real encoder all pairs count: their lengths are known only once it has run.
    """
    problem: MultiheadProblem = case.problem
    rows = problem.sequences * problem.num_heads * problem.queries
    extra = rows * (problem.columns - problem.keys)
    if problem.mask == "none" or problem.encoder_layer is not None:
        return rows * problem.keys + extra
    if problem.mask == "causal":
        triangle = sum(min(query + 1, problem.keys) for query in range(problem.queries))
        return problem.sequences * problem.num_heads * triangle + extra
    return _drawn_pairs(case) + extra


def _drawn_pairs(case: Case) -> int:
    """Pairs that the masks of a case leave, counted on the masks themselves."""
    import torch

    from attnbench.interface import Inputs
    from attnbench.operators.multihead.masks import drawn_masks
    from attnbench.operators.multihead.rows import visible
    from attnbench.oracle.inputs import Draw, rounded

    dtype = getattr(torch, case.given_dtype)
    # Two finite masks may overflow in their sum, which depends on the precision of the parameters.
    masks = Inputs(
        parameters={"out_proj.weight": torch.empty(0, dtype=dtype)},
        tensors=drawn_masks(case.problem, Draw(case.seed)),
    )
    return int(visible(case, rounded(masks, dtype)).sum())


def _moved(case: Case) -> Iterator[int]:
    """Bytes of each tensor that goes in or comes out, once."""
    problem: MultiheadProblem = case.problem
    given, made = ELEMENT_BYTES[case.given_dtype], ELEMENT_BYTES[case.dtype]
    numbers, flags = _mask_elements(problem)
    inputs, parameters = (sum(_token_elements(problem)) + numbers) * given, sum(_parameter_elements(problem)) * given
    output = problem.sequences * problem.queries * problem.embed_dim * made
    heads = 1 if problem.average_attn_weights else problem.num_heads
    weights = problem.sequences * heads * problem.queries * problem.columns * made * problem.need_weights
    yield inputs + parameters + flags * MASK_BYTES
    yield output + weights
    if case.differentiates:
        yield output + weights  # their gradients come in
    yield inputs * case.tracks_inputs + parameters * case.tracks_parameters  # and these go out


def _token_elements(problem: MultiheadProblem) -> Iterator[int]:
    """Elements of query, key and value, each tensor once."""
    embed = problem.embed_dim
    yield problem.sequences * problem.queries * embed
    if problem.self_attention:
        return
    if not problem.query_is_key:
        yield problem.sequences * problem.keys * (problem.kdim or embed)
    if not problem.key_is_value:
        yield problem.sequences * problem.keys * (problem.vdim or embed)


def _mask_elements(problem: MultiheadProblem) -> tuple[int, int]:
    """Elements of masks that are added, and of those that are boolean."""
    counts = {True: 0, False: 0}
    if kind := problem.attention_mask:
        shared = 1 if kind.endswith("2d") or kind == "causal" else problem.sequences * problem.num_heads
        counts["attn_mask" in problem.additive_masks] += shared * problem.queries * problem.keys
    if problem.padding_mask:
        counts["key_padding_mask" in problem.additive_masks] += problem.sequences * problem.keys
    return counts[True], counts[False]


def _parameter_elements(problem: MultiheadProblem) -> Iterator[int]:
    embed = problem.embed_dim
    yield embed * (2 * embed + (problem.kdim or embed) + (problem.vdim or embed))
    if problem.bias:
        yield 4 * embed
    if problem.add_bias_kv:
        yield 2 * embed
