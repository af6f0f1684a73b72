"""The base class of requests to child processes. A class of requests names the type of its reply.

A request is a class with fields, derived from ``Request[Reply]``. The parent process sends a request by ``Child.ask``,
whose result has the type ``Reply``. The child process passes ``TheRequest.answered_by(function)`` to ``serve``. In the
child, type checkers compare ``function`` with the request. In the parent, they compare the use of the reply with its
type.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, get_args, get_origin

import msgspec

__all__ = ["Fault", "Handler", "Request", "find_reply_type", "to_plain"]

# Covariant, so that a request may be passed where a request with a more general type of reply is expected.
Reply = TypeVar("Reply", covariant=True)


class Request(msgspec.Struct, Generic[Reply], frozen=True, kw_only=True):
    """A request to a child process; ``Reply`` is the type of its reply."""

    @classmethod
    def answered_by(cls, function: Callable[[Self], Reply]) -> "Handler":
        """Return the handler that answers requests of this class by calling ``function``."""
        return Handler(kind=cls, answer=function)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A class of requests, and the function that answers requests of this class."""

    kind: type[Request[Any]]
    answer: Callable[[Any], object]


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The reason why a request has no result: one line that names the argument and the remedy."""

    reason: str


def find_reply_type(kind: Any) -> Any:
    """Return the type ``Reply`` of a class derived from ``Request[Reply]``, directly or through other generic classes.

    Source: https://docs.python.org/3/library/types.html#types.get_original_bases.
    """
    if kind is Request:
        return Reply
    base = kind.__orig_bases__[0]
    (argument,) = get_args(base)
    outer = find_reply_type(get_origin(base))
    return argument if isinstance(outer, TypeVar) else outer[argument]


def to_plain(value: object) -> Any:
    """Return a request or a reply as dictionaries, lists, strings and numbers, which ``json`` can write."""
    return msgspec.to_builtins(value, enc_hook=_to_plain_text)


def _to_plain_text(value: object) -> str:
    """Return an instance of a class derived from ``str`` as a ``str``.

    Raises: TypeError for any other class.
    """
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"a request or a reply cannot contain an object of the class {type(value).__name__}")
