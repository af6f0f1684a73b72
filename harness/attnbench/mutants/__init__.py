"""Wrong implementations and correct variants: proof that the checks can fail, and that they pass what is right.

``attnbench.mutants.mutant`` has the types; each operator's set is named by ``Operator.mutants`` and loaded by name.
"""
