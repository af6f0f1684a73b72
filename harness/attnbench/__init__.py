"""Check, measure and track implementations of multi-head attention in PyTorch."""

from importlib.metadata import version

from attnbench.cases import Case, Problem
from attnbench.interface import Implementation, Inputs, Operator, Policies, Refusal

__all__ = ["Case", "Implementation", "Inputs", "Operator", "Policies", "Problem", "Refusal", "__version__"]

__version__ = version("attnbench")
