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
    steps,
)
from attnbench.mutants.multihead.equivalents import EQUIVALENTS
from attnbench.mutants.multihead.field import branches, calls, empty, threads
from attnbench.mutants.multihead.field import masks as field_masks
from attnbench.mutants.multihead.field import modes as field_modes
from attnbench.mutants.multihead.field import sizes as field_sizes
from attnbench.mutants.multihead.variants import VARIANTS
from attnbench.mutants.mutant import MutantSet

__all__ = ["MUTANTS"]

_TOPICS = (
    scale, steps, masks, sides, causality, columns, precision, sizes, fused, backward, dropout, modes, layouts, state,
    effects, protocol, signatures, compilers, refusals, deviations, historical, field_sizes, field_masks, calls,
    field_modes, empty, threads, branches,
)  # fmt: skip
MUTANTS = MutantSet(
    mutants=tuple(mutant for topic in _TOPICS for mutant in topic.mutant), equivalents=EQUIVALENTS, variants=VARIANTS
)
