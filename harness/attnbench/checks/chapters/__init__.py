"""The built-in checks. Each file is a chapter: the checks of one topic.

The message of a failed check begins with the first line of the check's docstring.
"""
