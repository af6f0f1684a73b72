"""The command line: quick help, one line for every usage error, exit codes, and runs that can be resumed."""

import io
import itertools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnbench.analysis.completeness import judge_completeness
from attnbench.api.selection import choose_timed_implementations, plan_cases
from attnbench.cli.matrix import print_chapters
from attnbench.cli.recording import Recording, recording, write_json
from attnbench.jobs.errors import JobError
from attnbench.jobs.fields import name_option
from attnbench.jobs.job import ConformJob
from attnbench.oracle.disk_cache import DiskCache
from attnbench.plugins.registry import PluginError, load
from attnbench.processes.oracle_requests import ListSuite
from attnbench.records.environment import describe_machine
from attnbench.records.run_file import ResultsError, RunFile, find_runs, merge_runs, read_run
from attnbench.records.types import SCHEMA, Finding, Result, Run
from attnbench.refusals import write_install_line
from attnbench.runner import Session
from attnbench.words.completeness import describe_gaps
from commands import PROGRAM, START, run_command, run_new_process
from timed_runs import REFERENCE, time_calls

pytestmark = pytest.mark.long

MY_ATTENTION = Path(__file__).parents[1] / "plugin_example" / "my_attention.py"
TINY = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed={}/float32/cpu/inference"

SOURCE = """
import os
import time
from pathlib import Path

import torch


class Base(torch.nn.MultiheadAttention):
    pass


class Right(Base):
    def forward(self, *arguments, **keywords):
        with open("calls", "a") as calls:
            calls.write(".")
        return super().forward(*arguments, **keywords)


class Wrong(Base):
    def forward(self, *arguments, **keywords):
        output, weights = super().forward(*arguments, **keywords)
        return output * float("nan"), weights


class Raises(Base):
    def forward(self, *arguments, **keywords):
        print('{"findings": []}', flush=True)
        raise OSError(f"cannot open {Path.home()}/weights.bin")


class Hangs(Base):
    def forward(self, *arguments, **keywords):
        Path("pid").write_text(f"{os.getpid()}.")
        time.sleep(3600)


def refuses(q, k, v, *, need_weights):
    from attnbench.interface import Refusal

    raise Refusal("never")
"""


