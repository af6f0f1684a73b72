"""Reading stored samples: intervals, speed verdicts, differences between runs. Importing this package imports no torch."""
