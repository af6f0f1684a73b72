"""Sentences about deviations: what an implementation was seen to do, although its policies declare otherwise.

A reason of a finding that contains such a sentence names the policies under which the finding would have passed.
"""

import re
from collections.abc import Sequence
from typing import Any

from attnbench.interface import Policies

__all__ = [
    "FULLY_MASKED",
    "HIDDEN_ROW_POLICIES",
    "describe_deviation",
    "find_declaration",
    "find_facts",
    "find_sentence",
    "join_sentences",
]

# Words in the reason of a failure that is confined to fully masked rows, and that names no policies.
FULLY_MASKED = "in fully masked rows"
# Policies that together describe one thing: what an implementation does with fully masked rows.
HIDDEN_ROW_POLICIES = frozenset({"hidden_rows", "hidden_row_gradients"})
# Words for what was seen, by policy and by the value that would declare it.
_SEEN: dict[tuple[str, Any], str] = {
    ("hidden_rows", "zero"): "a fully masked row is zero",
    ("hidden_rows", "nan"): "a fully masked row is NaN",
    ("hidden_rows", "mean"): "a fully masked row is the mean of all values, hidden ones included",
    ("hidden_row_gradients", "exact"): "the gradients of a fully masked row are those of its value",
    (
        "hidden_row_gradients",
        "softmax",
    ): "the gradients of a fully masked row are those of a softmax with equal weights",
    ("hidden_row_gradients", "nan"): "the gradients of a fully masked row are NaN",
    ("returned_weights", "before_dropout"): "the returned weights are those before dropout",
    ("returned_weights", "after_dropout"): "the returned weights are those after dropout",
    ("detached_weights", True): "the returned weights are detached from the graph",
    ("detached_weights", False): "the returned weights carry a gradient",
    ("empty_batches", "refused"): "a batch without sequences raises an exception",
    ("empty_batches", "computed"): "a batch without sequences raises no exception",
}
_SENTENCE = re.compile(
    r"Deviation: (?P<facts>.*?)(?P<remedy>; if this is meant, declare|: remove) Policies\((?P<declared>[^()]*)\)\."
)


def find_facts(text: str) -> str:
    """Return what was seen, from the sentence about a deviation in a text; empty if there is none."""
    found = _SENTENCE.search(text)
    return found["facts"] if found else ""


def describe_deviation(policies: Policies, **seen: Any) -> str:
    """Return the sentence about a deviation from declared policies; ``seen`` has the values that were seen, by policy.

    Where the seen values are the defaults, the remedy is to remove the declaration.
    """
    facts = " and ".join(_SEEN[item] for item in seen.items())
    defaults = Policies()
    declared = {name: getattr(policies, name) for name in seen if getattr(policies, name) != getattr(defaults, name)}
    but = f", but Policies({_format(declared)}) is declared" if declared else ""
    if all(value == getattr(defaults, name) for name, value in seen.items()):
        return f"Deviation: {facts}{but}: remove Policies({_format(declared)})."
    return f"Deviation: {facts}{but}; if this is meant, declare Policies({_format(seen)})."


def find_sentence(reason: str) -> str:
    """Return the sentence of ``describe_deviation`` in a finding's reason, or an empty string."""
    found = _SENTENCE.search(reason)
    return found.group() if found else ""


def find_declaration(sentence: str) -> dict[str, str]:
    """Return the policies that a sentence of ``describe_deviation`` says to declare or to remove, by name."""
    found = _SENTENCE.search(sentence)
    parts = found.group("declared").split(", ") if found else []
    return dict(part.split("=", 1) for part in parts)


def join_sentences(sentences: Sequence[str]) -> str:
    """Return one sentence with the facts and the policies of several sentences of ``describe_deviation``.

    Sentences with different remedies follow one another.
    """
    found = [match for match in map(_SENTENCE.search, sentences) if match]
    by_remedy: dict[str, list[re.Match[str]]] = {}
    for match in found:
        by_remedy.setdefault(match["remedy"], []).append(match)
    joined = []
    for remedy, matches in by_remedy.items():
        facts = dict.fromkeys(fact for match in matches for fact in match["facts"].split(" and "))
        policies = dict.fromkeys(part for match in matches for part in match["declared"].split(", "))
        joined.append(f"Deviation: {' and '.join(facts)}{remedy} Policies({', '.join(policies)}).")
    return " ".join(joined)


def _format(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
