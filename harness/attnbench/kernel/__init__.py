"""An attention kernel as a whole module: projections, heads, masks and extra columns around a plain function."""

from attnbench.kernel.forward import ReferenceForward
from attnbench.kernel.function import Kernel, from_kernel
from attnbench.kernel.heads import HeadSplitAttention

__all__ = ["HeadSplitAttention", "Kernel", "ReferenceForward", "from_kernel"]
