"""Mutants that are wrong only at some sizes: of sequences, tiles of keys, heads and batches."""

from attnbench.mutants.multihead.sizes import shapes, tiles, wide
from attnbench.mutants.mutant import Mutant

__all__ = ["mutant"]

mutant: tuple[Mutant, ...] = (*shapes.mutant, *tiles.mutant, *wide.mutant)
