"""Mutants made from bugs in public issues, each wrong under the conditions that its issue names.

The issues were read as excerpts in a stored copy of GitHub. Where an issue reports a kernel that reads or leaves
memory uninitialised, the mutant puts fixed numbers in that place, so that it is wrong in every run.
"""

from attnbench.mutants.multihead.formula import Formula
from attnbench.mutants.multihead.historical import backward, calls, masks, padding, sizes
from attnbench.mutants.mutant import Mutant

__all__ = ["MISSED", "UNEXPRESSED", "mutant"]

mutant: tuple[Mutant, ...] = (*padding.mutant, *masks.mutant, *sizes.mutant, *backward.mutant, *calls.mutant)
# Mutants that no case of the lists shows. Each names a case that shows it but is in no list, so it is not in the set.
MISSED: tuple[Mutant, ...] = (*masks.missed, *sizes.missed, *backward.missed)
# Modules that no case id can show, so that they are no mutants yet. ScaledAfterProduct needs logits in float16 whose
# product before the scale exceeds 65504; no regime has such logits.
UNEXPRESSED: tuple[type[Formula], ...] = (calls.ScaledAfterProduct,)
