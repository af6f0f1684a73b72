"""Benchmarks of built-in implementations that run on every CPU, by sequence length and pass."""

from attnbench.asv import benchmarks

IMPLEMENTATIONS = ("naive_loop", "per_head", "batched_matmul", "reshaped", "sdpa")
LENGTHS = (32, 64, 128, 256)


class Attention(benchmarks(IMPLEMENTATIONS, LENGTHS)):  # type: ignore[misc]
    """Measures time, time relative to the reference, peak bytes and bytes saved for backward."""
