"""The conformance checks. A chapter is a file with the checks of one topic.

The first line of a check's docstring is its requirement, which failure messages quote.
"""