class Output:
    """Exit code, standard output and standard error of a command."""

    def __init__(self, process: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = process.returncode, process.stdout, process.stderr

    @property
    def json(self) -> Any:
        """Standard output parsed as strict JSON, in which NaN is an error."""

        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


def attnbench(*arguments: str | Path, cwd: Path, **environment: str) -> Output:
    """Run attnbench in a folder, and capture standard output and standard error separately."""
    return Output(run_command(*arguments, cwd=cwd, **environment))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Working folder that holds a user's own file of implementations, own.py."""
    (tmp_path / "own.py").write_text(SOURCE)
    return tmp_path


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Session with an oracle worker, for tests that call functions and run no command."""
    with Session() as opened:
        yield opened


# Help


def modules_after(program: str) -> set[str]:
    """Top-level modules that are imported when a program ends."""
    prologue = "import atexit, sys; atexit.register(lambda: print(*{m.partition('.')[0] for m in sys.modules}))\n"
    done = subprocess.run([sys.executable, "-c", prologue + program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "command",
    [
        "",
        "list",
        "conform",
        "profile",
        "report",
        "compare",
        "reproduce",
        "verify",
        "run",
        "cache",
        "sweep",
        "cheats",
        "study",
    ],
)
def test_help_imports_no_torch(command: str) -> None:
    """The help of a command does not import torch, and the list of commands imports no large package at all."""
    words = ["attnbench", *command.split(), "--help"]
    imported = modules_after(f"sys.argv = {words!r}\n{PROGRAM}")
    assert "click" in imported
    assert not imported & ({"torch"} if command else {"torch", "numpy", "pandas", "matplotlib", "msgspec"})


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("attnbench con", {"conform"}),
        ("attnbench conform --sui", {"--suite"}),
        ("attnbench profile core_sdpa_m", {"core_sdpa_math"}),
        ("attnbench unknown sd", set()),
    ],
)
def test_a_shell_completes_without_torch(words: str, offered: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Completion offers commands, options and names of implementations, and imports no torch."""
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_ATTNBENCH_COMPLETE": "bash_complete"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import sys; sys.argv = ['attnbench']; {PROGRAM}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = {line.partition(",")[2] for line in done.stdout.splitlines() if line.startswith("plain,")}
    assert found == offered
    assert "unknown command" not in done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "click" in imported
    assert "torch" not in imported


def test_modules_after_sees_an_indirect_import_of_torch() -> None:
    """``modules_after`` reports torch also where another imported module imports it."""
    assert "torch" in modules_after("import attnbench.kernel")


# Missing packages

WITHOUT = """
import sys

class MissingPackage:
    def find_spec(self, name, path=None, target=None):
        if name == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, MissingPackage())
sys.argv = {words!r}
"""


def run_without(missing: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that cannot import the package ``missing``."""
    program = WITHOUT.format(missing=missing, words=["attnbench", *words])
    command = [sys.executable, "-c", program + PROGRAM]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("matplotlib", "study saturation --head-dims 4 --keys 4"),
        ("hypothesis", "conform torch_mha --suite fuzz --examples 1"),
        ("jinja2", "run torch_mha --suite quick"),
    ],
)
def test_a_missing_dependency_is_one_line(here: Path, missing: str, words: str) -> None:
    """A missing dependency ends the command with code 2, and the message gives the command that installs it."""
    done = run_without(missing, *words.split(), cwd=here)
    install = write_install_line("fuzz" if missing == "hypothesis" else "report")
    assert done.stderr == f"attnbench: {missing} is not installed, and this needs it: {install}\n"
    assert done.returncode == 2


def test_a_missing_module_of_attnbench_is_no_usage_error(here: Path) -> None:
    """Where a module of attnbench itself cannot be imported, a traceback names the module."""
    done = run_without("attnbench.cli.list_command", "list", cwd=here)
    assert "Traceback" in done.stderr
    assert "attnbench.cli.list_command" in done.stderr


# Usage errors

# For each fault: the arguments, and the parts that the message must contain in this order.
USAGE_ERRORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "command": ("confrom", ("unknown command 'confrom'", "available: list, conform,")),
    "option": ("conform --lenghts 8", ("--lenghts",)),
    "implementation": ("conform spda", ("unknown implementation 'spda'", "did you mean 'sdpa'", "available: ")),
    "profile": ("profile xformer", ("unknown implementation 'xformer'", "did you mean 'xformers'")),
    "list": ("list spda", ("unknown implementation 'spda'", "did you mean 'sdpa'")),
    "list device": ("list sdpa --device cuda", ("--device", "add --support")),
    "suite": ("conform sdpa --suite qick", ("--suite", "one of quick, ", "got qick")),
    "no file": ("conform nowhere.py:X", ("no such file: nowhere.py",)),
    "no name": ("conform own.py:", ("'own.py:'", "package.module:attribute or path/to/file.py:attribute")),
    "no attribute": ("conform own.py:Rihgt", ("own.py has no attribute 'Rihgt'", "did you mean 'Right'")),
    "import": ("conform raises.py:X", ("cannot import 'raises.py:X'", "RuntimeError: two lines")),
    "operator": ("profile --operator flash", ("--operator", "unknown operator 'flash'", "multihead")),
    "results": ("conform sdpa --results own.py", ("--results", "needs a folder", "own.py", "name another")),
    "json": (
        "conform sdpa --json none/f.json",
        ("--json", "an existing folder", "'none/f.json'", "- is standard output"),
    ),
    "reports": ("report other.jsonl --reports own.py/new", ("own.py/new", "Not a directory", "--reports DIR")),
    "link": ("report --link page", ("--link", "'page' is not TEXT=ADDRESS")),
    "script": ("report --link a=javascript:b", ("--link", "'a=javascript:b' is not TEXT=ADDRESS", "https")),
    "compare": ("compare 2099 2098 --results stored", ("no run '2099' in stored",)),
    "shard 3/2": ("conform sdpa --shard 3/2", ("--shard", "1 <= I <= N", "got 3/2", "for example 1/4")),
    "shard abc": ("conform sdpa --shard abc", ("--shard", "1 <= I <= N", "got abc", "for example 1/4")),
    "case": ("conform sdpa --case *nothing*", ("--case", "'*nothing*' matches none of", "--suite")),
    "case to time": ("profile sdpa --case multihead/B2", ("--case", "9 parts", "write '*multihead/B2*'")),
    "reproduce": ("reproduce multihead/B2 sdpa --check forward_parity", ("CASE", "9 parts", "'multihead/B2'")),
    "reproduce of another operator": (
        f"reproduce {TINY.format(0)} core_sdpa --check forward_parity",
        ("IMPLEMENTATION must compute multihead, the operator of CASE", "got attention_core"),
    ),
    "compare of two operators": (
        "compare sdpa core_sdpa",
        (
            "BASE and NEW must compute the same operator, got two: ",
            "sdpa computes multihead and core_sdpa computes attention_core",
        ),
    ),
    "expected": ("conform sdpa --expected-failures no.toml", ("--expected-failures", "no.toml", "No such file")),
    "malformed": ("conform sdpa --expected-failures own.py", ("expected failures from own.py", "line 2")),
    "idle": ("conform sdpa --case *float16* --expected-failures idle.toml", ("idle.toml entry 1: no check 'parity'",)),
    "certificate": (
        "conform sdpa --certificate c.json --case *pad* --shard 1/2",
        ("--certificate needs a whole suite: leave out --case, --shard",),
    ),
    "certificate of fuzz": (
        "conform sdpa --suite fuzz --certificate c.json",
        (
            "--certificate",
            "needs a fixed suite, got fuzz",
        ),
    ),
    "mutants of one": ("conform sdpa --mutants", ("--mutants", "leave out sdpa")),
    "mutants in words": ("conform --mutants --markdown m.md", ("--mutants: leave out --markdown", "--json")),
    "no runs": ("report --results empty", ("no run in empty", "attnbench run", "--results DIR")),
    "run": ("report 20990101 --results stored", ("no run '20990101' in stored", "did you mean 20990101-000000-abcd")),
    "garbage": ("report garbage.jsonl", ("garbage.jsonl contains no run",)),
    "folder": ("report stored", ("no run 'stored' in results",)),
    "headless": ("report headless.jsonl", ("headless.jsonl contains no run", "first line is lost")),
    "newer": ("report newer.jsonl", ("newer.jsonl", f"newer attnbench (schema {SCHEMA + 1})", "upgrade attnbench")),
    "odd schema": ("report odd.jsonl", ("odd.jsonl contains no run",)),
}


@pytest.mark.parametrize("fault", USAGE_ERRORS)
def test_usage_errors_are_one_line(here: Path, fault: str) -> None:
    """A usage error ends with code 2 and one line that names the argument, the value given, and the remedy."""
    (here / "raises.py").write_text("raise RuntimeError('two\\nlines')\n")
    (here / "idle.toml").write_text(
        '[[expected]]\nimplementation = "sdpa"\ncheck = "parity"\ncase = "*"\nreason = "old"\nlink = "x"\n'
    )
    (here / "garbage.jsonl").write_bytes(bytes(range(256)))
    for name, line in run_files().items():
        (here / name).write_text(json.dumps(line) + "\n")
    (here / "stored" / "m").mkdir(parents=True)
    (here / "stored" / "m" / "20990101-000000-abcd.jsonl").write_text(json.dumps(run_files()["other.jsonl"]) + "\n")
    arguments, parts = USAGE_ERRORS[fault]
    done = attnbench(*arguments.split(), cwd=here)
    assert done.code == 2, done.err
    assert done.out == ""
    assert_one_line(done.err, *parts)


def run_files() -> dict[str, dict[str, Any]]:
    """The first line of each run file, by file name."""
    where = {"name": "m", "cpu": "c", "cores": 1, "memory_bytes": 1}
    run: dict[str, Any] = {"id": "20990101-000000-abcd", "time": "t", "command": "c", "machine": where, "threads": 1}
    run |= {"record": "run", "versions": {}, "suite": "quick", "schema": SCHEMA}
    return {
        "other.jsonl": run,
        "newer.jsonl": run | {"schema": SCHEMA + 1},
        "odd.jsonl": run | {"schema": "one"},
        "headless.jsonl": {"record": "result", "run": "r", "implementation": "i", "case": "c", "findings": []},
    }


def assert_one_line(text: str, *parts: str) -> None:
    """Assert that a text is one line that begins with "attnbench: ", has these parts in order, and has no traceback."""
    assert text.startswith("attnbench: ")
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert "Traceback" not in text
    places = [text.find(part) for part in parts]
    assert -1 not in places, (text, parts)
    assert places == sorted(places), (text, parts)


# Usage errors that only an oracle worker finds. For each: arguments of ``plan_cases``, and parts of the message.
PLAN_ERRORS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "check": ({"checks": ["forward_party"]}, ("--check", "'forward_party'", "did you mean 'forward_parity'")),
    "case id": ({"cases": ["multihead/B2"]}, ("--case", "9 parts", "'multihead/B2'")),
    "case size": ({"cases": [TINY.format(0).replace("B2", "Q2")]}, ("--case", "unknown size 'Q2'")),
    "case seed": ({"cases": [TINY.format("x")]}, ("--case", "whole number in 'seed=x'")),
    "case dtype": ({"cases": [TINY.format(0).replace("float32", "int8")]}, ("--case", "unknown dtype 'int8'")),
    "no check": ({"cases": [TINY.format(0)], "checks": ["input_gradients"]}, ("nothing to run", "--case, --check")),
}


@pytest.mark.parametrize("fault", PLAN_ERRORS)
def test_unknown_cases_checks_and_devices_name_their_option(session: Session, fault: str) -> None:
    """For a case, check or device that does not exist, the message names the option that asked for it."""
    if fault == "device" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    given, parts = PLAN_ERRORS[fault]
    keywords = dict(given)
    cases = session.ask_oracle(ListSuite(operator="multihead", level="quick"))
    checks = keywords.pop("checks", ())
    with pytest.raises(JobError) as raised:
        plan_cases(session, cases, ConformJob(**keywords), checks=checks)
    assert_one_line(f"attnbench: {raised.value.describe(name_option)}\n", *parts)


@pytest.mark.parametrize(
    ("resumed", "parts"),
    [
        ("2099", ("no run '2099' in stored",)),
        ("newer.jsonl", ("newer.jsonl", "newer attnbench", "upgrade attnbench")),
        ("other.jsonl", ("--resume", "20990101-000000-abcd", "suite quick on m;", "same machine")),
        ("cut.jsonl", ("cut.jsonl contains no run",)),
    ],
)
def test_only_a_matching_run_is_resumed(
    session: Session, here: Path, monkeypatch: pytest.MonkeyPatch, resumed: str, parts: tuple[str, ...]
) -> None:
    """A run that is unknown, unreadable or from another machine or suite is refused before any case is run."""
    for name, line in run_files().items():
        (here / name).write_text(json.dumps(line) + "\n")
    (here / "cut.jsonl").write_text(json.dumps(run_files()["other.jsonl"])[:40])
    monkeypatch.chdir(here)
    keywords = {"suite": "quick", "cases": [], "implementations": ["sdpa"]}

    def resume() -> None:
        stored = read_run(*find_runs(Path("stored"), [resumed]))
        with recording(session, job=ConformJob(), resumed=stored, **keywords):
            pass

    with pytest.raises((ResultsError, JobError)) as raised:
        resume()
    message = raised.value.describe(name_option) if isinstance(raised.value, JobError) else str(raised.value)
    assert_one_line(f"attnbench: {message}\n", *parts)


def test_syntax_error_is_one_line(here: Path) -> None:
    """For a file with a syntax error the message gives the number of the line with the error."""
    (here / "syntax.py").write_text("x = 1\nx = = 2\n")
    with pytest.raises(PluginError) as raised:
        load(f"{here}/syntax.py:X")
    assert_one_line(f"attnbench: {raised.value}\n", "cannot import", "syntax.py:X'", "SyntaxError", "line 2")


def test_unwritable_results_are_reported_before_any_check(here: Path) -> None:
    """A results folder that cannot be created is one line, and no check runs."""
    done = attnbench("conform", "own.py:Right", "--results", "own.py/results", cwd=here)
    assert done.code == 2
    assert_one_line(done.err, "own.py/results", "Not a directory", "--results DIR")
    assert not (here / "calls").exists()


def test_a_closed_pipe_gives_no_traceback(here: Path) -> None:
    """Where the reader of standard output has closed the pipe (attnbench --help | head), there is no traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*START, "--help"], cwd=here, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 1


BROKEN = "cannot import 'broken': ModuleNotFoundError: No module named 'a_library_that_is_missing'"


@pytest.fixture
def broken(here: Path) -> list[Path]:
    """Folders with which two implementations are registered: ``broken``, which cannot be imported, and ``right``."""
    # This distribution shadows the installed one of the same name, whose implementations are then not registered.
    info = here / "path" / "attnbench-9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: attnbench\nVersion: 9\n")
    (info / "entry_points.txt").write_text(
        "[attnbench.operators]\nmultihead = attnbench.operators.multihead:OPERATOR\n"
        "[attnbench.implementations]\nbroken = broken_plugin:X\nright = own:Right\n"
    )
    (here / "path" / "broken_plugin.py").write_text("import a_library_that_is_missing\n")
    return [info.parent, here]


