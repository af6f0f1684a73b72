"""Elementary attention mechanisms, as a plug-in of attnbench.

The plug-in contains operators, implementations of the operators, checks, mutants and studies.
"""
