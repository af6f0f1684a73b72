"""Names of the dimensions of a quantity (an output or a gradient), for messages."""

from collections.abc import Iterator, Sequence

from attnbench.cases import Case
from attnbench.interface import Axis
from attnbench.operators.multihead.problem import IDENTITY_REGIMES, MultiheadProblem

__all__ = ["describe_axes"]


def describe_axes(case: Case, quantity: str) -> list[Axis]:
    """Return the named axes of a quantity (an output or a gradient), in the order of its dimensions."""
    problem: MultiheadProblem = case.problem
    name = quantity.removeprefix("grad.")
    if name in ("output", "query", "key", "value"):
        return _describe_tokens(problem, name)
    if name == "weights":
        return _describe_weights(problem)
    if name == "attn_mask":
        return _describe_attention_mask(problem)
    if name == "key_padding_mask":
        return _make_axes(*_get_batch(problem), ("key", problem.keys))
    return list(_describe_parameter(problem, name))


def _make_axes(*dimensions: tuple[str, int]) -> list[Axis]:
    return [Axis(dimension=i, word=word, positions=range(extent)) for i, (word, extent) in enumerate(dimensions)]


def _get_batch(problem: MultiheadProblem) -> list[tuple[str, int]]:
    return [] if problem.batch is None else [("batch", problem.batch)]


def _describe_tokens(problem: MultiheadProblem, name: str) -> list[Axis]:
    """Return the axes of the output or of an input's gradient: batch, token and feature, in the order of the layout."""
    widths = {"key": problem.kdim, "value": problem.vdim}
    width = widths.get(name) or problem.embed_dim
    of_queries = name in ("output", "query")
    length = problem.queries if of_queries else problem.keys
    shared = problem.self_attention or (problem.query_is_key and name == "query")
    word = "token" if shared and name != "output" else "query" if of_queries else "key"
    dimensions = [*_get_batch(problem), (word, length)]
    if not problem.batch_first:
        dimensions.reverse()
    found = _make_axes(*dimensions, ("feature", width))
    # In identity regimes each feature of query, key and output belongs to one head. The value projection permutes
    # features, so the position of a feature of ``value`` does not determine its head. In other regimes the projections
    # mix all features, and no feature belongs to one head.
    holds_values = name == "value" or (name != "output" and (problem.self_attention or problem.key_is_value))
    if problem.regime in IDENTITY_REGIMES and not holds_values:
        found.append(_make_head_axis(problem, len(dimensions)))
    return found


def _describe_weights(problem: MultiheadProblem) -> list[Axis]:
    columns: list[int | str] = list(range(problem.keys))
    columns += ["the bias_k key"] * problem.add_bias_kv + ["the add_zero_attn key"] * problem.add_zero_attn
    heads = [] if problem.average_attn_weights else [("head", problem.num_heads)]
    found = _make_axes(*_get_batch(problem), *heads, ("query", problem.queries))
    return [*found, Axis(dimension=len(found), word="key", positions=columns)]


def _describe_attention_mask(problem: MultiheadProblem) -> list[Axis]:
    """Return the axes of attn_mask; dimension 0 of a 3-D mask (batch·heads) gives two axes, batch and head."""
    if str(problem.attention_mask).endswith("3d"):
        rows = range(problem.sequences * problem.num_heads)
        batch = Axis(dimension=0, word="batch", positions=[row // problem.num_heads for row in rows])
        head = Axis(dimension=0, word="head", positions=[row % problem.num_heads for row in rows])
        query = Axis(dimension=1, word="query", positions=range(problem.queries))
        return [batch, head, query, Axis(dimension=2, word="key", positions=range(problem.keys))]
    return _make_axes(("query", problem.queries), ("key", problem.keys))


def _describe_parameter(problem: MultiheadProblem, name: str) -> Iterator[Axis]:
    embed = problem.embed_dim
    if name in ("bias_k", "bias_v"):
        yield Axis(dimension=2, word="feature", positions=range(embed))
        yield _make_head_axis(problem, 2)
        return
    parts = {"in_proj_weight": "weights", "in_proj_bias": "bias"}.get(name)
    rows = embed * (3 if parts else 1)
    yield Axis(dimension=0, word="row", positions=range(rows))
    if parts:
        of = [f"{which} {parts}" for which in ("query", "key", "value") for _ in range(embed)]
        yield Axis(dimension=0, word="", positions=of, belongs=True)
    if not name.startswith("out_proj"):
        yield _make_head_axis(problem, 0, repeats=rows // embed)
    if name.endswith("weight"):
        widths = {"k_proj_weight": problem.kdim, "v_proj_weight": problem.vdim}
        yield Axis(dimension=1, word="column", positions=range(widths.get(name) or embed))
    if name == "out_proj.weight":
        yield _make_head_axis(problem, 1)


def _make_head_axis(problem: MultiheadProblem, dimension: int, *, repeats: int = 1) -> Axis:
    heads: Sequence[int] = [feature // problem.head_dim for feature in range(problem.embed_dim)] * repeats
    return Axis(dimension=dimension, word="head", positions=heads, belongs=True)