def test_broken_plugin_is_left_out_of_a_run_of_all(here: Path, broken: list[Path]) -> None:
    """A registered plug-in that cannot be imported is reported and left out; the other plug-ins are run."""
    done = Output(
        run_new_process("conform", "--case", TINY.format(0), "--check", "forward_parity", cwd=here, search=broken)
    )
    assert done.code == 0, done.err
    assert f"left out: {BROKEN}" in done.err.splitlines()
    assert re.search(r"^right +only 1$", done.out, re.MULTILINE)


def test_broken_plugin_is_listed_with_its_fault(here: Path, broken: list[Path]) -> None:
    """The list has the names and origins, and the fault of a broken plug-in; the hint is a command."""
    done = Output(run_new_process("list", cwd=here, search=broken))
    assert done.code == 0, done.err
    expected = f"implementation from broken broken_plugin:X (attnbench 9) {BROKEN} right own:Right (attnbench 9)"
    assert done.out.split() == expected.split()
    hint = (
        "attnbench list --support lists what each implementation supports on this machine, "
        "and why it refuses the rest\n"
    )
    assert done.err == hint


def test_support_counts_cases_and_tells_faults(here: Path, broken: list[Path]) -> None:
    """With --support the list has the number of supported cases, and a broken plug-in is still one row."""
    done = Output(run_new_process("list", "--support", "--json", "-", cwd=here, search=broken))
    assert done.code == 0, done.err
    first, second = done.json["implementations"]
    assert (first["name"], first["fault"], first["cases"]) == ("broken", BROKEN, 0)
    assert (second["name"], second["operator"], second["fault"]) == ("right", "multihead", "")
    assert second["supported"] == second["cases"] > 0
    assert "attnbench list --support" not in done.err


