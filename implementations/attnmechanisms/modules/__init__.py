"""Attention built step by step from a single dot product: one step per file, as a loop and as matrix products."""
