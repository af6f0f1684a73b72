"""Mapping from the name of every registered operator to its mutant set."""

from attnbench.mutants.mutant import MutantSet, load_mutant_set
from attnbench.plugins.registry import OPERATORS, list_names, load_operator

MUTANT_SETS: dict[str, MutantSet] = {name: load_mutant_set(load_operator(name)) for name in list_names(OPERATORS)}
