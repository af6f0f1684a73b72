"""Attention built up from a single dot product, one step per file, each as a loop and as matrix products."""
