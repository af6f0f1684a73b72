"""What is left out of all numbers in words: how much, and why."""

from collections import Counter
from collections.abc import Iterable

from attnbench.analysis.exclusions import Exclusion
from attnbench.records.value_facts import Phrase
from attnbench.words.checks import fill_phrase
from attnbench.words.say import say_count

__all__ = ["FAULTS", "count_exclusions", "describe_fault"]

_COUNTS = {
    "ceiling": ("{count} ceiling", "{count} ceilings"),
    "comparison": ("{count} comparison", "{count} comparisons"),
    "machine": ("{count} machine", "{count} machines"),
    "memory": ("{count} memory measurement", "{count} memory measurements"),
    "result": ("{count} result", "{count} results"),
    "run": ("{count} run", "{count} runs"),
    "timing": ("{count} timing", "{count} timings"),
    "work": ("{count} number of operations", "{count} numbers of operations"),
}
# Faults of a timing, and of the timing that is its A/A control.
_TIMING_FAULTS = {
    "no_samples": "it has no samples",
    "impossible_time": "{field} has a time of {number} ns",
    "processes": "{field} has {count} processes, and samples_ns has {needed}",
    "numbers": "{field} has {count} numbers in process {process}, and samples_ns has {needed}",
    "impossible_sample": "{field} has a sample of {number} in process {process}, and it must be at least {least}",
}
FAULTS = {
    **_TIMING_FAULTS,
    **{f"control_{key}": f"in its A/A control, {template}" for key, template in _TIMING_FAULTS.items()},
    "processes_of_control": "it has {count} processes, and its A/A control, timed in the same processes, has {control}",
    "same_id": "another run of this report has the same id: {file} is left out",
    "machine_memory": "its memory is {number} bytes: 0 is shown",
    "impossible_count": "{field} is {number}, and must be from 0 to 2⁶³ − 1",
    "unreadable_case": "its case id cannot be read: {error}",
    "endless_case": "the length of its case is over 2⁶³ − 1",
    "no_tokens": "it was measured on a case without tokens",
    "search_without_finding": "it is of a search for the longest sequence, and has no finding",
    "search_without_length": "it is of a search for the longest sequence, and its length cannot be read: {error}",
    "impossible_rate": "{device}, {dtype}: {field} is {rate:g}, and must be above 0",
    "absent_partner": "it says that it was timed with {name}, which is not in its run",
    "contradicting_partner": "it has {count} processes, and {name}, with which it was timed, has {other}: they are not "
    "compared",
}


def count_exclusions(left: Iterable[Exclusion]) -> str:
    """Return how much was left out, as a text such as "3 timings, 1 ceiling"; empty if nothing was."""
    return ", ".join(say_count(_COUNTS[kind], count) for kind, count in Counter(one.kind for one in left).items())


def describe_fault(fault: Phrase | str) -> str:
    """Return why something cannot be right; a text is that of another version."""
    return fault if isinstance(fault, str) else fill_phrase(FAULTS, fault)
