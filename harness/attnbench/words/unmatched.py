"""What only one of two compared sides has, in words."""

from attnbench.analysis.unmatched import Unmatched
from attnbench.words.say import say, say_count

__all__ = ["COUNTS", "NAMES", "count_failed", "describe_lacks", "describe_only"]

COUNTS = {
    "implementation": ("{count} case", "{count} cases"),
    "case": ("{count} case", "{count} cases"),
    "check": ("{count} finding", "{count} findings"),
    "timing": ("{count} timing", "{count} timings"),
}
NAMES = {
    "implementation": "the whole implementation",
    "case": "cases",
    "check": "checks that ran",
    "timing": "timings",
}
_FAILED, _WITH_FAILURES = "{count} failed", "{count} with failures"
_LACK, _LACK_OF_SOME = "{lack}{more}", "{lack} ×{count}{more}"
_OTHER_REASONS = (" (and {count} other reason)", " (and {count} other reasons)")
_ONLY, _ONLY_WITH_NOTE = "only in {side}: {name}, {count} ({what})", "only in {side}: {name}, {count} ({what}): {note}"


def count_failed(one: Unmatched) -> str:
    """Return how much of it failed; empty if nothing did."""
    return say(_FAILED if one.kind == "check" else _WITH_FAILURES, count=one.failed) if one.failed else ""


def describe_lacks(one: Unmatched, lack: str) -> str:
    """Return the most frequent reason ``lack``, how often it occurs if not always, and the number of other reasons."""
    count, others = one.lacks[0][1], len(one.lacks) - 1
    more = say_count(_OTHER_REASONS, others) if others else ""
    return say(_LACK_OF_SOME if count < one.count else _LACK, lack=lack, count=count, more=more)


def describe_only(*, side: str, name: str, count: str, what: str, note: str) -> str:
    """Return in a line what only one side has; the note may be empty."""
    return say(_ONLY_WITH_NOTE if note else _ONLY, side=side, name=name, count=count, what=what, note=note)
