"""The built-in implementations that every CPU runs, over sequence length and pass."""

from attnbench.asv import benchmarks

IMPLEMENTATIONS = ("naive_loop", "per_head", "batched_matmul", "reshaped", "sdpa")
LENGTHS = (32, 64, 128, 256)


class Attention(benchmarks(IMPLEMENTATIONS, LENGTHS)):  # type: ignore[misc]
    """Time, ratio to the reference, peak bytes and bytes saved for backward."""