@pytest.mark.parametrize("name", ["sdpa", "own.py:Right", "own:Right"])
def test_one_implementation_is_listed(here: Path, name: str) -> None:
    """A registered name, a file and a module are listed, and the keys that need no import are in the JSON object."""
    done = attnbench("list", name, "--json", "-", cwd=here)
    (row,) = done.json["implementations"]
    assert (done.json["schema"], sorted(row)) == (SCHEMA, ["fault", "name", "origin"])
    assert (row["name"], row["fault"]) == (name, "")
    assert row["origin"].startswith(name if ":" in name else "attnzoo.sdpa:SDPA (attnbench ")
    assert done.err.startswith(f"attnbench list --support {name} lists what each")


def test_the_list_imports_no_torch() -> None:
    """All registered implementations are listed by a process that imports neither torch nor a plug-in."""
    imported = modules_after(f"sys.argv = ['attnbench', 'list']\n{PROGRAM}")
    assert "attnbench" in imported
    assert not imported & {"torch", "numpy", "attnzoo"}


def test_a_terminated_run_ends_its_workers(here: Path) -> None:
    """A run that gets SIGTERM (as CI sends) or Ctrl-C ends its workers, and prints how to resume it."""
    words = ["conform", "own.py:Hangs", "--case", TINY.format(0)]
    started = subprocess.Popen([*START, *words], cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    pid = ""
    deadline = time.monotonic() + 600
    while not pid.endswith(".") and time.monotonic() < deadline:
        pid = (here / "pid").read_text() if (here / "pid").exists() else ""
    started.send_signal(signal.SIGTERM)
    _, errors = started.communicate(timeout=600)
    assert started.returncode == 130
    (stored,) = here.glob("results/*/*.jsonl")
    kept = "attnbench: interrupted: stored results are kept, what was under way is repeated; continue with: "
    kept += f"attnbench conform --resume {stored.stem}"
    kept += f"; report the stored results with: attnbench report {stored.stem}"
    assert errors.splitlines()[-1] == kept
    assert "Traceback" not in errors
    assert not Path(f"/proc/{int(float(pid))}").exists()
    after = read_run(stored)
    assert (after.results, after.end and (after.end.outcome, after.end.exit_code)) == ((), ("interrupted", 130))


# Exit codes


def make_recording(tmp_path: Path, statuses: dict[str, list[str]]) -> Recording:
    """Recording of a run in which each implementation has findings of these statuses."""
    run = Run(id="r", time="t", command="c", machine=describe_machine(), versions={}, threads=1)
    results = {
        (name, TINY): Result(
            run="r",
            implementation=name,
            case=TINY,
            findings=tuple(Finding(check="x", status=s, reason="y") for s in found),  # type: ignore[arg-type]
        )
        for name, found in statuses.items()
    }
    return Recording(run=run, file=RunFile.create(tmp_path, run), results=results)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ({"a": ["passed"]}, 0),
        ({"a": ["passed", "unsupported", "not_run", "expected_failure"]}, 0),
        ({"a": ["expected_failure"]}, 0),
        *(({"a": ["passed"], "b": ["passed", s]}, 1) for s in ("failed", "error", "timeout", "crashed")),
        *(({"a": ["passed"], "b": ["passed", s]}, 1) for s in ("out_of_memory", "unexpected_pass")),
        ({"a": ["passed"], "b": ["unsupported"]}, 3),
        ({"a": ["passed"], "b": ["not_run"]}, 3),
        ({"a": ["passed"]}, 3),
        ({}, 3),
    ],
)
def test_exit_code_follows_from_the_statuses(tmp_path: Path, statuses: dict[str, list[str]], code: int) -> None:
    """Code 1: a check failed. Code 3: none failed, but a named implementation passed none. Code 0: otherwise."""
    named = ["a", "b"] if "b" in statuses or code == 3 else ["a"]
    made = make_recording(tmp_path, statuses)
    with made.file:
        assert made.choose_exit_code(named) == code


