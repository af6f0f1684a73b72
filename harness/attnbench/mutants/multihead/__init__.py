"""Mutants of multi-head attention, equivalent mutants and correct variants."""

from attnbench.mutants.multihead import (
    backward,
    causality,
    columns,
    compilers,
    deviations,
    dropout,
    effects,
    fused,
    historical,
    layouts,
    masks,
    modes,
    precision,
    protocol,
    refusals,
    scale,
    sides,
    signatures,
    sizes,
    state,
)
from attnbench.mutants.multihead.equivalents import EQUIVALENTS
from attnbench.mutants.multihead.variants import VARIANTS
from attnbench.mutants.mutant import MutantSet

__all__ = ["MUTANTS"]

MUTANTS = MutantSet(
    mutants=(
        *scale.mutant,
        *masks.mutant,
        *sides.mutant,
        *causality.mutant,
        *columns.mutant,
        *precision.mutant,
        *sizes.mutant,
        *fused.mutant,
        *backward.mutant,
        *dropout.mutant,
        *modes.mutant,
        *layouts.mutant,
        *state.mutant,
        *effects.mutant,
        *protocol.mutant,
        *signatures.mutant,
        *compilers.mutant,
        *refusals.mutant,
        *deviations.mutant,
        *historical.mutant,
    ),
    equivalents=EQUIVALENTS,
    variants=VARIANTS,
)
