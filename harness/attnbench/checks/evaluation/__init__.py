"""Comparing what a check observed with the expected values, and explaining a failure."""
