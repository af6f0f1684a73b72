"""Figures of a report. What the page needs of them is imported without matplotlib, which takes a second."""
