"""Attention built step by step from a single dot product, one step per file.

Most steps are written twice: as a loop over single numbers and as matrix products.
"""
