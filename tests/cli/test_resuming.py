"""Tests of ``--resume``: a resumed run has the arguments of the stored run."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from attnbench.analysis.completeness import format_resuming
from attnbench.cli import compare_command, conform_command, profile_command, recording, run_command
from attnbench.cli.job_options import build_job
from attnbench.jobs.command_lines import format_job
from attnbench.jobs.errors import JobError
from attnbench.jobs.fields import name_option
from attnbench.jobs.job import COMMANDS, ConformJob, ProfileJob, RecordedJob, RunJob
from attnbench.jobs.stored import read_job, store_job
from attnbench.records.environment import describe_machine
from attnbench.records.run_file import ResultsError, RunFile, read_run
from attnbench.records.types import Run, StoredJob

PARSERS: dict[str, click.Command] = {
    "compare": compare_command.command,
    "conform": conform_command.command,
    "profile": profile_command.command,
    "run": run_command.command,
}


@pytest.fixture(params=["job", "command"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Function that stores a run ``r`` of a command line in the folder ``results`` of the working directory.

    The run has a job, as runs of this version, or only the command line, as older runs.
    """
    monkeypatch.chdir(tmp_path)

    def write(command: str) -> None:
        job = parse(*shlex.split(command)[1:])
        write_run(format_job(job), store_job(job) if request.param == "job" else StoredJob())

    return write


def write_run(command: str, job: StoredJob) -> Run:
    """Store a run ``r``, and return it as it is read."""
    run = Run(id="r", time="t", command=command, machine=describe_machine(), versions={}, threads=1, job=job)
    with RunFile.create(Path("results"), run) as file:
        return read_run(file.path).run


def parse(name: str, *words: str) -> RecordedJob:
    """Return the job of the words of a command."""
    with PARSERS[name].make_context(name, list(words)) as context:
        return build_job(COMMANDS[name], list_given(context), context.params["resume"])[0]


def list_given(context: click.Context) -> dict[str, Any]:
    """Return the words of the fields of a job."""
    known = {one.name for one in fields(COMMANDS[context.info_name or ""])}
    return {name: value for name, value in context.params.items() if name in known}


def refuse(name: str, *words: str) -> str:
    """Return the message with which a command refuses its arguments."""
    with pytest.raises(JobError) as raised:
        parse(name, *words)
    return raised.value.describe(name_option)


@pytest.mark.parametrize(
    "words",
    [
        "conform",
        "conform sdpa --suite=core --dtype float64 --dtype float32 --check 'for*' --shard 1/2 --memory-limit 1GiB",
        "conform --suite fuzz --examples 3 --seed 1 sdpa",
        "profile sdpa per_head --lengths 256,128 --passes forward --processes 3 --threads 1 --timeout 7",
        "profile --frontier --operator attention_core",
        "run sdpa --case-budget 3 --work-limit 2",
        "compare sdpa per_head --lengths 16",
    ],
)
def test_a_run_is_resumed_with_its_arguments(store: Callable[[str], None], words: str) -> None:
    """With --resume alone, a command has the options and names of the stored run; repeating them changes nothing."""
    name, *given = shlex.split(words)
    store(f"attnbench {words}")
    expected = parse(name, *given)
    assert parse(name, "--resume", "r") == expected
    assert parse(name, "--resume", "r", *given) == expected
    assert parse(name, *given, "--resume", next(Path("results").glob("*/r.jsonl")).as_posix()) == expected


@pytest.mark.parametrize(
    ("words", "stored", "got"),
    [
        ("--lengths 8", "with --lengths 16,32", "--lengths 8"),
        ("--dtype float64 --dtype float32", "with --dtype float64", "--dtype float64 --dtype float32"),
        ("--threads 1", "without --threads", "--threads 1"),
        ("--frontier", "without --frontier", "--frontier"),
        ("per_head", "with sdpa", "per_head"),
        ("sdpa per_head", "with sdpa", "sdpa per_head"),
    ],
)
def test_what_contradicts_the_stored_run_is_refused(
    store: Callable[[str], None], words: str, stored: str, got: str
) -> None:
    """An option or a name that differs from that of the stored run is refused, with both and the remedy."""
    store("attnbench profile sdpa --lengths 16,32 --dtype float64")
    assert refuse("profile", "--resume", "r", *words.split()) == (
        f"--resume: r was started {stored}, got {got}: leave this argument out, or start a new run without --resume"
    )


