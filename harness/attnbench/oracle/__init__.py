"""Seeded inputs, expected values and error budgets of cases, and a cache of these results."""
