"""Analysis of stored samples: intervals, speed verdicts, differences between runs. Importing this imports no torch."""
