"""The error for what the user of a gate can mend."""

__all__ = ["GateError"]


class GateError(Exception):
    """A gate that cannot be run; the message is one line, with the remedy."""
