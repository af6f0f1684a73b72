"""Tests of ``--resume``: a resumed run has the arguments of the stored run."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from attnbench.analysis.completeness import format_resuming
from attnbench.api.command_line import format_command
from attnbench.api.stored_job import make_job
from attnbench.cli import compare_command, conform_command, profile_command, run_command
from attnbench.records.environment import describe_machine
from attnbench.records.run_file import ResultsError, RunFile, read_run
from attnbench.records.types import Job, Run

COMMANDS: dict[str, click.Command] = {
    "compare": compare_command.command,
    "conform": conform_command.command,
    "profile": profile_command.command,
    "run": run_command.command,
}


@pytest.fixture(params=["job", "command"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Function that stores a run ``r`` of a command line in the folder ``results`` of the working directory.

    The run has a job, as runs of this version, or only the command line, as older runs.
    """
    monkeypatch.chdir(tmp_path)

    def write(command: str) -> None:
        name, *words = shlex.split(command)[1:]
        job = Job()
        if request.param == "job":
            try:
                job = make_job(name, COMMANDS[name].make_context(name, words).params)
            except click.UsageError:
                job = Job(command=name, options={"slowly": True})
        command = format_command([name, *words])
        run = Run(id="r", time="t", command=command, machine=describe_machine(), versions={}, threads=1, job=job)
        with RunFile.create(Path("results"), run):
            pass

    return write


def parse(name: str, *words: str) -> dict[str, Any]:
    """Return the parameters of a command."""
    parameters = COMMANDS[name].make_context(name, list(words)).params
    return {key: value for key, value in parameters.items() if key != "json_file"}


def refuse(name: str, *words: str) -> str:
    """Return the message with which a command refuses its arguments."""
    with pytest.raises(click.UsageError) as raised:
        parse(name, *words)
    return raised.value.format_message()


