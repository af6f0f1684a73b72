"""The one place where a template becomes a text, so that a test can replace every template by other words."""

from typing import Any

__all__ = ["say", "say_count"]


def say(template: str, **values: Any) -> str:
    """Fill a template with values, as ``str.format`` does; every template of ``words`` is filled here."""
    return template.format(**values)


def say_count(templates: tuple[str, str], count: int, **values: Any) -> str:
    """Fill the first template for a count of 1, the second for any other; thousands are divided by a space."""
    return say(templates[count != 1], count=f"{count:,}".replace(",", " "), **values)
