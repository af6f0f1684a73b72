"""Deviations inside models of transformers, each shown by numbers without attnbench: ``python -m research.models``."""
