"""Correct variants of multi-head attention: they deviate as declared or only in rounding, and must pass every check."""

from attnbench.interface import Implementation
from attnbench.mutants.multihead.variants.cores import CORES
from attnbench.mutants.multihead.variants.declared import DECLARED
from attnbench.mutants.multihead.variants.joins import JOINED
from attnbench.mutants.multihead.variants.rounding import ROUNDED
from attnbench.mutants.multihead.variants.unusual import UNUSUAL

__all__ = ["VARIANTS"]

VARIANTS: tuple[Implementation, ...] = (*ROUNDED, *JOINED, *CORES, *DECLARED, *UNUSUAL)
