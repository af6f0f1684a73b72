"""Completion: further cases for an implementation that declares cases of a suite unsupported.

A suite contains every pair (or triple) of values of the operator's factors. The cases that an implementation refuses
take their pairs with them. Further cases are drawn until every pair that the implementation takes is covered.

This package needs numpy, whose import takes 0.1 s. It is imported where it is used.
"""

from attnbench.runner.completion.complete import complete, settle

__all__ = ["complete", "settle"]
