"""The fields of jobs: what each needs, and how it is written on a command line and in a run file.

A field has one meaning in every kind of job. Its name is that of the argument in Python.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from attnbench.cases import DEVICES, DTYPES, LEVELS
from attnbench.jobs.axes import MODELS
from attnbench.jobs.values import (
    choose_from,
    choose_several,
    format_value,
    parse_bytes,
    parse_count,
    parse_counts,
    parse_flag,
    parse_lengths,
    parse_path,
    parse_paths,
    parse_positive,
    parse_seconds,
    parse_seed,
    parse_shard,
    parse_shares,
    parse_text,
    parse_texts,
    parse_words,
)
from attnbench.records.types import Pass

__all__ = ["FIELDS", "FUZZ", "Field", "name_option"]

# Name of the suite whose cases are generated.
FUZZ = "fuzz"
_SUITES, _PASSES, _MODELS = (*LEVELS, FUZZ), get_args(Pass), sorted(MODELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of jobs."""

    # The option of the command line; for an argument, its name in capital letters.
    option: str
    parse: Callable[[Any], Any]
    # What a value must be, and an example.
    need: str
    example: str = ""
    # Whether a list is written as one option for each value, instead of one value with commas.
    repeated: bool = False
    # Name in a run file; empty: that of the field.
    stored: str = ""
    format: Callable[[Any], str] = format_value

    def write_words(self, value: Any) -> list[str]:
        """Return the words of a command line that give this field a value."""
        if isinstance(value, bool):
            return [self.option] * value
        values = value if self.repeated else [value]
        option = [self.option] if self.option.startswith("-") else []
        return [word for one in values for word in (*option, self.format(one))]


def _one_of(words: Any) -> str:
    return f"one of {', '.join(words)}"


_COUNTS = "whole numbers of at least 1"
_COUNT = "a whole number of at least 1"
_SECONDS = "a number of seconds above 0"

# In the order in which a command line has them.
FIELDS: Mapping[str, Field] = {
    "implementations": Field(option="IMPLEMENTATION", parse=parse_texts, need="names", repeated=True),
    "base": Field(option="BASE", parse=parse_text, need="a name"),
    "new": Field(option="NEW", parse=parse_text, need="a name"),
    "tree": Field(option="--base", parse=parse_path, need="a folder"),
    "threshold": Field(option="--threshold", parse=parse_positive, need="a number above 0", example="0.05"),
    "suite": Field(option="--suite", parse=choose_from(_SUITES), need=_one_of(_SUITES)),
    "operators": Field(
        option="--operator", parse=parse_words, need="names of operators", example="multihead", repeated=True
    ),
    "cases": Field(
        option="--case", parse=parse_texts, need="patterns of case ids", example="'*bfloat16*'", repeated=True,
        stored="patterns",
    ),
    "checks": Field(
        option="--check", parse=parse_texts, need="names of checks", example="forward_parity", repeated=True
    ),
    "lengths": Field(
        option="--lengths", parse=parse_lengths, need=f"{_COUNTS}, or pairs of queries and keys",
        example="128,256, or 1:512 for one query and 512 keys",
    ),
    "batch": Field(option="--batch", parse=parse_counts, need=_COUNTS, example="1,8"),
    "heads": Field(option="--heads", parse=parse_counts, need=_COUNTS, example="12"),
    "head_dim": Field(option="--head-dim", parse=parse_counts, need=_COUNTS, example="64,128"),
    "width": Field(option="--width", parse=parse_counts, need=_COUNTS, example="768"),
    "kv_heads": Field(option="--kv-heads", parse=parse_counts, need=_COUNTS, example="2,4"),
    "mask": Field(option="--mask", parse=parse_words, need="words", example="none,causal", stored="masks"),
    "padding": Field(option="--padding", parse=parse_shares, need="numbers above 0 and below 1", example="0.3,0.5"),
    "like": Field(option="--like", parse=choose_from(_MODELS), need=_one_of(_MODELS)),
    "passes": Field(option="--passes", parse=choose_several(_PASSES), need=_one_of(_PASSES), repeated=True),
    "device": Field(option="--device", parse=choose_from(DEVICES), need=_one_of(DEVICES)),
    "dtype": Field(
        option="--dtype", parse=choose_several(DTYPES), need=_one_of(DTYPES), repeated=True, stored="dtypes"
    ),
    "shard": Field(
        option="--shard", parse=parse_shard, need="part I of N with 1 <= I <= N", example="1/4",
        format=lambda pair: "/".join(map(str, pair)),
    ),
    "expected_failures": Field(
        option="--expected-failures", parse=parse_paths, need="paths of TOML files", repeated=True, stored="expected"
    ),
    "budget_s": Field(option="--budget", parse=parse_seconds, need=_SECONDS, example="60s", stored="budget"),
    "examples": Field(option="--examples", parse=parse_count, need=_COUNT, example="200"),
    "seed": Field(option="--seed", parse=parse_seed, need="a whole number of at least 0", example="1"),
    "processes": Field(option="--processes", parse=parse_count, need=_COUNT, example="10"),
    "threads": Field(option="--threads", parse=parse_count, need=_COUNT, example="1"),
    "case_budget_s": Field(
        option="--case-budget", parse=parse_seconds, need=_SECONDS, example="15", stored="case_budget"
    ),
    "timeout_s": Field(option="--timeout", parse=parse_seconds, need=_SECONDS, example="2.5", stored="timeout"),
    "work_limit_s": Field(
        option="--work-limit", parse=parse_seconds, need=_SECONDS, example="2.5", stored="work_limit"
    ),
    "memory_bytes": Field(
        option="--memory-limit", parse=parse_bytes, need="a number of bytes", example="8GiB", stored="memory_limit"
    ),
    "frontier": Field(option="--frontier", parse=parse_flag, need="true or false"),
    "no_completion": Field(option="--no-completion", parse=parse_flag, need="true or false"),
    "no_cache": Field(option="--no-cache", parse=parse_flag, need="true or false"),
    "results": Field(option="--results", parse=parse_path, need="a folder", example="results"),
    "reports": Field(option="--reports", parse=parse_path, need="a folder", example="reports"),
}  # fmt: skip


def name_option(field: str) -> str:
    """Return the option or the argument of the command line that gives a field its value."""
    return FIELDS[field].option if field in FIELDS else f"--{field.replace('_', '-')}"