@pytest.mark.parametrize(
    "words",
    [
        "conform",
        "conform sdpa --suite=core --dtype float64 --dtype float32 --check 'for*' --shard 1/2 --memory-limit 1GiB",
        "conform --suite fuzz --examples 3 --seed 1 sdpa",
        "conform --mutants --mutants --matrix",
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
    expected = parse(name, *given) | {"resume": "r"}
    assert parse(name, "--resume", "r") == expected
    assert parse(name, "--resume", "r", *given) == expected
    assert parse(name, *given, "--resume", next(Path("results").glob("*/r.jsonl")).as_posix())["resume"].endswith(
        "r.jsonl"
    )


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
    assert message.startswith(("--resume: r was started with --suite quick, got", "--resume: r was started without"))


def test_names_contradict_a_run_of_all(store: Callable[[str], None]) -> None:
    """A run of all implementations is resumed without names."""
    store("attnbench conform")
    assert refuse("conform", "--resume", "r", "sdpa").startswith("--resume: r was started without names, got sdpa: ")


def test_what_means_the_same_is_accepted(store: Callable[[str], None]) -> None:
    """Options in another form or order, and options with the value of the default, agree with the stored run."""
    store("attnbench profile own.py:Own --lengths 16,32 --dtype float64 --dtype float32")
    Path("own.py").touch()
    words = ["--dtype", "float32", "--dtype", "float64", "--lengths=32,16", "--suite", "quick", "--device", "cpu"]
    found = parse("profile", "--resume", "r", *words, f"{Path.cwd()}/own.py:Own")
    assert found["lengths"] == (16, 32)
    assert found["implementations"] == (f"{Path.cwd()}/own.py:Own",)


def test_a_time_out_and_places_may_differ(store: Callable[[str], None], tmp_path: Path) -> None:
    """A time-out may differ; places of files are those of this command, because a stored command has no folders."""
    store("attnbench run --timeout 5 --reports pages --results results")
    found = parse("run", "--resume", "r", "--timeout", "9", "--results", f"{tmp_path}/results")
    assert (found["timeout"], found["reports"], found["results"]) == (9.0, Path("reports"), tmp_path / "results")
    assert parse("run", "--resume", "r")["timeout"] == 5.0


def test_a_path_without_its_folder_is_named_again(store: Callable[[str], None], tmp_path: Path) -> None:
    """A stored path that was outside the working directory is refused until it is named again."""
    file = tmp_path.parent / f"{tmp_path.name}-elsewhere" / "failures.toml"
    file.parent.mkdir()
    file.write_text("")
    store(f"attnbench conform sdpa --expected-failures {file}")
    assert "--expected-failures" in refuse("conform", "--resume", "r")
    assert parse("conform", "--resume", "r", "--expected-failures", f"{file}")["expected"] == (file,)


def test_a_run_of_another_command_is_refused(store: Callable[[str], None]) -> None:
    """A run is resumed by the command that started it; an option that no longer exists is named."""
    store("attnbench profile sdpa --slowly")
    assert refuse("conform", "--resume", "r") == (
        "--resume: r was started by 'attnbench profile sdpa --slowly', not by attnbench conform"
    )
    message = refuse("profile", "--resume", "r")
    assert message.startswith("--resume: 'attnbench profile sdpa --slowly' cannot be repeated: ")
    assert "--slowly" in message


def test_an_unknown_run_is_refused(store: Callable[[str], None]) -> None:
    """A run that is not stored is an error, as in every command that reads runs."""
    store("attnbench conform")
    with pytest.raises(ResultsError, match="no run 'other' in results"):
        parse("conform", "--resume", "other")


@pytest.mark.parametrize(
    ("words", "resuming"),
    [
        (["sdpa", "--threads", "1"], "attnbench profile --resume r"),
        (["own.py:Own", "--results", "results"], "attnbench profile --resume r --results results"),
        (["/a/own.py:Own", "--json", "my file"], "attnbench profile --resume r --json 'my file' /a/own.py:Own"),
        (["--resume", "r", "--timeout", "9"], "attnbench profile --resume r"),
    ],
)
def test_an_interrupt_names_the_complete_command(
    store: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, words: list[str], resuming: str
) -> None:
    """The Abort of an interrupted run has the commands that resume it and that report on it."""
    store("attnbench profile")
    command = COMMANDS["profile"]

    def interrupt(**given: Any) -> None:
        raise click.Abort("r")

    folder = ["--results", words[words.index("--results") + 1]] if "--results" in words else []
    monkeypatch.setattr(command, "callback", interrupt)
    with pytest.raises(click.Abort) as raised:
        command.invoke(command.make_context("profile", list(words)))
    assert raised.value.args == (resuming, shlex.join(["attnbench", "report", *folder, "r"]))


WORDS = {
    "profile": (
        "profile sdpa own.py:Own --suite core --operator multihead --lengths 64,128:256 --passes forward --device cpu "
        "--dtype float64 --processes 3 --threads 1 --shard 2/3 --timeout 2.5 --memory-limit 8GiB --batch 1,8 --heads 2 "
        "--head-dim 64 --width 768 --kv-heads 2 --mask none,causal --padding 0.3,0.5 --work-limit 3 --case-budget 7s "
        "--case '*bias*' --no-cache"
    ),
    "conform": (
        "conform --suite fuzz --budget 60s --examples 3 --seed 0 --check '*parity' --operator multihead --matrix"
    ),
    "compare": "compare sdpa --base . --threshold 0.1",
}


@pytest.mark.parametrize("name", sorted(WORDS))
def test_a_job_has_every_option(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As JSON, the values of options and arguments give the same values again."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").touch()
    given = shlex.split(WORDS[name])[1:]
    run = Run(
        id="r", time="t", command="attnbench", machine=describe_machine(), versions={}, threads=1,
        job=make_job(name, parse(name, *given)),
    )  # fmt: skip
    with RunFile.create(Path("results"), run) as file:
        assert read_run(file.path).run == run
    assert parse(name, "--resume", "r") == parse(name, *given) | {"resume": "r"}


def test_a_job_names_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a path outside the working directory, a job has the last part; output files are no part of it."""
    monkeypatch.chdir(tmp_path)
    words = ["/home/me/own.py:Own", "--results", "/home/me/runs", "--reports", "pages", "--json", "/tmp/me.json"]
    job = make_job("run", COMMANDS["run"].make_context("run", words).params)
    assert "/" not in str(job)
    assert {name: job.options.get(name) for name in ("implementations", "results", "reports", "json_file")} == {
        "implementations": ["own.py:Own"], "results": "runs", "reports": "pages", "json_file": None,
    }  # fmt: skip
    run = Run(id="r", time="t", command="?", machine=describe_machine(), versions={}, threads=1, job=job)
    assert format_resuming(run) == "attnbench run --resume r --results runs --reports pages"


def test_an_unknown_option_of_a_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of a newer version, or one that was edited, is refused like a command line that cannot be repeated."""
    monkeypatch.chdir(tmp_path)
    for options in ({"pace": 1}, {"processes": {"a": [1]}}, {"lengths": "x"}):
        run = Run(
            id="r", time="t", command="attnbench profile", machine=describe_machine(), versions={}, threads=1,
            job=Job(command="profile", options=options),
        )  # fmt: skip
        with RunFile.create(tmp_path, run, tmp_path / "results" / "m" / "r.jsonl"):
            pass
        with pytest.raises(click.UsageError):
            parse("profile", "--resume", "r")
        (tmp_path / "results" / "m" / "r.jsonl").unlink()
