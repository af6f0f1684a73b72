"""Wrong and right implementations of attention on split heads."""

from attnbench.mutants.attention_core import conduct, mistakes
from attnbench.mutants.attention_core.variants import VARIANTS

__all__ = ["MISTAKES", "VARIANTS"]

MISTAKES = (*mistakes.mistake, *conduct.mistake)