def test_unexpected_pass_is_a_failure(here: Path) -> None:
    """A finding that was expected to fail and passed is reported, with code 1."""
    entry = '[[expected]]\nimplementation = "own.py:Right"\ncheck = "*"\ncase = "*"\nreason = "old"\nlink = "x"\n'
    (here / "known.toml").write_text(entry)
    words = ["--case", TINY.format(0), "--check", "forward_parity", "--expected-failures", "known.toml", "--json", "-"]
    done = attnbench("conform", "own.py:Right", *words, cwd=here)
    assert done.code == 1
    (finding,) = done.json["findings"]
    assert (finding["status"], finding["reason"]) == (
        "unexpected_pass", "expected to fail (old, x), but passed: "
        "remove entry 1 of known.toml, or exclude this case from the entry's patterns"
    )  # fmt: skip


# Printed output


def make_result(name: str, *findings: Finding) -> Result:
    """Result of an implementation on a case."""
    return Result(run="r", implementation=name, case=TINY.format(0), findings=findings)


def test_the_matrix_has_a_row_for_each_chapter(capsys: pytest.CaptureFixture[str]) -> None:
    """Each implementation has a column; a cell has counts by status, and the largest ratio of error to allowance."""
    passed = Finding(check="forward_parity", status="passed", measured=0.5, allowed=2.0)
    print_chapters(
        [
            make_result(
                "one", passed, passed, Finding(check="repeats_itself", status="passed", measured=0.0, allowed=0.0)
            ),
            make_result(
                "another",
                Finding(check="forward_parity", status="failed", reason="off", measured=1e9, allowed=1.0),
                Finding(
                    check="inputs_untouched",
                    status="unsupported",
                    reason="no",
                    warnings=("computes this case correctly; let unsupported(case) return None for it",),
                ),
                Finding(check="repeats_itself", status="expected_failure", reason="known", measured=9.0, allowed=1.0),
                Finding(check="weights_parity", status="not_run", reason="long"),
            ),
        ]
    )
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [*lines[:6], " ".join(lines[6:8])] == [
        "chapter      one         another",
        "forward      ✓ 2 (0.25)  ✗ 1 (>100)",
        "weights                  · 1",
        "hygiene                  – 1",
        "determinism  ✓ 1         ~ 1",
        "",
        "✗ failed   ✓ passed   ~ expected to fail   – refused, with a reason   · not run   (largest error / allowed)",
    ]


