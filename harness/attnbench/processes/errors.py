"""Errors raised when a child process sends no reply. The command line imports this module to catch these errors."""

__all__ = ["ChildDied", "ChildTimeout"]


class ChildDied(Exception):
    """Raised if the child ended before it answered; the message says how it ended."""


class ChildTimeout(Exception):
    """Raised if the child did not answer in time; the child has been killed."""
