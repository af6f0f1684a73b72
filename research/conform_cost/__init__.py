"""CPU time of a conformance run, and the harness's own share: ``python -m research.conform_cost``."""
