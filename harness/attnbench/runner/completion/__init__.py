"""Completion: further cases for an implementation that declares cases of a suite unsupported.

A suite contains every pair (or triple) of values of the operator's factors. A row is a case that is described by one
value of each factor. An implementation takes a combination of values, such as a pair, if it supports a case that
contains the combination. A combination is covered if a case that is run contains it. If an implementation refuses
cases, combinations that it takes may remain uncovered. Further cases are drawn to cover these combinations.

This package needs numpy, whose import takes 0.1 s. The package is therefore imported inside the functions that use it.
"""

from attnbench.runner.completion.complete import complete, settle

__all__ = ["complete", "settle"]
