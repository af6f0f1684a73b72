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
    tiles,
    wide,
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
        *tiles.mutant,
        *fused.mutant,
        *backward.mutant,
        *wide.mutant,
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
    variants=tuple(VARIANTS),
)
