"""Mutants and correct variants of attention on split heads."""

from attnbench.mutants.attention_core import behaviour, faults, steps
from attnbench.mutants.attention_core.field import calls, kernels, strides
from attnbench.mutants.attention_core.variants import VARIANTS
from attnbench.mutants.mutant import MutantSet

__all__ = ["MUTANTS"]

MUTANTS = MutantSet(
    mutants=(*faults.mutant, *steps.mutant, *behaviour.mutant, *calls.mutant, *kernels.mutant, *strides.mutant),
    variants=VARIANTS,
)
