"""Wrong and right implementations of attention on split heads."""

from attnbench.mutants.attention_core.mistakes import MISTAKES
from attnbench.mutants.attention_core.variants import VARIANTS

__all__ = ["MISTAKES", "VARIANTS"]
