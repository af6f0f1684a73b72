"""CPU time of a conformance run, and the share of the harness itself: ``python -m research.conform_cost``."""
