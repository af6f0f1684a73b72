"""What is wrong with a value of a configuration file, in plain words: what the key needs, and what came."""

import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

__all__ = ["describe_fault"]

# Words for the types that msgspec names.
WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def describe_fault(error: msgspec.ValidationError, tables: dict[str, Any], kind: type[msgspec.Struct]) -> str:
    """Return a fault of the tables of a file, whose type is ``kind``, with its place in front."""
    what, _, place = str(error).partition(" - at ")
    place = place.strip("`").removeprefix("$").removeprefix(".")
    steps = re.findall(r"[^.\[\]]+", place)
    if expected := re.match(r"Expected `(.*?)`", what):
        needed = " or ".join(WORDS.get(name, name) for name in expected[1].split(" | ") if name != "null")
    elif "enum" in what:
        needed = " or ".join(map(repr, _list_allowed(kind, steps)))
    elif missing := re.match(r"Object missing required field `(.*)`", what):
        return f"{place}: the key {missing[1]!r} is missing; add {missing[1]} = …"
    else:
        return f"{place or 'the file'}: {what}"
    return f"{place} needs {needed}, got {_find_value(tables, steps)!r}"


def _find_value(tables: Any, steps: list[str]) -> Any:
    found = tables
    for step in steps:
        found = found[int(step)] if isinstance(found, list) else found[step]
    return found


def _list_allowed(kind: Any, steps: list[str]) -> list[Any]:
    """Return the values of the Literal at a place."""
    for step in steps:
        kind = get_args(kind)[0] if get_origin(kind) is list else get_type_hints(kind)[step]
    return [value for choice in (kind, *get_args(kind)) if get_origin(choice) is Literal for value in get_args(choice)]
