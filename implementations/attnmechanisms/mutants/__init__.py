"""Mutants and correct variants of the elementary mechanisms, a set for each operator."""

from attnbench.mutants.mutant import MutantSet
from attnmechanisms.mutants import behaviour, faults, hiding
from attnmechanisms.mutants.variants import VARIANTS

__all__ = [
    "ADDITIVE_POOLING",
    "DOT_PRODUCT_POOLING",
    "RAW_SELF_ATTENTION",
    "RESIDUAL_BLOCK",
    "SCALED_SELF_ATTENTION",
    "SINGLE_HEAD",
]

MISTAKES = (*faults.mutant, *hiding.mutant, *behaviour.mutant)


def _zoo(operator: str) -> MutantSet:
    """The mutants and the variants of one mechanism."""
    return MutantSet(
        mutants=tuple(mutant for mutant in MISTAKES if mutant.implementation.operator == operator),
        variants=tuple(variant for variant in VARIANTS if variant.operator == operator),
    )


RAW_SELF_ATTENTION = _zoo("raw_self_attention")
SCALED_SELF_ATTENTION = _zoo("scaled_self_attention")
ADDITIVE_POOLING = _zoo("additive_pooling")
DOT_PRODUCT_POOLING = _zoo("dot_product_pooling")
SINGLE_HEAD = _zoo("single_head")
RESIDUAL_BLOCK = _zoo("residual_block")
