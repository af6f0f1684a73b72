"""Mutants made from bugs in public issues, each wrong under the conditions that its issue names.

The issues were read as excerpts in a stored copy of GitHub. Where an issue reports a kernel that reads or leaves
memory uninitialised, the mutant puts fixed numbers in that place, so that it is wrong in every run.
"""

from attnbench.mutants.multihead.historical import backward, calls, masks, padding, sizes
from attnbench.mutants.mutant import Mutant

__all__ = ["mutant"]

mutant: tuple[Mutant, ...] = (*padding.mutant, *masks.mutant, *sizes.mutant, *backward.mutant, *calls.mutant)
