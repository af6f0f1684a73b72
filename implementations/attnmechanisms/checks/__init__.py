"""Checks of the elementary attention mechanisms. A chapter is a group of checks in one file."""
