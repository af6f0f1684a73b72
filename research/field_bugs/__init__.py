"""Bugs of attention from public trackers, made again: ``python -m research.field_bugs --help``.

The bugs, the mutants of their kinds and the correct variants were written before the lists of cases and the checks were
changed for them. Each changes one step of the correct formula of ``attnbench.mutants``.
"""
