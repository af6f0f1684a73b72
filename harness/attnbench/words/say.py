"""The one place where a template becomes a text, so that a test can replace every template by other words."""

from collections.abc import Iterable
from typing import Any

from attnbench.analysis.plain_names import join_words

__all__ = ["say", "say_count", "say_names"]

_AND_MORE = "{count} more"


def say(template: str, **values: Any) -> str:
    """Fill a template with values, as ``str.format`` does; every template of ``words`` is filled here."""
    return template.format(**values)


def say_count(templates: tuple[str, str], count: int, **values: Any) -> str:
    """Fill the first template for a count of 1, the second for any other; thousands are divided by a space."""
    return say(templates[count != 1], count=f"{count:,}".replace(",", " "), **values)


def say_names(names: Iterable[str], most: int) -> str:
    """Join names; of more than ``most`` and one, the others are counted."""
    every = list(names)
    if len(every) <= most + 1:
        return join_words(every)
    return join_words([*every[:most], say(_AND_MORE, count=len(every) - most)])
