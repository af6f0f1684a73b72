"""Facts: what is known of a finding, a refusal, an untimed call or the end of a run, before it becomes text.

``words`` makes the text, at the very end. A field of a fact that is free text comes from an exception, from a plug-in,
or from a run of a schema before 8; no code looks for words in it.
"""

from typing import Any

import msgspec

from attnbench.records.outcome_facts import OutcomeFact
from attnbench.records.value_facts import ValueFact

__all__ = ["Fact", "UnknownFact", "replace_unknown_facts"]


class UnknownFact(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A fact of another version, which this version cannot read."""

    kind: str


Fact = ValueFact | OutcomeFact | UnknownFact


def replace_unknown_facts(stored: Any) -> Any:
    """Return a stored record with an ``UnknownFact`` in place of each fact that cannot be read."""
    if isinstance(stored, list):
        return [replace_unknown_facts(one) for one in stored]
    if not isinstance(stored, dict):
        return stored
    if not isinstance(stored.get("type"), str):
        return {name: replace_unknown_facts(one) for name, one in stored.items()}
    try:
        msgspec.convert(stored, Fact)
    except msgspec.ValidationError:
        return msgspec.to_builtins(UnknownFact(kind=stored["type"]))
    return stored
