"""Time limits for tests of calls that hang: short where the machine is quiet, longer where it is not."""

from collections.abc import Callable
from typing import TypeVar

from attnbench.plugins.registry import PluginError

__all__ = ["repeat_with_longer_limits"]

Found = TypeVar("Found")
# Factors of a time limit. On a busy machine, what does not hang may need up to the last of them.
FACTORS = (1, 8, 64)


def repeat_with_longer_limits(
    attempt: Callable[[float], Found], is_expected: Callable[[Found], bool], *, first_s: float
) -> tuple[Found, float]:
    """Call ``attempt`` with longer and longer time limits until its result is as expected.

    What hangs exceeds every limit, and everything else is within the last one, so only the last result must be as
    expected. Return it, with its limit in seconds.
    """
    for factor in FACTORS[:-1]:
        try:
            found = attempt(factor * first_s)
        except PluginError:  # loading the implementation took longer than the limit
            continue
        if is_expected(found):
            return found, factor * first_s
    return attempt(FACTORS[-1] * first_s), FACTORS[-1] * first_s
