"""Tests of hostile implementations in one profile: each one loses only its own timing, and the reason is reported.

Also tested are events during a run: a kill, a second run, a full disk, and a clock that jumps.
"""

import ast
import csv
import io
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import attnbench
from attnbench.analysis.completeness import judge_completeness
from attnbench.processes.fork_server import AVAILABLE
from attnbench.processes.oracle_requests import DescribeCases, ListProfile
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import (
    Crashed,
    ExcludedFromTiming,
    KeepsWorking,
    MalformedAnswer,
    NotConforming,
    Raised,
    TimedOut,
    TooLargeForMachine,
)
from attnbench.records.run_file import RunFile, read_run
from attnbench.records.types import Result
from attnbench.records.value_facts import ConditionViolated
from attnbench.report import write
from attnbench.runner import Effort, Limits, NoProgress, Session, list_gating_checks, list_profile_cases, profile
from attnbench.workers.oracle_worker import OracleWorker
from commands import START, run_command
from time_limits import repeat_with_longer_limits

pytestmark = [pytest.mark.extended, pytest.mark.long]

PLUGINS = Path(__file__).parents[1] / "data" / "hostile_plugins.py"
# Implementations whose faults appear when each runs alone, and one whose faults appear only in the shared process.
ALONE, LATE = ("NON_FATAL", "FATAL", "LINGERING"), "LATE"
# Implementation and length of the calls that never return.
HANGING = {("FATAL", 12), ("FATAL", 13)}
HONEST = ("torch_mha", "sdpa")
# No implementation has a fault at the first length. The last length is also run with a backward pass.
LENGTHS, LATE_LENGTHS = range(8, 19), range(8, 12)
FAULTLESS, BACKWARD = 8, 18
FORWARD, TRAIN = "inference", "train"
LIMITS = Limits(threads=1, memory_bytes=10**9, work_s=10)
# Time limit of a request in seconds, on a machine that is not busy.
TIMEOUT_S = 10
# Seconds to time one implementation on one case. LATE_SHARE_S is enough for more than a hundred calls.
SHARE_S, LATE_SHARE_S = 0.03, 0.3
Results = dict[tuple[str, int, str], Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Working folder of the profiles, with the hostile plug-ins in it."""
    made = tmp_path_factory.mktemp("hostile")
    (made / "hostile.py").write_text(PLUGINS.read_text())
    return made


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    """Results of one profile of the implementations in ``ALONE``."""
    return run_profile(folder, ALONE, LENGTHS, backward=[BACKWARD], share_s=SHARE_S)


@pytest.fixture(scope="module")
def late_results(folder: Path) -> Results:
    """Results of one profile of the implementation ``LATE``."""
    return run_profile(folder, [LATE], LATE_LENGTHS, backward=[], share_s=LATE_SHARE_S)


def run_profile(
    folder: Path, hostile: Sequence[str], forward: Sequence[int], *, backward: Sequence[int], share_s: float
) -> Results:
    """Profile the baseline, hostile implementations and an honest one; return each result under its ``make_key``.

    On a busy machine, where an implementation that does not hang exceeds the time limit, the limit is raised.
    """

    def is_expected(found: Results) -> bool:
        return {
            key[:2] for key, one in found.items() if any(isinstance(fact, TimedOut) for fact in list_facts(one))
        } <= HANGING

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        found, _ = repeat_with_longer_limits(
            lambda limit_s: run_profile_once(hostile, forward, backward, share_s, limit_s),
            is_expected,
            first_s=TIMEOUT_S,
        )
    return found


def run_profile_once(
    hostile: Sequence[str], forward: Sequence[int], backward: Sequence[int], share_s: float, limit_s: float
) -> Results:
    """Profile the implementations in this folder, with a time limit."""
    with Session(limits=replace(LIMITS, timeout_s=limit_s)) as session:
        names = [HONEST[0], *(f"hostile.py:{name}" for name in hostile), HONEST[1]]
        cases = list_profile_cases(session, forward, ["forward"], of=("multihead",))
        cases += list_profile_cases(session, backward, ["forward+backward"], of=("multihead",)) if backward else []
        plans = session.plan(cases, list_gating_checks())
        budget_s = share_s * len(names)
        results = profile(
            session, names, plans, run="r", progress=NoProgress(), effort=Effort(processes=1, budget_s=budget_s)
        )
        return {make_key(result): result for result in results}


def make_key(result: Result) -> tuple[str, int, str]:
    """Return the implementation's name, the length and the mode of a result."""
    length = int(result.case.split(".L")[1].split(".")[0])
    return result.implementation.removeprefix("hostile.py:"), length, result.case.rpartition("/")[2]


def list_facts(result: Result) -> list[Fact]:
    """Return the facts for which a call was not timed, and those of its findings."""
    untimed = result.untimed
    own = [untimed.fault if isinstance(untimed, ExcludedFromTiming) else untimed] if isinstance(untimed, Fact) else []
    return [*own, *(fact for finding in result.findings for fact in finding.facts)]


# Implementation, length, mode, and a fact for which the call was not timed; of an exception, its type and message.
FAULTS: list[tuple[str, int, str, Fact | type[Fact] | tuple[str, str]]] = [
    ("NON_FATAL", 10, FORWARD, ("OSError", "no such engine")),
    ("NON_FATAL", 11, FORWARD, ("ZeroDivisionError", "no numbers today")),
    ("NON_FATAL", 12, FORWARD, MalformedAnswer),
    # The size of the allocation that failed: 16 Mi numbers of 4 bytes.
    ("NON_FATAL", 13, FORWARD, ("RuntimeError", "you tried to allocate 67108864 bytes")),
    ("NON_FATAL", 14, FORWARD, ConditionViolated),
    ("NON_FATAL", 15, FORWARD, ConditionViolated),
    ("NON_FATAL", 16, FORWARD, ConditionViolated),
    ("NON_FATAL", 17, FORWARD, ConditionViolated),
    ("NON_FATAL", 18, TRAIN, ("ArithmeticError", "no way back")),
    ("FATAL", 9, FORWARD, Crashed(how="signal", signal="SIGSEGV")),
    ("FATAL", 10, FORWARD, Crashed(how="exit", code=0)),
    # The call closed all file descriptors, the connection to the runner included: the worker cannot answer.
    ("FATAL", 11, FORWARD, Crashed),
    ("FATAL", 12, FORWARD, TimedOut),
    ("FATAL", 13, FORWARD, TimedOut),
    ("LINGERING", 18, FORWARD, KeepsWorking),
]


@pytest.mark.parametrize(("name", "length", "mode", "expected"), FAULTS)
def test_each_fault_is_the_reason_for_no_timing(
    results: Results, name: str, length: int, mode: str, expected: Fact | type[Fact] | tuple[str, str]
) -> None:
    """The result of a call with a fault has no timing, and its facts have the fault."""
    found = results[name, length, mode]
    assert found.timing is None
    facts = list_facts(found)
    if isinstance(expected, tuple):
        raised = [fact for fact in facts if isinstance(fact, Raised)]
        assert any(fact.kind == expected[0] and expected[1] in fact.message for fact in raised), facts
    elif isinstance(expected, type):
        assert any(isinstance(fact, expected) for fact in facts), facts
    else:
        assert expected in facts


@pytest.mark.parametrize(
    ("length", "word"),
    [
        (14, "the number of threads"),
        (15, "the default dtype"),
        (16, "the gradient mode"),
        (17, "random_state"),
    ],
)
def test_changed_settings_are_named(results: Results, length: int, word: str) -> None:
    """A call that changed a global setting is not timed, because the setting would change the time of other calls."""
    assert word in str(list_facts(results["NON_FATAL", length, FORWARD]))


def assert_complete(found: Result) -> None:
    """Assert that all findings passed, and that memory and samples were measured."""
    assert {finding.status for finding in found.findings} == {"passed"}
    assert found.untimed is None
    assert found.memory is not None
    assert found.timing is not None
    assert [len(samples) >= 3 for samples in found.timing.samples_ns] == [True]


@pytest.mark.parametrize("name", HONEST)
def test_honest_implementations_are_timed_everywhere(results: Results, late_results: Results, name: str) -> None:
    """An honest implementation is measured in every case, whichever hostile implementations run beside it."""
    for length, mode in [*((length, FORWARD) for length in LENGTHS), (BACKWARD, TRAIN)]:
        assert_complete(results[name, length, mode])
    for length in LATE_LENGTHS:
        assert_complete(late_results[name, length, FORWARD])


@pytest.mark.parametrize("name", ALONE)
def test_a_hostile_implementation_is_timed_where_it_has_no_fault(results: Results, name: str) -> None:
    """A fault of an implementation at one length does not prevent its timing at a length without a fault."""
    found = results[name, FAULTLESS, FORWARD]
    assert found.timing is not None
    assert found.untimed is None


def test_a_wrong_output_after_the_hundredth_call_is_found(late_results: Results) -> None:
    """The output of a call after the last sample is checked; a call whose output has become wrong has no timing."""
    assert_complete(late_results[LATE, FAULTLESS, FORWARD])
    found = late_results[LATE, 9, FORWARD]
    assert (found.timing, found.memory) == (None, None)
    assert isinstance(found.untimed, NotConforming)
    assert "forward_parity" in {finding.check for finding in found.findings if finding.status == "failed"}


def test_a_cached_output_is_found(late_results: Results) -> None:
    """A call that returns a stored output for new inputs fails the check of a timed call."""
    found = late_results[LATE, 10, FORWARD]
    assert found.timing is None
    assert "forward_parity" in {finding.check for finding in found.findings if finding.status == "failed"}


def test_a_crash_of_the_shared_process_is_attributed_to_its_cause(late_results: Results) -> None:
    """The implementation that crashes the shared process is identified, and only its calls are not timed."""
    found = late_results[LATE, 11, FORWARD]
    assert found.timing is None
    assert found.untimed == ExcludedFromTiming(fault=Crashed(how="signal", signal="SIGSEGV"))


def test_printing_does_not_prevent_timing(results: Results) -> None:
    """A call that prints megabytes passes and is timed: the text is not taken for an answer of the worker."""
    found = results["NON_FATAL", 9, FORWARD]
    assert {finding.status for finding in found.findings} == {"passed"}
    assert found.timing is not None


def test_forks_are_ended_with_their_process(results: Results, folder: Path) -> None:
    """Processes that a call forked have ended when the run is over, also those in sessions of their own."""
    assert {finding.status for finding in results["LINGERING", 17, FORWARD].findings} == {"passed"}
    forked = [int(line) for line in (folder / "forked").read_text().split()]
    assert len(forked) >= 7
    assert [pid for pid in forked if not is_gone(pid)] == []


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


# A killed run, and a second run at the same time

OWN = """
import os
import time
from pathlib import Path

import torch


class Own(torch.nn.MultiheadAttention):
    def forward(self, query, *arguments, **keywords):
        length = query.shape[1]
        if length == 16 and Path("hang").exists():
            Path("pid").write_text(f"{os.getpid()} ")
            while True:
                time.sleep(0.01)
        return super().forward(query, *arguments, **keywords)
"""


TINY = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed=0/float32/cpu/inference"
PROFILE = ("profile", "--lengths", "8,16", "--passes", "forward", "--processes", "2", "--timeout", "1000")
CONFORM = ("conform", "--case", TINY, "--check", "forward_parity")
# Arguments of all commands: results are written to a folder beside the one in which the command runs.
COMMON = ("own.py:Own", "--threads", "1", "--results", "../results")
PROBES = [("torch_mha", 8), ("torch_mha", 16), ("own.py:Own", 8), ("own.py:Own", 16)]


def wait_for_hang(folder: Path, done: int) -> tuple[Path, int]:
    """Wait until ``done`` results are stored and a call of length 16 hangs; return the run file and the process id."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        time.sleep(0.05)
        file = next(folder.parent.glob("results/*/*.jsonl"), None)
        if file is None or file.read_bytes().count(b'"record":"result"') < done:
            continue
        (folder / "hang").touch()
        if (folder / "pid").exists() and (pid := (folder / "pid").read_text()).endswith(" "):
            return file, int(pid)
    raise TimeoutError(f"{done} results and a call that hangs")


@pytest.mark.parametrize("done", [PROBES[:3], PROBES], ids=["probed", "timed"])
def test_a_killed_run_is_resumed_and_disturbs_no_other(done: list[tuple[str, int]], tmp_path: Path) -> None:
    """A run is killed by SIGKILL, during its checks or its timing: its processes end, and the run can be resumed.

    Stored results are kept, with the samples of each process that ended. The resumed run adds the others. A second run
    that writes to the same results folder at the same time is not affected.
    A process that times is not forked: the addresses of forked processes are alike, and times depend on them.
    """
    killed, other = tmp_path / "killed", tmp_path / "other"
    for folder in (killed, other):
        folder.mkdir()
        (folder / "own.py").write_text(OWN)
    if done != PROBES:
        (killed / "hang").touch()
    first = subprocess.Popen([*START, *PROFILE, *COMMON], cwd=killed, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    file, pid = wait_for_hang(killed, len(done))
    if AVAILABLE:
        is_forked = "attnbench.processes.fork_server" in Path(f"/proc/{pid}/cmdline").read_text()
        assert is_forked is (done != PROBES)
    second = run_command(*CONFORM, *COMMON, cwd=other)
    assert second.returncode == 0, second.stderr
    assert not is_gone(pid)
    first.kill()
    first.communicate()
    deadline = time.monotonic() + 120
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert is_gone(pid)
    (beside,) = (path for path in tmp_path.glob("results/*/*.jsonl") if path != file)
    assert [finding.status for result in read_run(beside).results for finding in result.findings] == ["passed"]
    before = read_run(file)
    probed = [(result.implementation, make_key(result)[1]) for result in before.results]
    # Implementations are checked in parallel, so the order of results varies.
    assert sorted(probed) == sorted(done)
    kept = {make_key(result): result.timing for result in before.results if result.timing is not None}
    # The call of length 16 hangs, so a process has stored samples of length 8 only, of both implementations.
    assert {length for _, length, *_ in kept} >= ({8} if done == PROBES else set())
    assert before.problems == ()
    found = judge_completeness(before)
    assert (found.end, [cut.planned for cut in found.cut_calls]) == ("cut", [2] * len(found.cut_calls))
    assert sum(cut.calls for cut in found.cut_calls) == len(kept)
    write([before], tmp_path / "report")
    timings = tmp_path / "report" / "timings.csv"
    rows = list(csv.DictReader(io.StringIO(timings.read_text()))) if timings.exists() else []
    counts = sorted(sum(map(bool, timing.samples_ns)) for timing in kept.values())
    assert sorted(int(row["processes"]) for row in rows) == counts
    (killed / "hang").unlink()
    again = run_command(*PROFILE, *COMMON, "--resume", file.stem, cwd=killed)
    assert again.returncode == 0, again.stderr
    after = read_run(file)
    # Each result is stored once, after the checks, which the resumed run does not repeat. Samples follow.
    lines = Counter(line.split(b'"')[3] for line in file.read_bytes().splitlines())
    assert (lines[b"result"], lines[b"samples"]) == (4, 4 * 2)
    names = ("torch_mha", "own.py:Own")
    assert {make_key(one)[:2] for one in after.results} == {(name, length) for name in names for length in (8, 16)}
    timings = {make_key(result): result.timing for result in after.results if result.timing is not None}
    assert {timing.processes for timing in timings.values()} == {2}
    for key, timing in kept.items():
        assert timings[key].samples_ns[: timing.processes] == timing.samples_ns
    assert len(list(tmp_path.glob("results/*/*.jsonl"))) == 2


# Bad input


@pytest.mark.parametrize("length", [10**9, 10**20])
def test_a_length_that_no_memory_holds_is_not_started(length: int, tmp_path: Path) -> None:
    """A length is not run if computing its expected values needs too much memory; the message says how much."""
    oracle_worker = OracleWorker(tmp_path)
    cases = oracle_worker.list_profile(ListProfile(operator="multihead", lengths=[length]))
    described, _ = oracle_worker.describe_cases(DescribeCases(cases=cases))
    assert isinstance(described.missing, TooLargeForMachine)
    assert described.missing.what == "expected"
    assert described.missing.need_bytes > described.missing.free_bytes


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


def test_a_full_disk_loses_at_most_the_last_line(tmp_path: Path) -> None:
    """A failed write is an error of one line; earlier records in the file are readable, and the run can be resumed."""
    done = subprocess.run([sys.executable, "-c", FILL, str(tmp_path)], capture_output=True, text=True, check=True)
    count, _, message = done.stdout.partition(" ")
    (path,) = tmp_path.glob("*/*.jsonl")
    assert message == f"cannot write to {path}: File too large; the records written so far are kept\n"
    stored = read_run(path)
    assert len(stored.results) == int(count) > 5
    assert len(stored.problems) <= 1
    with RunFile.resume(path) as file:
        file.append(stored.results[0])
    assert len(read_run(path).results) == int(count) + 1


def test_a_clock_that_jumps_disturbs_no_measurement() -> None:
    """Waits and measurements read a monotonic clock.

    The time of day is read only to name runs, to date the tries of a sweep, to tell how old these are, and to compare
    the ages of files in the cache of expected values.
    """
    readers = set()
    root = Path(attnbench.__file__).parents[1]
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "time.time", "time.time_ns", "time.localtime", "time.gmtime", "datetime.now", "datetime.utcnow",
                "date.today", "datetime.today",
            ):  # fmt: skip
                readers.add(path.relative_to(root).as_posix())
    assert readers == {
        "attnbench/api/recording.py", "attnbench/oracle/disk_cache.py", "attnsweep/states.py", "attnsweep/tries.py",
    }  # fmt: skip
