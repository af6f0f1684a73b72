"""Mutants and correct variants of the elementary mechanisms, one mutant set for each operator."""

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

MUTANTS = (*faults.mutant, *hiding.mutant, *behaviour.mutant)


def _select_set(operator: str) -> MutantSet:
    """Return the mutants and the correct variants of one operator."""
    return MutantSet(
        mutants=tuple(mutant for mutant in MUTANTS if mutant.implementation.operator == operator),
        variants=tuple(variant for variant in VARIANTS if variant.operator == operator),
    )


RAW_SELF_ATTENTION = _select_set("raw_self_attention")
SCALED_SELF_ATTENTION = _select_set("scaled_self_attention")
ADDITIVE_POOLING = _select_set("additive_pooling")
DOT_PRODUCT_POOLING = _select_set("dot_product_pooling")
SINGLE_HEAD = _select_set("single_head")
RESIDUAL_BLOCK = _select_set("residual_block")