def test_an_option_contradicts_the_default_of_the_stored_run(store: Callable[[str], None]) -> None:
    """A run has the values of defaults, too; an older run is compared with the present default."""
    store("attnbench profile sdpa")
    message = refuse("profile", "--resume", "r", "--suite", "core")
    assert message.startswith("--resume: r was started with --suite quick, got --suite core")


def test_names_contradict_a_run_of_all(store: Callable[[str], None]) -> None:
    """A run of all implementations is resumed without names."""
    store("attnbench conform")
    assert refuse("conform", "--resume", "r", "sdpa").startswith(
        "--resume: r was started without IMPLEMENTATION, got sdpa: "
    )


def test_what_means_the_same_is_accepted(store: Callable[[str], None]) -> None:
    """Options in another form or order, and options with the value of the default, agree with the stored run."""
    store("attnbench profile own.py:Own --lengths 16,32 --dtype float64 --dtype float32")
    Path("own.py").touch()
    words = ["--dtype", "float32", "--dtype", "float64", "--lengths=32,16", "--suite", "quick", "--device", "cpu"]
    found = parse("profile", "--resume", "r", *words, f"{Path.cwd()}/own.py:Own")
    assert isinstance(found, ProfileJob)
    assert found.lengths == (16, 32)
    assert found.implementations == (f"{Path.cwd()}/own.py:Own",)


def test_a_time_out_and_places_may_differ(store: Callable[[str], None], tmp_path: Path) -> None:
    """A time-out may differ; places of files are those of this command, because a stored command has no folders."""
    store("attnbench run --timeout 5 --reports pages --results results")
    found = parse("run", "--resume", "r", "--timeout", "9", "--results", f"{tmp_path}/results")
    assert isinstance(found, RunJob)
    assert (found.timeout_s, found.reports, found.results) == (9.0, Path("reports"), tmp_path / "results")
    assert parse("run", "--resume", "r").timeout_s == 5.0


def test_a_path_without_its_folder_is_named_again(store: Callable[[str], None], tmp_path: Path) -> None:
    """A stored path that was outside the working directory is refused until it is named again."""
    file = tmp_path.parent / f"{tmp_path.name}-elsewhere" / "failures.toml"
    file.parent.mkdir()
    file.write_text("")
    store(f"attnbench conform sdpa --expected-failures {file}")
    assert "--expected-failures" in refuse("conform", "--resume", "r")
    found = parse("conform", "--resume", "r", "--expected-failures", f"{file}")
    assert isinstance(found, ConformJob)
    assert found.expected_failures == (file,)


def test_a_run_of_another_command_is_refused(store: Callable[[str], None]) -> None:
    """A run is resumed by the command that started it."""
    store("attnbench profile sdpa")
    assert refuse("conform", "--resume", "r") == (
        "--resume: r was started by 'attnbench profile sdpa', not by attnbench conform"
    )


@pytest.mark.parametrize(
    ("command", "job", "unknown"),
    [
        ("attnbench profile sdpa --slowly", StoredJob(), "attnbench profile has no option '--slowly'"),
        ("attnbench", StoredJob(command="profile", options={"pace": 1}), "does not know 'pace': upgrade attnbench"),
        ("attnbench", StoredJob(command="profile", options={"processes": {"a": [1]}}), "processes: needs a whole"),
        ("attnbench", StoredJob(command="profile", options={"lengths": "x"}), "lengths: needs whole numbers"),
        ("attnbench", StoredJob(command="dream", options={}), "attnbench dream has no job that can be repeated"),
    ],
)
def test_a_job_of_another_version_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, job: StoredJob, unknown: str
) -> None:
    """A job of a newer version, or one that was edited, is refused in one line, and the report names no command."""
    monkeypatch.chdir(tmp_path)
    run = write_run(command, job)
    message = refuse("profile", "--resume", "r")
    assert message.startswith(f"--resume: {command!r} cannot be repeated: ")
    assert unknown in message
    assert "\n" not in message
    assert format_resuming(run) == ""


