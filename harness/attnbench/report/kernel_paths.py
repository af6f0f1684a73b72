"""Code path of an implementation, such as fused flash attention, found in the names of the torch operators that ran."""

import re
from collections.abc import Sequence

from attnbench.analysis.run_diff import count_kernel_calls

__all__ = ["find_way"]

# Regular expressions for operator names, each with the code path that it indicates. The first expression that matches
# the name of any operator decides.
WAYS = (
    (r"_scaled_dot_product_attention_math", "composed: torch's math path, no fused kernel"),
    (r"_flash_attention", "fused: flash"),
    (r"_efficient_attention", "fused: memory-efficient"),
    (r"_cudnn_attention", "fused: cuDNN"),
    (r"_native_multi_head_attention", "composed: the module's fast path"),
    (r"_softmax|bmm|baddbmm", "composed: products and softmax"),
)
COPY = "aten::copy_"


def find_way(kernels: Sequence[str]) -> str:
    """Return words for the code path that these torch operators indicate, and the number of tensor copies, if any."""
    found = next((words for pattern, words in WAYS if any(re.search(pattern, name) for name in kernels)), "its own")
    copies = count_kernel_calls(kernels)[COPY]
    return found + (f"; {copies} {'copy' if copies == 1 else 'copies'} of tensors" if copies else "")
