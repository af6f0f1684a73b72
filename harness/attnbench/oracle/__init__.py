"""The expected values of a case: seeded inputs, expected outputs, the error budget, and a cache of all three."""
