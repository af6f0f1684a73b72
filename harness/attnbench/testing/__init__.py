"""Attention checked in anybody's test: whether an output is right, and which of several outputs is wrong.

    from attnbench.testing import assert_attention_close

    assert_attention_close(my_attention(q, k, v), q, k, v, is_causal=True)

The expected values, the allowed error and the diagnosis are those of ``attnbench conform``. They are computed in
float64 on the CPU, in the process of the caller, from the tensors of the call.
"""

from attnbench.testing.assertions import assert_attention_close, compare_attention
from attnbench.testing.comparison import Comparison

__all__ = ["Comparison", "assert_attention_close", "compare_attention"]
