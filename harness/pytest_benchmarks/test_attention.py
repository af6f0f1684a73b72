"""The built-in implementations as a table of pytest-benchmark: ``make tables``."""

import pytest

from attnbench.pytest_plugin.benchmark import AttentionBenchmark
from attnbench.records.types import Pass


@pytest.mark.parametrize("passes", ["forward", "forward+backward"])
@pytest.mark.parametrize("length", [64, 256])
@pytest.mark.parametrize("implementation", ["per_head", "batched_matmul", "reshaped", "sdpa"])
def test_attention(attention_benchmark: AttentionBenchmark, implementation: str, length: int, passes: Pass) -> None:
    """Each row has the ratio of an implementation's time to the reference's, once it has passed its checks."""
    attention_benchmark(implementation, length, passes=passes)
