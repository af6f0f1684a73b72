"""Reading facts that this version does not know: of a newer version, or of a run file that was changed."""

from typing import Any, TypeVar

import msgspec

from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import UnknownFact
from attnbench.refusals import OtherRefusal, TypedRefusal

__all__ = ["decode_tolerantly"]

Kind = TypeVar("Kind")
# Fields of records, and of their findings, that hold facts; and the fields that hold typed refusals.
_FACTS = frozenset({"facts", "warnings", "untimed", "first_raised", "no_answer"})
_REFUSALS = frozenset({"refusals"})
# Key of the tag in a stored fact.
_TAG = "type"


def decode_tolerantly(line: bytes, decoder: msgspec.json.Decoder[Kind]) -> Kind:
    """Decode a record; a fact that is not known becomes an ``UnknownFact`` with its tag.

    Raises: ValueError for a record that is wrong in another way.
    """
    try:
        return decoder.decode(line)
    except msgspec.ValidationError:
        plain = msgspec.json.decode(line)
        return decoder.decode(msgspec.json.encode(_replace_unknown(plain, "")))


def _replace_unknown(value: Any, field: str) -> Any:
    """Return a stored value in which every fact in a field of facts is known; ``field`` is the field of the value."""
    if isinstance(value, list):
        return [_replace_unknown(one, field) for one in value]
    if not isinstance(value, dict):
        return value
    if field in _FACTS and _TAG in value:
        return value if _is_known(value, Fact) else msgspec.to_builtins(UnknownFact(name=str(value[_TAG])[:100]))
    if field in _REFUSALS:
        return value if _is_known(value, TypedRefusal) else msgspec.to_builtins(OtherRefusal(text=""))
    return {name: _replace_unknown(one, name) for name, one in value.items()}


def _is_known(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True
