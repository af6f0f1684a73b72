"""Names of the dimensions of a quantity (an output or a gradient), for messages."""

from collections.abc import Sequence

from attnbench.cases import Case
from attnbench.interface import Axis
from attnbench.operators.attention_core.problem import AttentionCoreProblem

__all__ = ["describe_axes"]


def describe_axes(case: Case, quantity: str) -> Sequence[Axis]:
    """Return the named axes of a quantity (an output or a gradient), in the order of its dimensions."""
    problem: AttentionCoreProblem = case.problem
    batch, heads = ("batch", problem.sequences), ("head", problem.num_heads)
    queries, keys = ("query", problem.queries), ("key", problem.keys)
    shared = ("key head", problem.key_heads)
    dimensions = {
        "output": (batch, heads, queries, ("feature", problem.value_dim)),
        "lse": (batch, heads, queries),
        "sinks": (heads,),
        "query": (batch, heads, queries, ("feature", problem.head_dim)),
        "key": (batch, shared, keys, ("feature", problem.head_dim)),
        "value": (batch, shared, keys, ("feature", problem.value_dim)),
        "bias": (queries, keys) if problem.bias == "bias2d" else (batch, heads, queries, keys),
    }
    named = dimensions[quantity.removeprefix("grad.")]
    return [Axis(dimension=i, word=word, positions=range(extent)) for i, (word, extent) in enumerate(named)]
