"""Wrong implementations and correct variants; they prove that the checks can fail, and that they do not fail idly."""

from attnbench.mutants import (
    attention_core,
    backward,
    causality,
    columns,
    compilers,
    dropout,
    effects,
    equivalents,
    layouts,
    masks,
    mechanisms,
    modes,
    precision,
    protocol,
    refusals,
    scale,
    sizes,
    state,
    variants,
)
from attnbench.mutants.mutant import Equivalent, Mutant, Zoo

__all__ = ["EQUIVALENTS", "MUTANTS", "VARIANTS", "ZOOS", "Equivalent", "Mutant", "Zoo"]

# Of multi-head attention; ZOOS has those of every operator.
MUTANTS: tuple[Mutant, ...] = (
    *scale.mistake,
    *masks.mistake,
    *causality.mistake,
    *columns.mistake,
    *precision.mistake,
    *sizes.mistake,
    *backward.mistake,
    *dropout.mistake,
    *modes.mistake,
    *layouts.mistake,
    *state.mistake,
    *effects.mistake,
    *protocol.mistake,
    *compilers.mistake,
    *refusals.mistake,
)
EQUIVALENTS: tuple[Equivalent, ...] = equivalents.EQUIVALENTS
VARIANTS = variants.VARIANTS
ZOOS: dict[str, Zoo] = {
    "multihead": Zoo(mutants=MUTANTS, equivalents=EQUIVALENTS, variants=tuple(VARIANTS)),
    "attention_core": Zoo(mutants=attention_core.MISTAKES, variants=attention_core.VARIANTS),
    **mechanisms.ZOOS,
}
