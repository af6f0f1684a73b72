"""What a case needs at the least, by closed form: floating-point operations and bytes, masks counted exactly."""

from attnbench.cases import Case
from attnbench.interface import Work
from attnbench.operators.attention_core.problem import AttentionCoreProblem

__all__ = ["visible_pairs", "work"]

# Unit: bytes of one element.
ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def work(case: Case) -> Work:
    """Matrix products over the query-key pairs that masks leave, and every tensor moved once.

    Two operations for each multiply-add; backward is two products for each of forward.
    """
    problem: AttentionCoreProblem = case.problem
    batch, heads, key_heads = problem.sequences, problem.num_heads, problem.key_heads
    products = 3 if case.differentiates else 1
    width, value_width = problem.head_dim, problem.value_dim
    bias = {"bias2d": 1, "bias4d": batch * heads}.get(problem.bias or "", 0) * problem.queries * problem.keys
    given = batch * (heads * problem.queries * width + key_heads * problem.keys * (width + value_width)) + bias
    made = batch * heads * problem.queries * value_width
    lengths = batch * (4 if problem.int32_lengths else 8) * ("ragged" in problem.parts)
    # Gradients of what went in go out, and that of the output comes in.
    times = 2 if case.differentiates else 1
    return Work(
        flop=2 * products * visible_pairs(case) * (width + value_width),
        pairs=batch * heads * problem.queries * problem.keys,
        bytes=times * (given + made) * ELEMENT_BYTES[case.dtype] + lengths,
    )


def visible_pairs(case: Case) -> int:
    """Query-key pairs that masks leave, over batch and heads.

    Those that a bias hides count: they are numbers like any other until they are added.
    """
    problem: AttentionCoreProblem = case.problem
    each = (_seen(problem, length) for length in _lengths(case))
    return problem.num_heads * sum(each)


def _lengths(case: Case) -> list[int]:
    problem: AttentionCoreProblem = case.problem
    if "ragged" not in problem.parts:
        return [problem.keys] * problem.sequences
    from attnbench.operators.attention_core.inputs import key_lengths
    from attnbench.oracle.inputs import Draw

    return key_lengths(problem, Draw(case.seed)).tolist()


def _seen(problem: AttentionCoreProblem, length: int) -> int:
    """Pairs of one head of a sequence with so many keys."""
    first = 0 if problem.causal == "top_left" else length - problem.queries
    total = 0
    for position in range(first, first + problem.queries):
        low, high = 0, length - 1
        if problem.window is not None:
            low, high = max(low, position - problem.window), min(high, position + problem.window)
        if problem.causal:
            high = min(high, position)
        total += max(0, high - low + 1)
    return total
