"""The least floating-point operations and bytes of a case, from the exact number of visible query-key pairs."""

from attnbench.cases import NUMBER_FORMATS, Case
from attnbench.interface import Work
from attnbench.operators.attention_core.problem import AttentionCoreProblem

__all__ = ["count_visible_pairs", "count_work"]

# Number of bytes per element, by dtype.


def count_work(case: Case) -> Work:
    """Count the operations of the matrix products over visible query-key pairs, and the bytes of all tensors.

    A multiply-add counts as two operations. The backward pass has two matrix products for each matrix product of the
    forward pass. Every tensor, and every gradient, counts once in the bytes.
    """
    problem: AttentionCoreProblem = case.problem
    batch, heads, key_heads = problem.sequences, problem.num_heads, problem.key_heads
    products = 3 if case.differentiates else 1
    width, value_width = problem.head_dim, problem.value_dim
    bias = {"bias2d": 1, "bias4d": batch * heads}.get(problem.bias or "", 0) * problem.queries * problem.keys
    given = batch * (heads * problem.queries * width + key_heads * problem.keys * (width + value_width)) + bias
    made = batch * heads * problem.queries * value_width
    lengths = batch * (4 if problem.int32_lengths else 8) * ("ragged" in problem.parts)
    # A backward pass doubles the bytes, because it reads the gradient of the output and writes the gradients of the
    # inputs.
    times = 2 if case.differentiates else 1
    return Work(
        flop=2 * products * count_visible_pairs(case) * (width + value_width),
        pairs=problem.pairs,
        bytes=times * (given + made) * NUMBER_FORMATS[case.dtype].bytes + lengths,
    )


def count_visible_pairs(case: Case) -> int:
    """Count the visible query-key pairs of all sequences and heads.

    Pairs that a bias hides count as visible, because their logits are computed before the bias is added.
    """
    problem: AttentionCoreProblem = case.problem
    return problem.num_heads * sum(_count_visible(problem, length) for length in _draw_lengths(case))


def _draw_lengths(case: Case) -> list[int]:
    problem: AttentionCoreProblem = case.problem
    if "ragged" not in problem.parts:
        return [problem.keys] * problem.sequences
    from attnbench.operators.attention_core.inputs import draw_key_lengths
    from attnbench.oracle.inputs import Draw

    return draw_key_lengths(problem, Draw(case.seed)).tolist()


def _count_visible(problem: AttentionCoreProblem, length: int) -> int:
    """Count the visible query-key pairs in one head of a sequence that has ``length`` keys."""
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
