"""The checks, one file per chapter. The message of a failure begins with the first line of the check's docstring."""
