"""Mutants (wrong implementations), equivalent mutants and correct variants, which test the checks.

Mutants show that each check can fail. Correct variants show that no check fails on a correct implementation. The types
are in ``attnbench.mutants.mutant``. ``Operator.mutants`` is the import path of an operator's mutant set.
"""
