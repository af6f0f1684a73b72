"""Implementations made from a plain function.

``from_kernel`` adds projections, heads, masks and the extra key columns (bias_k, add_zero_attn) to a kernel.
``core_from_kernel`` adds masks only. A ``Convention`` says how a function is called in another way. ``from_call`` wraps
a function that takes all arguments of an operator's call. ``from_module`` wraps a module with other projections or
another forward method than the reference's, as its ``ModuleConvention`` says.
"""

from attnbench.interface.conventions import Convention, ModuleConvention
from attnbench.kernel.core import CoreKernel, core_from_kernel
from attnbench.kernel.forward import ReferenceForward
from attnbench.kernel.function import Kernel, from_kernel
from attnbench.kernel.heads import HeadSplitAttention
from attnbench.kernel.module import from_module
from attnbench.kernel.operator_call import CalledModule, from_call

__all__ = [
    "CalledModule",
    "Convention",
    "CoreKernel",
    "HeadSplitAttention",
    "Kernel",
    "ModuleConvention",
    "ReferenceForward",
    "core_from_kernel",
    "from_call",
    "from_kernel",
    "from_module",
]
