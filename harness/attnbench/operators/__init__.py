"""Operators: mathematical contracts, each with its problems, its oracle, its yardsticks and the checks that apply."""
