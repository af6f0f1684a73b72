"""The checks, in one file per chapter. The first line of a check's docstring is its requirement, which users read."""
