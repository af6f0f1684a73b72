"""What a conformance run costs, and what of it is the harness: ``python -m research.conform_cost``."""
