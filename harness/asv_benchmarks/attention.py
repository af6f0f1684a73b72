"""Benchmarks of built-in implementations by sequence length and pass: on every CPU, and xformers on a CUDA device."""

from attnbench.asv import benchmarks

IMPLEMENTATIONS = ("naive_loop", "per_head", "batched_matmul", "reshaped", "sdpa")
XFORMERS = ("xformers", "xformers_splitk")
LENGTHS = (32, 64, 128, 256)


class Attention(benchmarks(IMPLEMENTATIONS, LENGTHS)):  # type: ignore[misc]
    """Measures time, time relative to the reference, peak bytes and bytes saved for backward."""


class Xformers(benchmarks(XFORMERS, LENGTHS)):  # type: ignore[misc]
    """Measures the same of xformers' CUDA kernels; without a CUDA device, everything is n/a."""

    device = "cuda"