def test_a_wide_matrix_is_split_into_several(capsys: pytest.CaptureFixture[str]) -> None:
    """A matrix of many implementations is split into several that are at most 100 characters wide."""
    passed = Finding(check="forward_parity", status="passed", measured=0.5, allowed=2.0)
    print_chapters([make_result(f"implementation_{number}", passed) for number in range(12)])
    lines = capsys.readouterr().out.splitlines()
    heads = [line.split()[1:] for line in lines if line.startswith("chapter")]
    assert [name for head in heads for name in head] == [f"implementation_{number}" for number in range(12)]
    assert len(heads) > 1
    assert max(map(len, lines[:-2])) <= 100


def test_the_json_file_names_implementations_with_equal_input_values() -> None:
    """``--json`` lists the implementations whose timed calls all had the same input values."""
    quick = time_calls("quick", 0.5)
    assert quick.timing
    results = [time_calls(REFERENCE), replace(quick, timing=replace(quick.timing, values="fixed"))]
    recorded: Any = SimpleNamespace(list_results=lambda: results, run=None)
    file = io.StringIO()
    write_json(recorded, file)
    assert json.loads(file.getvalue())["fixed_values"] == ["quick"]


# Runs


def test_failing_run_is_one_object_that_can_be_reproduced(here: Path) -> None:
    """--json - prints one valid JSON object and nothing else; the command in a failed finding reproduces the failure.

    Neither the object nor the stored run contains a host name, a user name, a home folder or an absolute path.
    """
    home = here / "home" / "somebody-k7"
    home.mkdir(parents=True)
    words = ["conform", f"{here}/own.py:Raises", "own.py:Wrong", "--case", TINY.format(0)]
    words += ["--check", "forward_parity", f"--results={here}/stored", "--json", "-"]
    done = attnbench(*words, cwd=here, HOME=str(home), USER="somebody-k7", LOGNAME="somebody-k7")
    assert done.code == 1
    printed = done.json
    assert set(printed) == {"schema", "run", "fixed_values", "findings"}
    assert printed["schema"] == SCHEMA
    by_check = {(f["implementation"], f["check"]): f for f in printed["findings"]}
    assert len(printed["findings"]) == len(by_check) == 2
    raised, wrong = by_check["own.py:Raises", "forward_parity"], by_check["own.py:Wrong", "forward_parity"]
    assert raised["status"] == "error"
    assert raised["reason"].startswith("OSError: cannot open ~/weights.bin (at own.py:")
    assert wrong["status"] == "failed"
    (file,) = here.glob("stored/*/*.jsonl")
    stored = read_run(file)
    assert stored.problems == ()
    assert stored.run.command == shlex.join(
        ["attnbench", "conform", "own.py:Raises", *words[2:-3], "--results", "stored"]
    )
    for text in (done.out, file.read_text()):
        assert not re.search(r"somebody-k7|Traceback", text)
        assert str(here) not in text
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    program, *again = shlex.split(wrong["reproduce"])
    assert program == "attnbench"
    once_more = attnbench(*again, cwd=here)
    assert once_more.code == 1
    assert once_more.out.splitlines()[0] == "own.py:Wrong  forward_parity: failed"
    assert "output is nan at batch 0, query 0, feature 0" in once_more.out


