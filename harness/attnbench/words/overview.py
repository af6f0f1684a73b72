"""The first screen of a report in words, as far as the summary on a terminal has no words for it."""

__all__ = ["NOTHING_CHOSEN", "PENDING"]

NOTHING_CHOSEN = "nothing that conforms was timed"
PENDING = "not reached"
