"""Checks: one requirement each, a chapter per file; the first line of a check's docstring is what a failure says."""
