"""Checks of the mechanisms, one file per chapter."""
