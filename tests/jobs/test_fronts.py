"""Command line, Python and TOML refuse the same wrong value in the same sentence, with the name that its user wrote."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import attnbench
from attnbench.cli import attnbench as command
from attnbench.jobs.errors import JobError
from attnbench.jobs.fields import FIELDS
from attnbench.jobs.job import ConformJob, ProfileJob, build
from attnbench.jobs.values import format_value

# For each fault: the arguments in Python, and the sentence, in which a name in braces is that of a field.
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "length": ({"lengths": 0}, "{lengths}: needs whole numbers of at least 1, or pairs of queries and keys, got 0; "),
    "text": ({"lengths": [8, "abc"]}, "{lengths}: needs whole numbers of at least 1, or pairs of queries and keys, "),
    "triple": ({"lengths": ["1:2:3"]}, "{lengths}: needs whole numbers of at least 1, or pairs of queries and keys, "),
    "batch": ({"batch": [0]}, "{batch}: needs whole numbers of at least 1, got 0; for example 1,8"),
    "mask": ({"mask": "none,,causal"}, "{mask}: needs words, separated by commas, got none,,causal; for"),
    "padding": ({"padding": 1.5, "batch": 2}, "{padding}: needs numbers above 0 and below 1, got 1.5; for example 0.3"),
    "one sequence": ({"padding": 0.5}, "{padding}: a batch of one sequence has no padding; name {batch} of at least 2"),
    "width": ({"width": 64, "heads": 5}, "{width}: 64 cannot be divided among 5 heads; name another {heads}"),
    "both": ({"width": 64, "head_dim": 8}, "{width}: {width} and {head_dim} exclude one another: the width is heads "),
    "model": ({"like": "bert-base", "heads": 8}, "{heads}: bert-base has 12, got 8; leave out {heads}, or {like}"),
    "dtype": ({"dtype": "int8"}, "{dtype}: needs one of float32, float64, bfloat16, float16, got int8"),
    "passes": ({"passes": "back"}, "{passes}: needs one of forward, forward+backward, got back"),
    "suite": ({"suite": "fuzz"}, "{suite}: needs one of quick, core, full, slow, gpu, huge, got fuzz"),
    "seconds": ({"timeout_s": "nan"}, "{timeout_s}: needs a number of seconds above 0, got nan; for example 2.5"),
    "bytes": ({"memory_bytes": "much"}, "{memory_bytes}: needs a number of bytes, got much; for example 8GiB"),
    "complete id": ({"cases": "multihead/B2", "batch": 2}, "{cases}: a complete case id has its own sizes: leave out "),
}
# Keys of a file that are no names of fields, and tables.
KEYS = {"cases": "case", "timeout_s": "timeout", "memory_bytes": "memory_limit"}
LIMITS = ("timeout_s", "memory_bytes")


@pytest.mark.parametrize("fault", FAULTS)
def test_fronts_refuse_a_value_in_the_same_sentence(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the names differ: ``--lengths``, ``lengths``, and the key of the file."""
    monkeypatch.chdir(tmp_path)
    given, sentence = FAULTS[fault]
    by_option = {name: field.option for name, field in FIELDS.items()}
    words = [word for name, value in given.items() for word in (by_option[name], format_value(value))]
    lines: dict[str, list[str]] = {"": [], "axes": [], "limits": []}
    by_key = {}
    for name, value in given.items():
        table = "limits" if name in LIMITS else "" if name == "suite" else "axes"
        key = KEYS.get(name, name)
        lines[table].append(f"{key} = {value!r}")
        by_key[name] = ".".join(filter(None, (table, key)))
    tables = (f"[{table}]" * bool(table) + "\n" + "\n".join(own) for table, own in lines.items())
    Path("sweep.toml").write_text("\n".join(tables) + "\n")
    with pytest.raises(ValueError, match=r"^[^\n]+$") as python:
        attnbench.profile("sdpa", results=None, **given)
    assert str(python.value).startswith(sentence.format_map({name: name for name in FIELDS}))
    by_key = {name: f"axes.{name}" for name in by_option} | by_key
    fronts = (
        (["profile", "sdpa", *words], "", by_option),
        (["sweep", "sweep.toml", "--local"], "sweep.toml: ", by_key),
    )
    for arguments, place, names in fronts:
        with pytest.raises(click.UsageError) as raised:
            CliRunner().invoke(command, arguments, standalone_mode=False, catch_exceptions=False)
        expected = python.value.describe(lambda name, names=names: names.get(name, name))  # type: ignore[attr-defined]
        assert raised.value.message == place + expected