def test_the_cache_is_filled_used_shown_and_emptied(here: Path) -> None:
    """Runs without cache, with an empty and with a full one find the same; --no-cache leaves the cache alone."""
    words = [
        "conform",
        "own.py:Right",
        "own.py:Wrong",
        "--case",
        TINY.format(0),
        "--check",
        "forward_parity",
        "--json",
        "-",
    ]
    place = here / "kept"

    def show() -> list[str]:
        return attnbench("cache", cwd=here, ATTNBENCH_CACHE=str(place)).out.splitlines()

    assert show() == [f"folder   {place}/oracle", "entries  0", "size     0.0 MB of at most 2147 MB"]
    findings, entries = [], []
    for extra in (["--no-cache"], [], []):
        done = attnbench(*words, *extra, cwd=here, ATTNBENCH_CACHE=str(place))
        assert "cache" not in done.err
        findings.append(done.json["findings"])
        entries.append(show()[1])
    assert entries == ["entries  0", "entries  1", "entries  1"]
    assert len(findings[0]) == 2
    assert json.dumps(findings[0]) == json.dumps(findings[1]) == json.dumps(findings[2])
    cleared = attnbench("cache", "--clear", cwd=here, ATTNBENCH_CACHE=str(place)).out
    assert cleared == f"removed 1 entries, 0.0 MB, from {place}/oracle\n"
    assert show()[1] == "entries  0"
    DiskCache(place / "gate").write("0" * 64, b"kept by a plug-in")
    assert show()[3:] == [f"folder   {place}/gate", "entries  1", "size     0.0 MB"]
    attnbench("cache", "--clear", cwd=here, ATTNBENCH_CACHE=str(place))
    assert show()[4] == "entries  0"


def test_a_run_goes_on_without_a_usable_cache(here: Path) -> None:
    """A cache that cannot be used is told in one line on standard error, and the findings are made without it."""
    (here / "file").touch()
    words = ["conform", "own.py:Right", "--case", TINY.format(0), "--check", "forward_parity"]
    done = attnbench(*words, cwd=here, ATTNBENCH_CACHE=f"{here}/file")
    assert done.code == 0
    assert [line for line in done.err.splitlines() if "cache" in line] == [
        f"warning: cache of expected values: {here}/file/oracle cannot be read: Not a directory. The run continues; "
        "--no-cache disables the cache"
    ]
    shown = attnbench("cache", cwd=here, ATTNBENCH_CACHE=f"{here}/file")
    assert (shown.code, shown.err) == (2, f"attnbench: the cache {here}/file/oracle cannot be used: Not a directory\n")


def test_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    """NaN and infinity are written as null, in the printed object and in the run file."""
    finding = Finding(check="x", status="failed", reason="y", measured=float("nan"), allowed=float("inf"))
    made = make_recording(tmp_path, {})
    with made.file:
        made.add(Result(run="r", implementation="a", case=TINY, findings=(finding,)))
    text = io.StringIO()
    write_json(made, text)
    (printed,) = json.loads(text.getvalue())["findings"]
    assert (printed["measured"], printed["allowed"]) == (None, None)
    assert read_run(made.file.path).results[0].findings[0].measured is None


