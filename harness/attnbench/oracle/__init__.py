"""Seeded inputs, expected values and error budgets of cases; a cache computes each of the three only once."""