def test_an_unknown_run_is_refused(store: Callable[[str], None]) -> None:
    """A run that is not stored is an error, as in every command that reads runs."""
    store("attnbench conform")
    with pytest.raises(ResultsError, match="no run 'other' in results"):
        parse("conform", "--resume", "other")


@pytest.mark.parametrize(
    ("words", "resuming"),
    [
        (["sdpa", "--threads", "1"], "attnbench profile --resume r"),
        (["own.py:Own", "--results", "own"], "attnbench profile --resume r --results own"),
        (["/a/own.py:Own", "--json", "my file"], "attnbench profile --resume r /a/own.py:Own --json 'my file'"),
        (["--resume", "r", "--timeout", "9"], "attnbench profile --resume r"),
    ],
)
def test_an_interrupt_names_the_complete_command(
    store: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, words: list[str], resuming: str
) -> None:
    """The Abort of an interrupted run has the commands that resume it and that report on it."""
    store("attnbench profile")

    @contextmanager
    def record(*_: Any, **settings: Any) -> Iterator[Any]:
        yield SimpleNamespace(run=SimpleNamespace(id="r"))

    monkeypatch.setattr(recording, "record", record)
    folder = ["--results", words[words.index("--results") + 1]] if "--results" in words else []
    with PARSERS["profile"].make_context("profile", list(words)) as context:
        job, resumed = build_job(ProfileJob, list_given(context), context.params["resume"])
        with pytest.raises(click.Abort) as raised, recording.recording(None, job=job, resumed=resumed):
            raise KeyboardInterrupt
    assert raised.value.args == (resuming, shlex.join(["attnbench", "report", *folder, "r"]))


WORDS = {
    "profile": (
        "profile sdpa own.py:Own --suite core --operator multihead --lengths 64,128:256 --passes forward --device cpu "
        "--dtype float64 --processes 3 --threads 1 --shard 2/3 --timeout 2.5 --memory-limit 8GiB --batch 2,8 --heads 2 "
        "--head-dim 64 --kv-heads 2 --mask none,causal --padding 0.3,0.5 --work-limit 3 --case-budget 7s "
        "--case '*bias*' --no-cache"
    ),
    "conform": ("conform --suite fuzz --budget 60s --examples 3 --seed 0 --check '*parity'"),
    "compare": "compare sdpa --base . --processes 3",
}


@pytest.mark.parametrize("name", sorted(WORDS))
def test_a_job_has_every_option(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As JSON, and as a command line, the fields of a job give the same job again."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").touch()
    job = parse(name, *shlex.split(WORDS[name])[1:])
    run = write_run("attnbench", store_job(job))
    assert read_job(run) == read_job(replace(run, command=format_job(job), job=StoredJob())) == job


def test_a_job_names_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a path outside the working directory, a job has the last part; output files are no part of it."""
    monkeypatch.chdir(tmp_path)
    job = parse("run", "/home/me/own.py:Own", "--results", "/home/me/runs", "--reports", "pages")
    stored = store_job(job)
    assert "/" not in str(stored)
    assert "/" not in format_job(job)
    assert {name: stored.options.get(name) for name in ("implementations", "results", "reports")} == {
        "implementations": ["own.py:Own"], "results": "runs", "reports": "pages",
    }  # fmt: skip
    run = Run(id="r", time="t", command="?", machine=describe_machine(), versions={}, threads=1, job=stored)
    assert format_resuming(run) == "attnbench run --resume r --results runs --reports pages"