def test_resuming_repeats_nothing(here: Path) -> None:
    """A run whose file was cut within a line is resumed: whole lines stay, and only the cases of missing lines run."""
    words = ["conform", "own.py:Right", "--check", "forward_parity"]
    words += itertools.chain(*(("--case", TINY.format(seed)) for seed in range(4)))
    assert attnbench(*words, cwd=here).code == 0
    (file,) = here.glob("results/*/*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) == 6
    assert judge_completeness(read_run(file)).complete
    kept, cut = lines[:3], lines[3][: len(lines[3]) // 2]
    file.write_bytes(b"".join(kept) + cut)
    assert [*describe_gaps(judge_completeness(read_run(file)))] == [
        "own.py:Right (2 of 4 cases done) was not finished: the run was cut.",
        "The last line was half-written when the run was cut.",
    ]
    calls = len((here / "calls").read_text())
    assert attnbench("conform", "--resume", file.stem, cwd=here).code == 0
    assert (file,) == tuple(here.glob("results/*/*.jsonl"))
    # Only two of the four cases ran again, so the second run made half as many calls as the first run.
    assert len((here / "calls").read_text()) == calls + calls // 2
    assert file.read_bytes().startswith(b"".join(kept) + cut + b"\n")
    after = read_run(file)
    assert judge_completeness(after).complete
    assert len(after.problems) == 1
    assert "line 4 cannot be read and is left out" in after.problems[0]
    assert Counter(result.case for result in after.results) == {TINY.format(seed): 1 for seed in range(4)}
    assert len(merge_runs([after])) == 4


def test_shards_hold_each_case_once(session: Session) -> None:
    """Every case is in exactly one of the shards 1/2 and 2/2."""
    cases = session.ask_oracle(ListSuite(operator="multihead", level="quick"))
    whole, first, second = (plan_cases(session, cases, ConformJob(shard=part)) for part in (None, (1, 2), (2, 2)))
    assert sorted(p.case for p in [*first, *second]) == sorted(p.case for p in whole)
    assert first
    assert second


def test_timed_implementations_are_named_or_compute_the_operator(session: Session) -> None:
    """Without names, the operator's reference and all implementations that compute the operator are timed.

    With names, every named implementation is timed.
    """
    of_both = ["core_reshaped", "sdpa"]
    assert choose_timed_implementations(session, of_both, asked=False, operators=("multihead",)) == [
        "torch_mha",
        "sdpa",
    ]
    found = choose_timed_implementations(session, of_both, asked=True, operators=("multihead",))
    assert found[-2:] == of_both
    assert "torch_mha" in found[:-2]


@pytest.mark.extended
def test_a_quick_run_compiles_only_what_is_named(session: Session, caplog: pytest.LogCaptureFixture) -> None:
    """Without names, an implementation that compiles is left out, and the message says how to include it."""
    names = ["compiled", "sdpa"]
    wanted: dict[str, Any] = {"operators": ("multihead",), "compiling": False}
    assert choose_timed_implementations(session, names, asked=False, **wanted) == ["torch_mha", "sdpa"]
    assert caplog.messages == ["left out: compiled: compiling takes minutes; to include an implementation, name it"]
    assert choose_timed_implementations(session, names, asked=True, **wanted) == ["torch_mha", *names]
    assert choose_timed_implementations(session, names, asked=False, **wanted | {"compiling": True}) == [
        "torch_mha",
        *names,
    ]


def test_dtype_applies_to_every_case(session: Session) -> None:
    """--dtype runs each problem of the suite once in each given dtype, whatever dtypes the suite lists for it."""
    cases = session.ask_oracle(ListSuite(operator="multihead", level="quick"))
    problems = {case.rsplit("/", 3)[0] + case.rsplit("/", 1)[1] for case in cases}
    for dtypes in (("float64",), ("float64", "bfloat16")):
        found = [plan.case for plan in plan_cases(session, cases, ConformJob(dtype=dtypes))]
        assert len(found) == len(set(found)) == len(problems) * len(dtypes)
        assert {case.split("/")[-3] for case in found} == set(dtypes)


def test_a_users_module_is_checked_from_another_folder(tmp_path: Path) -> None:
    """A user's class, in a file that does not mention attnbench, is checked from any folder without an edit."""
    words = ["--shard", "1/6", "--dtype", "float64", "--check", "forward_parity"]
    done = attnbench("conform", f"{MY_ATTENTION}:MyAttention", *words, "--json", "findings.json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert re.search(r"^my_attention\.py:MyAttention +only ", done.out, re.MULTILINE)
    findings = json.loads((tmp_path / "findings.json").read_text())["findings"]
    assert {f["case"].split("/")[-3] for f in findings} == {"float64"}
    assert Counter(f["status"] for f in findings)["passed"] >= 2
    assert {f["status"] for f in findings} <= {"passed", "unsupported"}


def test_one_check_of_one_case_can_be_run_alone(here: Path) -> None:
    """``reproduce`` of a check that passes gives code 0, and prints its requirement and its errors.

    The file is in another folder, with a module that it imports, and its only class need not be named.
    """
    (here / "far").mkdir()
    (here / "far" / "beside.py").write_text(SOURCE)
    (here / "far" / "mine.py").write_text(
        "from beside import Right as RightAttention\nclass Mine(RightAttention):\n    pass\n"
    )
    done = attnbench("reproduce", TINY.format(3), "far/mine.py", "--check", "forward_parity", cwd=here)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "far/mine.py:Mine  forward_parity: passed"
    assert lines[1] == "  requirement  The output equals the oracle's within the error budget."
    assert re.fullmatch(r"  measured     \S+, allowed \S+", lines[2])
    assert list(here.glob("results/**")) == []
