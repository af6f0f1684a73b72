"""An attention kernel as a whole module: projections, heads, masks and extra columns around a plain function.

Or alone, with nothing around it but its masks.
"""

from attnbench.kernel.called import CalledModule, from_call
from attnbench.kernel.core import CoreKernel, core_from_kernel
from attnbench.kernel.forward import ReferenceForward
from attnbench.kernel.function import Kernel, from_kernel
from attnbench.kernel.heads import HeadSplitAttention

__all__ = [
    "CalledModule",
    "CoreKernel",
    "HeadSplitAttention",
    "Kernel",
    "ReferenceForward",
    "core_from_kernel",
    "from_call",
    "from_kernel",
]
