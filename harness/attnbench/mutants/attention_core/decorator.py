"""The list that makes module classes mutants of attention on split heads."""

from functools import partial

from attnbench.mutants.mutant import MutantList
from attnbench.operators.attention_core.suites import PLAIN

__all__ = ["CoreMutants"]

CoreMutants = partial(MutantList, "attention_core", PLAIN, prefix="core_")
