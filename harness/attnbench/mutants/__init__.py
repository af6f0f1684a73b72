"""Mutants (wrong implementations), equivalent mutants and correct variants, which test the checks.

Mutants show that each check can fail. Correct variants show that no check fails on a correct implementation. The types
are in ``attnbench.mutants.mutant``. ``Operator.mutants`` names the mutant set of an operator, which is loaded by name.
"""