def test_a_wrong_key_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    """An unknown key of a file, and an unknown field, are refused with the nearest known name."""
    file = tmp_path / "sweep.toml"
    file.write_text("[axes]\nlenghts = 8\n")
    with pytest.raises(click.UsageError, match=r"unknown key 'axes\.lenghts', did you mean 'lengths'\?"):
        CliRunner().invoke(command, ["sweep", str(file)], standalone_mode=False, catch_exceptions=False)
    with pytest.raises(JobError, match=r"^lenghts: unknown, did you mean 'lengths'\?; available: "):
        build(ProfileJob, {"lenghts": 8})


def test_one_value_has_many_forms() -> None:
    """Words of a command line, and one or several values of Python, give the same job."""
    job = ProfileJob(lengths=(77, (1, 512)), dtype=("float64",), memory_bytes=2**30, shard=(1, 4), timeout_s=7.0)
    words = {"lengths": "1:512,77", "dtype": ["float64"], "memory_bytes": "1GiB", "shard": "1/4", "timeout_s": "7s"}
    values = {"lengths": [77, (1, 512)], "dtype": "float64", "memory_bytes": 2**30, "shard": (1, 4), "timeout_s": 7}
    assert build(ProfileJob, words) == build(ProfileJob, values) == job


def test_generated_cases_exclude_the_selection_of_listed_ones() -> None:
    """The suite fuzz has no list, and other suites have no budget."""
    with pytest.raises(JobError, match=r"^shard: selects listed cases, but suite fuzz generates cases: leave it out"):
        build(ConformJob, {"suite": "fuzz", "shard": "1/2"})
    with pytest.raises(JobError, match=r"^seed: needs generated cases: add suite fuzz"):
        build(ConformJob, {"seed": 0})


def test_names_in_values_stay_as_they_are() -> None:
    """Braces in what a user wrote are no names of fields."""
    with pytest.raises(JobError, match=r"^mask: needs words, separated by commas, got \{batch\},; for example"):
        build(ProfileJob, {"mask": "{batch},"})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lengths", ["1e3", ",", "8.5", "-1", "", 0, True, 2.5, [(1, 0)]]),
        ("batch", ["0", "1,,2", "x", [True], 1.0]),
        ("padding", ["0", "1", "0.3,1", "some", "nan", 0]),
        ("threads", ["0", "1000000", "1.5", -1]),
        ("processes", [0, "0", "two", True]),
        ("memory_bytes", ["99999999999GiB", "-1GiB", "0", "abc", 2**62]),
        ("timeout_s", ["-1", "0", "nan", "abc", 0, False]),
        ("work_limit_s", ["inf", 0.0]),
        ("shard", ["3/2", "0/2", "abc", "1/2/3", 4]),
        ("results", [""]),
        ("operators", ["flash"]),
        ("no_cache", ["yes", 1]),
    ],
)
def test_values_that_cannot_be_used_are_refused(name: str, values: list[Any]) -> None:
    """A value of a wrong type, or outside its range, is refused in one line that begins with its field."""
    for value in values:
        with pytest.raises(JobError, match=rf"^{name}: [^\n]+$"):
            build(ProfileJob, {name: value})
