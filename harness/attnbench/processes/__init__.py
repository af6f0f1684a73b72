"""Child processes and the processes that they start in turn. Importing this package imports no torch."""
