"""Checks of the mechanisms, a chapter per file."""
