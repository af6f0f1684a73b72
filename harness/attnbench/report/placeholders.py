"""Placeholders of a report: the places in its page into which sections of plug-ins are inserted later.

A placeholder lies between two HTML comments, each alone on its line. Text from runs and plug-ins never makes such a
line, because the template engine escapes it.
"""

import re

__all__ = ["fill_placeholder", "make_placeholder"]


def make_placeholder(name: str, content: str = "") -> str:
    """Return the lines of a placeholder with this content."""
    return "\n".join([f"<!-- {name} -->", *([content] if content else []), f"<!-- end of {name} -->"])


def fill_placeholder(text: str, name: str, content: str) -> str:
    """Return the text of a file with this content in its placeholder; a file without the placeholder is unchanged."""
    found = re.compile(rf"^<!-- {re.escape(name)} -->$.*?^<!-- end of {re.escape(name)} -->$", re.MULTILINE | re.DOTALL)
    return found.sub(lambda _: make_placeholder(name, content), text, count=1)
