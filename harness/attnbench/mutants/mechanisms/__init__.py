"""Wrong and right forms of the elementary mechanisms."""

from attnbench.mutants.mechanisms import conduct, hiding, mistakes
from attnbench.mutants.mechanisms.formula import RIGHT
from attnbench.mutants.mechanisms.variants import VARIANTS
from attnbench.mutants.mutant import Zoo

__all__ = ["MISTAKES", "ZOOS"]

MISTAKES = (*mistakes.mistake, *hiding.mistake, *conduct.mistake)
# By operator.
ZOOS = {
    name: Zoo(
        mutants=tuple(mutant for mutant in MISTAKES if mutant.implementation.operator == name),
        variants=tuple(variant for variant in VARIANTS if variant.operator == name),
    )
    for name in RIGHT
}
