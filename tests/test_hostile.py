"""Hostile implementations in one profile: each costs itself its timing, with the reason, and nobody else anything.

And what may happen to the machine meanwhile: a kill, a second run, a full disk, a clock that jumps.
"""

import ast
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

import attnbench
from attnbench.cli.profile_command import command
from attnbench.records.run_file import RunFile, read_run
from attnbench.records.types import Result
from attnbench.runner import Effort, Limits, NoProgress, Session, list_gating_checks, list_profile_cases, profile
from attnbench.workers.oracle_worker import OracleWorker

PLUGINS = Path(__file__).parent / "data" / "hostile_plugins.py"
PROGRAM = "from attnbench.cli import main; main()"
# Those that show alone, and one that shows only among others.
ALONE, LATE = ("TOLD", "DEADLY", "STUCK", "STAYING"), "LATE"
HONEST = ("torch_mha", "sdpa")
# All behave at the first; one implementation does its deeds in turn at the others, and with backward at the last.
LENGTHS, LATE_LENGTHS = range(8, 19), range(8, 12)
WELL, BACKWARD = 8, 18
FORWARD, TRAIN = "inference", "train"
LIMITS = Limits(threads=1, timeout_s=15, memory_bytes=10**9, work_s=10)
# Time that each gets in one case, in seconds; of what shows late: more than a hundred calls of these lengths.
SHARE_S, LATE_SHARE_S = 0.03, 0.3
Told = dict[tuple[str, int, str], Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the hostile plug-ins, in which they run."""
    made = tmp_path_factory.mktemp("hostile")
    (made / "hostile.py").write_text(PLUGINS.read_text())
    return made


@pytest.fixture(scope="module")
def told(folder: Path) -> Told:
    """What one profile says of those that show alone."""
    return profiled(folder, ALONE, LENGTHS, backward=[BACKWARD], share_s=SHARE_S)


@pytest.fixture(scope="module")
def told_late(folder: Path) -> Told:
    """What one profile says of the one that shows among others."""
    return profiled(folder, [LATE], LATE_LENGTHS, backward=[], share_s=LATE_SHARE_S)


def profiled(
    folder: Path, hostile: Sequence[str], forward: Sequence[int], *, backward: Sequence[int], share_s: float
) -> Told:
    """A profile, with the baseline before and an honest implementation after the hostile ones."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with Session(limits=LIMITS) as session:
            names = [HONEST[0], *(f"hostile.py:{name}" for name in hostile), HONEST[1]]
            cases = list_profile_cases(session, forward, ["forward"], of=("multihead",))
            cases += list_profile_cases(session, backward, ["forward+backward"], of=("multihead",)) if backward else []
            plans = session.plan(cases, list_gating_checks())
            budget_s = share_s * len(names)
            results = profile(
                session, names, plans, run="r", progress=NoProgress(), effort=Effort(processes=1, budget_s=budget_s)
            )
            return {key(result): result for result in results}
    finally:
        os.chdir(before)


def key(result: Result) -> tuple[str, int, str]:
    """Name, length and mode of a result."""
    length = int(result.case.split(".L")[1].split(".")[0])
    return result.implementation.removeprefix("hostile.py:"), length, result.case.rpartition("/")[2]


# Who, at which length and in which mode, and how the reason for no timing begins.
REASONS = [
    ("TOLD", 10, FORWARD, "error: OSError: no such engine (at hostile.py:"),
    ("TOLD", 11, FORWARD, "error: ZeroDivisionError: no numbers today (at hostile.py:"),
    ("TOLD", 12, FORWARD, "failed: the call must return a tuple (output, weights), got Tensor."),
    ("TOLD", 13, FORWARD, "out_of_memory: RuntimeError: "),
    ("TOLD", 14, FORWARD, "failed: "),
    ("TOLD", 15, FORWARD, "failed: "),
    ("TOLD", 16, FORWARD, "failed: "),
    ("TOLD", 17, FORWARD, "failed: "),
    ("TOLD", 18, TRAIN, "error: ArithmeticError: no way back (at hostile.py:"),
    ("DEADLY", 9, FORWARD, "crashed: the process was killed by SIGSEGV"),
    ("DEADLY", 10, FORWARD, "crashed: the process exited with code 0"),
    # It closed its connection, too, and then has no way to answer.
    ("DEADLY", 11, FORWARD, "crashed: the process "),
    ("DEADLY", 12, FORWARD, "not_run: its process ended 3 times, the last time: the process "),
    ("STUCK", 9, FORWARD, "timeout: no answer within 15 s (--timeout)"),
    ("STUCK", 10, FORWARD, "timeout: no answer within 15 s (--timeout)"),
    ("STAYING", 18, FORWARD, "its threads still need "),
]


@pytest.mark.parametrize(("name", "length", "mode", "reason"), REASONS)
def test_each_deed_is_the_reason_for_no_timing(told: Told, name: str, length: int, mode: str, reason: str) -> None:
    """A typed result that says what happened; a time is stored of none."""
    found = told[name, length, mode]
    assert found.timing is None
    assert found.untimed is not None
    assert found.untimed.startswith(reason), found.untimed


@pytest.mark.parametrize(
    ("length", "word"),
    [
        (14, "the number of threads"),
        (15, "the default dtype"),
        (16, "the gradient mode"),
        (17, "the random generator"),
    ],
)
def test_changed_settings_are_named(told: Told, length: int, word: str) -> None:
    """What a call changes in torch would change what it costs the others."""
    assert word in (told["TOLD", length, FORWARD].untimed or "")


def test_memory_is_told_with_what_was_asked_for(told: Told) -> None:
    """16 Mi numbers at a time, until the limit refuses them."""
    assert "you tried to allocate 67108864 bytes" in (told["TOLD", 13, FORWARD].untimed or "")


def assert_whole(found: Result) -> None:
    """Findings that passed, memory, and samples."""
    assert {finding.status for finding in found.findings} == {"passed"}
    assert found.untimed is None
    assert found.memory is not None
    assert found.timing is not None
    assert [len(samples) >= 3 for samples in found.timing.samples_ns] == [True]


@pytest.mark.parametrize("name", HONEST)
def test_all_others_are_timed_everywhere(told: Told, told_late: Told, name: str) -> None:
    """The honest ones miss nothing, in any case, beside whatever they ran."""
    for length, mode in [*((length, FORWARD) for length in LENGTHS), (BACKWARD, TRAIN)]:
        assert_whole(told[name, length, mode])
    for length in LATE_LENGTHS:
        assert_whole(told_late[name, length, FORWARD])


@pytest.mark.parametrize("name", ALONE)
def test_where_it_behaves_it_is_timed(told: Told, name: str) -> None:
    """What it does at one length takes nothing from its time at another."""
    found = told[name, WELL, FORWARD]
    assert found.timing is not None
    assert found.untimed is None


def test_a_wrong_answer_after_the_hundredth_call_is_found(told_late: Told) -> None:
    """What was right when it was probed is checked once more after the last sample, and then has no timing."""
    assert_whole(told_late[LATE, WELL, FORWARD])
    found = told_late[LATE, 9, FORWARD]
    assert (found.timing, found.memory) == (None, None)
    assert (found.untimed or "").startswith("failed: ")
    assert "forward_parity" in {finding.check for finding in found.findings if finding.status == "failed"}


def test_an_answer_from_a_cache_is_found(told_late: Told) -> None:
    """An answer of earlier inputs is a wrong one of those that it is given afterwards."""
    found = told_late[LATE, 10, FORWARD]
    assert found.timing is None
    assert "forward_parity" in {finding.check for finding in found.findings if finding.status == "failed"}


def test_a_death_among_others_is_laid_on_its_cause(told_late: Told) -> None:
    """Who ends the shared process is found, and left out alone."""
    found = told_late[LATE, 11, FORWARD]
    assert found.timing is None
    assert (found.untimed or "").startswith("crashed: ")
    assert (found.untimed or "").endswith("the process was killed by SIGSEGV")


def test_printing_costs_nothing(told: Told) -> None:
    """Megabytes on standard output and error are nobody's answer and no reason."""
    found = told["TOLD", 9, FORWARD]
    assert {finding.status for finding in found.findings} == {"passed"}
    assert found.timing is not None


def test_forks_are_ended_with_their_process(told: Told, folder: Path) -> None:
    """Processes that calls left behind, in sessions of their own too, are gone when the run is over."""
    assert {finding.status for finding in told["STAYING", 9, FORWARD].findings} == {"passed"}
    bred = [int(line) for line in (folder / "bred").read_text().split()]
    assert len(bred) >= 7
    assert [pid for pid in bred if not is_gone(pid)] == []


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


# A kill, and a second run beside

OWN = """
import os
import time
from pathlib import Path

import torch


class Own(torch.nn.MultiheadAttention):
    def forward(self, query, *arguments, **keywords):
        length = query.shape[1]
        if length == 16 and Path("held").exists():
            Path("pid").write_text(f"{os.getpid()} ")
            while True:
                time.sleep(0.01)
        return super().forward(query, *arguments, **keywords)
"""


TINY = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed=0/float32/cpu/inference"
PROFILED = ("profile", "--lengths", "8,16", "--passes", "forward", "--processes", "1", "--timeout", "100")
CONFORMED = ("conform", "--case", TINY, "--check", "forward_parity")


def started(cwd: Path, *words: str) -> subprocess.Popen[str]:
    """A command on that implementation, in a folder, with its results beside it."""
    words += ("own.py:Own", "--threads", "1", "--results", "../results")
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


PROBES = [("torch_mha", 8), ("torch_mha", 16), ("own.py:Own", 8), ("own.py:Own", 16)]


def held(folder: Path, done: int) -> tuple[Path, int]:
    """Run file and process, once so many results are stored and the implementation's next call of length 16 hangs."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        time.sleep(0.05)
        file = next(folder.parent.glob("results/*/*.jsonl"), None)
        if file is None or file.read_bytes().count(b'"record":"result"') < done:
            continue
        (folder / "held").touch()
        if (folder / "pid").exists() and (pid := (folder / "pid").read_text()).endswith(" "):
            return file, int(pid)
    raise TimeoutError(f"{done} results and a call that hangs")


@pytest.mark.parametrize("done", [PROBES[:3], PROBES], ids=["probed", "timed"])
def test_a_killed_run_is_gone_on_with_and_harms_no_other(done: list[tuple[str, int]], tmp_path: Path) -> None:
    """SIGKILL in the middle of a probe, or while calls are timed, leaves no process, and a file that is gone on with.

    What is done stays done. A second run, into the same folder at the same time, is untouched.
    """
    killed, other = tmp_path / "killed", tmp_path / "other"
    for folder in (killed, other):
        folder.mkdir()
        (folder / "own.py").write_text(OWN)
    if done != PROBES:
        (killed / "held").touch()
    first = started(killed, *PROFILED)
    file, pid = held(killed, len(done))
    second = started(other, *CONFORMED)
    _, said = second.communicate(timeout=150)
    assert second.returncode == 0, said
    assert not is_gone(pid)
    first.kill()
    first.communicate()
    deadline = time.monotonic() + 10
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert is_gone(pid)
    (beside,) = (path for path in tmp_path.glob("results/*/*.jsonl") if path != file)
    assert [finding.status for result in read_run(beside).results for finding in result.findings] == ["passed"]
    before = read_run(file)
    stored = [(result.implementation, key(result)[1]) for result in before.results]
    # Implementations are probed side by side; what is timed is stored at the end of all.
    assert sorted(stored) == sorted(done)
    assert before.problems == ()
    (killed / "held").unlink()
    again = started(killed, *PROFILED, "--resume", file.stem)
    _, said = again.communicate(timeout=150)
    assert again.returncode == 0, said
    after = read_run(file)
    # Each once as its probe ends, those of before not again, and once with its samples.
    times = Counter((result.implementation, key(result)[1], result.timing is not None) for result in after.results)
    names = ("torch_mha", "own.py:Own")
    assert times == {(name, length, timed): 1 for name in names for length in (8, 16) for timed in (False, True)}
    assert after.results[: len(before.results)] == before.results
    assert len(list(tmp_path.glob("results/*/*.jsonl"))) == 2


# Bad input


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("--threads 1000000", ("--threads", "1000000 is not in the range 1<=x<=")),
        ("--threads 0", ("--threads", "0 is not in the range")),
        ("--processes 0", ("--processes", "0 is not in the range")),
        ("--memory-limit 99999999999GiB", ("--memory-limit", "needs a number of bytes", "for example 8GiB")),
        ("--memory-limit -1GiB", ("--memory-limit", "needs a number of bytes", "'-1GiB'")),
        ("--lengths 1e3", ("--lengths", "at least 1", "'1e3'")),
        ("--lengths ,", ("--lengths", "at least 1", "','")),
        ("--lengths 8.5", ("--lengths", "at least 1", "'8.5'")),
        ("--timeout -1", ("--timeout", "above 0", "'-1'")),
        ("--work-limit inf", ("--work-limit", "above 0", "'inf'")),
        ("--results=", ("--results", "needs a folder, got an empty name")),
        ("--passes backward", ("--passes", "'backward'", "'forward'")),
        ("--dtype float8", ("--dtype", "'float8'", "'float32'")),
        ("--device tpu", ("--device", "'tpu'", "'cpu', 'cuda'")),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(arguments: str, parts: tuple[str, ...]) -> None:
    """Lengths, limits, dtypes, devices and folders are looked at first; the message names the option."""
    with pytest.raises(click.UsageError) as raised:
        command.make_context("profile", ["sdpa", *arguments.split()])
    said = raised.value.format_message()
    places = [said.find(part) for part in parts]
    assert -1 not in places, said
    assert places == sorted(places)


@pytest.mark.parametrize("length", [10**9, 10**20])
def test_a_length_that_no_memory_holds_is_not_started(length: int, tmp_path: Path) -> None:
    """What it would need is said instead."""
    judge = OracleWorker(tmp_path)
    described, _ = judge.describe(cases=judge.list_profile(operator="multihead", lengths=[length]))
    assert described["missing"].startswith("its oracle needs about ")
    assert described["missing"].endswith("use a shorter length")


# The machine

FILL = """
import resource, sys
from pathlib import Path
from attnbench.records.types import Finding, Machine, Result, Run
from attnbench.records.run_file import ResultsError, RunFile

machine = Machine(name="m", cpu="c", cores=1, memory_bytes=1)
run = Run(id="r", time="t", command="c", machine=machine, versions={}, threads=1)
case = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed=%d/float32/cpu/eval"
with RunFile.create(Path(sys.argv[1]), run) as file:
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
    try:
        for seed in range(1_000):
            findings = (Finding(check="x", status="passed"),)
            file.append(Result(run="r", implementation="i", case=case % seed, findings=findings))
    except ResultsError as error:
        print(seed, error)
"""


def test_a_full_disk_costs_the_last_line(tmp_path: Path) -> None:
    """The run is told in one line that no more can be written; what was written can be read and gone on with."""
    done = subprocess.run([sys.executable, "-c", FILL, str(tmp_path)], capture_output=True, text=True, check=True)
    count, _, said = done.stdout.partition(" ")
    (path,) = tmp_path.glob("*/*.jsonl")
    assert said == f"cannot write to {path}: File too large; the records written so far are kept\n"
    stored = read_run(path)
    assert len(stored.results) == int(count) > 5
    assert len(stored.problems) <= 1
    with RunFile.resume(path) as file:
        file.append(stored.results[0])
    assert len(read_run(path).results) == int(count) + 1


def test_a_clock_that_jumps_reaches_no_measurement() -> None:
    """The time of day is read to name a run and nowhere else; all that waits or measures reads a clock that goes on."""
    readers = set()
    root = Path(attnbench.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "time.time", "time.time_ns", "time.localtime", "time.gmtime", "datetime.now", "datetime.utcnow",
                "date.today", "datetime.today",
            ):  # fmt: skip
                readers.add(path.relative_to(root).as_posix())
    assert readers == {"cli/recording.py"}
