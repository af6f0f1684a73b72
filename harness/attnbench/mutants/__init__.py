"""Wrong implementations and correct variants; they prove that the checks can fail, and that they do not fail idly."""

from attnbench.mutants import kernels, modules, variants
from attnbench.mutants.mutant import Mutant

__all__ = ["MUTANTS", "VARIANTS", "Mutant"]

MUTANTS: tuple[Mutant, ...] = (*kernels.MUTANTS, *modules.MUTANTS)
VARIANTS = variants.VARIANTS
