"""Comparisons of a base with something new: their content, and the page and the Markdown text that show it."""

__all__: list[str] = []
