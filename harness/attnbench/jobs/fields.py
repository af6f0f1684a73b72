"""The fields of jobs: what each needs, and how it is written on a command line and in a run file.

A field has one meaning in every kind of job. Its name is that of the argument in Python.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, get_args

from attnbench.cases import DTYPES, LEVELS
from attnbench.devices import list_device_names
from attnbench.jobs import values
from attnbench.jobs.axes import MODELS
from attnbench.jobs.errors import JobError
from attnbench.jobs.values import Kind, make_choice
from attnbench.records.types import Pass

__all__ = ["FIELDS", "FUZZ", "Field", "name_option", "parse_fields"]

# Name of the suite whose cases are generated.
FUZZ = "fuzz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of jobs."""

    # The option of the command line; for an argument, its name in capital letters.
    option: str
    kind: Kind
    # Whether a list is written as one option for each value, instead of one value with commas.
    repeated: bool = False
    # Name in a run file; empty: that of the field.
    stored: str = ""
    format: Callable[[Any], str] = values.format_value

    def write_words(self, value: Any) -> list[str]:
        """Return the words of a command line that give this field a value."""
        if isinstance(value, bool):
            return [self.option] * value
        option = [self.option] if self.option.startswith("-") else []
        return [word for one in (value if self.repeated else [value]) for word in (*option, self.format(one))]


def _format_shard(pair: tuple[int, int]) -> str:
    return "/".join(map(str, pair))


# In the order in which a command line has them.
FIELDS: Mapping[str, Field] = {
    "implementations": Field(option="IMPLEMENTATION", kind=values.TEXTS, repeated=True),
    "base": Field(option="BASE", kind=values.TEXT),
    "new": Field(option="NEW", kind=values.TEXT),
    "tree": Field(option="--base", kind=values.FOLDER),
    "threshold": Field(option="--threshold", kind=values.POSITIVE),
    "suite": Field(option="--suite", kind=make_choice((*LEVELS, FUZZ))),
    "operators": Field(option="--operator", kind=values.WORDS, repeated=True),
    "cases": Field(option="--case", kind=values.TEXTS, repeated=True, stored="patterns"),
    "checks": Field(option="--check", kind=values.TEXTS, repeated=True),
    "lengths": Field(option="--lengths", kind=values.LENGTHS),
    "batch": Field(option="--batch", kind=values.COUNTS),
    "heads": Field(option="--heads", kind=values.COUNTS),
    "head_dim": Field(option="--head-dim", kind=values.COUNTS),
    "width": Field(option="--width", kind=values.COUNTS),
    "kv_heads": Field(option="--kv-heads", kind=values.COUNTS),
    "mask": Field(option="--mask", kind=values.WORDS, stored="masks"),
    "padding": Field(option="--padding", kind=values.SHARES),
    "like": Field(option="--like", kind=make_choice(sorted(MODELS))),
    "passes": Field(option="--passes", kind=make_choice(get_args(Pass), several=True), repeated=True),
    "device": Field(option="--device", kind=make_choice(list_device_names())),
    "dtype": Field(option="--dtype", kind=make_choice(DTYPES, several=True), repeated=True, stored="dtypes"),
    "shard": Field(option="--shard", kind=values.SHARD, format=_format_shard),
    "expected_failures": Field(option="--expected-failures", kind=values.PATHS, repeated=True, stored="expected"),
    "budget_s": Field(option="--budget", kind=values.SECONDS, stored="budget"),
    "examples": Field(option="--examples", kind=values.COUNT),
    "seed": Field(option="--seed", kind=values.SEED),
    "processes": Field(option="--processes", kind=values.COUNT),
    "threads": Field(option="--threads", kind=values.COUNT),
    "case_budget_s": Field(option="--case-budget", kind=values.SECONDS, stored="case_budget"),
    "timeout_s": Field(option="--timeout", kind=values.SECONDS, stored="timeout"),
    "work_limit_s": Field(option="--work-limit", kind=values.SECONDS, stored="work_limit"),
    "memory_bytes": Field(option="--memory-limit", kind=values.BYTES, stored="memory_limit"),
    "frontier": Field(option="--frontier", kind=values.FLAG),
    "no_completion": Field(option="--no-completion", kind=values.FLAG),
    "no_cache": Field(option="--no-cache", kind=values.FLAG),
    "results": Field(option="--results", kind=values.FOLDER),
    "reports": Field(option="--reports", kind=values.FOLDER),
}


def name_option(field: str) -> str:
    """Return the option or the argument of the command line that gives a field its value."""
    return FIELDS[field].option if field in FIELDS else f"--{field.replace('_', '-')}"


def parse_fields(known: Mapping[str, Field], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of these fields.

    Raises: JobError for an unknown field, and for a value that its field cannot have.
    """
    found = {}
    for name, value in raw.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise JobError(
                name, "unknown{meant}; available: {available}", meant=f", did you mean {near[0]!r}?" if near else "",
                available=", ".join(known),
            )  # fmt: skip
        kind = known[name].kind
        if value is None or (isinstance(value, list | tuple) and not value):
            continue
        try:
            found[name] = kind.parse(value)
        except (ValueError, TypeError, AttributeError, OverflowError):
            raise JobError(
                name, "needs {need}, got {got}{example}", need=kind.need, got=_show(value),
                example=f"; for example {kind.example}" if kind.example else "",
            ) from None  # fmt: skip
    return found


def _show(value: Any) -> str:
    """Return a value in one line."""
    return " ".join(values.format_value(value).split()) or "an empty text"
