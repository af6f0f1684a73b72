r"""Spells out the characters of stored text that no file of a report may hold, or that change the order of others.

A null byte makes an SVG file unreadable, a lone surrogate has no bytes in UTF-8, and a mark of writing direction may
show the words around it reversed. Each of them is shown as its escape in Python, such as ``\x00`` or ``\u202e``.
"""

import dataclasses
import operator
import re
import typing
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import PurePath
from typing import Any, TypeVar

from msgspec import Struct, structs

from attnbench.records.run_file import StoredRun
from attnbench.records.types import Finding

__all__ = ["spell_out", "spell_out_in", "spell_out_run"]

_Value = TypeVar("_Value")

# Control characters except the line feed, marks of writing direction (UAX #9), line and paragraph separators, the
# byte-order mark, lone surrogates, and the code points that Unicode defines as no characters (U+FFFE, U+FFFF).
_HIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)


def spell_out(text: str) -> str:
    """Return the text with an escape for each hidden character; line breaks become line feeds, and tabs spaces."""
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(_escape, text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", " "))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def spell_out_in(value: _Value) -> _Value:
    """Return a record, or a container of records, with ``spell_out`` applied to each text in it."""
    kind: type = type(value)
    spell = _find_speller(kind)
    return typing.cast("_Value", spell(value)) if spell else value


# A report spells out millions of values of a few types.
@cache
def _find_speller(kind: type) -> Callable[[Any], Any] | None:
    """Return the function that spells out a value of this type; None if such a value contains no text."""
    if issubclass(kind, str):
        return spell_out
    if issubclass(kind, PurePath):
        return lambda path: kind(spell_out(str(path)))
    if issubclass(kind, tuple | list):
        return lambda values: kind(map(spell_out_in, values))
    if issubclass(kind, dict):
        return lambda values: {spell_out_in(key): spell_out_in(one) for key, one in values.items()}
    if names := _list_text_fields(kind):
        return partial(_spell_out_fields, names)
    return None


def _spell_out_fields(names: Sequence[str], record: Any) -> Any:
    changed = {}
    for name in names:
        own = getattr(record, name)
        # Nearly all values are empty or plain texts, which stay as they are.
        if own and not (own.__class__ is str and own.isascii() and own.isprintable()):
            spelled = spell_out_in(own)
            if spelled != own:
                changed[name] = spelled
    if not changed:
        return record
    return structs.replace(record, **changed) if isinstance(record, Struct) else dataclasses.replace(record, **changed)


def spell_out_run(stored: StoredRun) -> StoredRun:
    """Return a run with ``spell_out`` applied to each text in it.

    The results of a compact run share findings, and each finding is spelled out once. The texts of its timings are
    spelled out when they are read.
    """
    if not stored.compact:
        return spell_out_in(stored)
    spelled: dict[int, Finding] = {}

    def spell(finding: Finding) -> Finding:
        key = id(finding)
        if key not in spelled:
            spelled[key] = spell_out_in(finding)
        return spelled[key]

    results = []
    for result in stored.results:
        own = dataclasses.replace(result, findings=(), timing=None, memory=None)
        made = spell_out_in(own)
        findings = tuple(map(spell, result.findings))
        same = made is own and all(map(operator.is_, findings, result.findings))
        kept = dataclasses.replace(made, findings=findings, timing=result.timing, memory=result.memory)
        results.append(result if same else kept)
    whole = spell_out_in(dataclasses.replace(stored, results=()))
    return dataclasses.replace(whole, results=tuple(results))


def _list_text_fields(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a record that may contain text; samples, which are many, contain none."""
    if issubclass(kind, Struct):
        names = kind.__struct_fields__
    elif dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
    else:
        return ()
    hints = typing.get_type_hints(kind)
    return tuple(name for name in names if _may_hold_text(hints[name]))


def _may_hold_text(hint: Any) -> bool:
    if isinstance(hint, type) and (issubclass(hint, str | PurePath | Struct) or dataclasses.is_dataclass(hint)):
        return True
    # The arguments of a Literal are values, not types.
    return typing.get_origin(hint) is not typing.Literal and any(map(_may_hold_text, typing.get_args(hint)))
