"""The checks, a chapter per file. The first line of a check's docstring is what a failure says."""
