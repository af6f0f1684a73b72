"""Comparing the observations of a check with the expected values, and explaining a failure."""
