"""Tests of the max length: which lengths are tried, which are skipped, what is stored, and why a search ends."""

import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import pytest
import torch

from attnbench.analysis.max_length import FITS, MaxLength, find_max_lengths
from attnbench.cli.max_length import print_max_lengths, search_max_lengths
from attnbench.cli.output_files import OutputFiles
from attnbench.interface import Inputs
from attnbench.jobs.errors import JobError
from attnbench.jobs.job import ProfileJob, build
from attnbench.processes.candidate_requests import LoadImplementation, TryPass
from attnbench.processes.oracle_requests import Libraries
from attnbench.processes.request import Handler, Request
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import (
    CallOverLimit,
    Crashed,
    LimitedMemory,
    MalformedAnswer,
    OverMemoryLimit,
    OverWorkLimit,
    Raised,
)
from attnbench.records.run_file import RunFile, read_run
from attnbench.records.types import FRONTIER, Finding, Machine, Memory, Result, Run
from attnbench.records.value_facts import ValuesOff
from attnbench.refusals import OtherRefusal
from attnbench.runner import Limits, NoProgress, Plan, Session, list_gating_checks, list_profile_cases
from attnbench.runner.max_length import SHORTEST, generate_lengths, predict_bytes, try_lengths
from attnbench.workers.candidate_worker import CandidateWorker
from attnbench.workers.loaded_implementations import LoadedImplementations
from attnbench.workers.long_pass import stretch
from attnbench.workers.oracle_worker import OracleWorker

CASE = (
    "multihead/B1.L{0}.S{0}.E256.H4/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/inference"
)

# Implementations that compute what the reference computes up to some length, and fail, each in its way, beyond it.
SOURCE = """
import os
import time

import torch

from attnbench.interface import Implementation, Refusal


class Limited(Implementation):
    def __init__(self, length, fault):
        self.length = length
        self.fault = fault

    def unsupported(self, case):
        return "too long for it" if self.fault is None and case.problem.queries >= self.length else None

    def predicted_s(self, case):
        return 1e3 if self.fault == "predicts" and case.problem.queries >= self.length else None

    def build(self, reference):
        return reference

    def prepare(self, module, case, inputs):
        if case.problem.queries < self.length or not callable(self.fault):
            return module

        def call(**arguments):
            return self.fault(module(**arguments))

        return call


def sleep(answer):
    time.sleep(2.5)
    return answer


REFUSES = Limited(300, None)
PREDICTS = Limited(300, "predicts")
SLEEPS = Limited(200, sleep)
CRASHES = Limited(150, lambda answer: os._exit(9) if answer[0].shape[1] < 256 else torch.empty(10**10))
NOT_FINITE = Limited(150, lambda answer: (answer[0] * float("nan"), None))
WRONG = Limited(0, lambda answer: (answer[0] + 1, None))
"""


def list_lengths(fits: Callable[[int], bool], **limits: int) -> list[int]:
    """List the lengths that a search tries, in order, given which of them fit."""
    generator = generate_lengths(**limits)
    lengths = [next(generator)]
    while True:
        try:
            lengths.append(generator.send(fits(lengths[-1])))
        except StopIteration:
            return lengths


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (0, [64]),
        (64, [64, 128]),
        (191, [64, 128, 256, 192]),
        (300, [64, 128, 256, 512, 384, 320]),
        (1500, [64, 128, 256, 512, 1024, 2048, 1536, 1280, 1408]),
        (1664, [64, 128, 256, 512, 1024, 2048, 1536, 1792, 1664]),
    ],
)
def test_lengths_are_doubled_and_then_bisected(end: int, expected: list[int]) -> None:
    """Lengths double until one does not fit; then the search bisects between the last two lengths.

    Let a be the longest length that fits, and b the shortest that does not. The search ends if b − a ≤ max(a / 8, 64).
    """
    lengths = list_lengths(lambda length: length <= end)
    assert lengths == expected
    fitting = [length for length in lengths if length <= end]
    beyond = min(length for length in lengths if length > end)
    assert not fitting or beyond - max(fitting) <= max(max(fitting) // 8, 64)


def test_lengths_end_at_the_longest() -> None:
    """No length above ``longest`` is tried, even if every length fits."""
    assert list_lengths(lambda _: True, shortest=64, longest=300) == [64, 128, 256]


def test_memory_of_the_next_length_is_predicted() -> None:
    """The prediction is exact if memory is a quadratic polynomial of the length; it needs at least three lengths."""

    def compute_bytes(length: int) -> int:
        return 12 * length * length + 5_000 * length + 77

    known = {length: compute_bytes(length) for length in (64, 128, 256, 512)}
    assert predict_bytes(known, 2048) == compute_bytes(2048)
    assert predict_bytes({64: 1, 128: 2}, 256) is None
    # The prediction uses only the three longest lengths, so the memory at length 64 does not matter.
    assert predict_bytes(known | {64: 10**9}, 1024) == compute_bytes(1024)


def test_inputs_are_stretched_along_the_dimension_that_grows() -> None:
    """``stretch`` repeats a tensor along the dimensions that double with the length, and along no other.

    A tensor that is both query and key stays one object.
    """

    def make_inputs(length: int) -> Inputs:
        query, mask = torch.rand(1, length, 4), torch.rand(length, length)
        cotangents = {"output": torch.rand(1, length, 4), "weights": torch.rand(1, 2, length, length)}
        return Inputs(
            parameters={"w": torch.rand(4, 4)},
            tensors={"query": query, "key": query, "attn_mask": mask},
            options={"need_weights": False},
            cotangents=cotangents,
        )

    short = make_inputs(4)
    made = stretch(short, make_inputs(8), 3)
    assert made.tensors["query"].shape == (1, 12, 4)
    assert made.tensors["key"] is made.tensors["query"]
    assert made.tensors["attn_mask"].shape == (12, 12)
    assert torch.equal(made.tensors["query"][:, 4:8], short.tensors["query"])
    assert {name: tensor.shape for name, tensor in made.cotangents.items()} == {"output": (1, 12, 4)}
    assert made.parameters is short.parameters
    assert made.options == short.options


def make_result(length: int, status: str, reason: str = "", **fields: object) -> Result:
    """Make the result of one length, with a finding of this status and reason."""
    finding = Finding(check=FITS, status=status, reason=reason, measured=length / 1e3)  # type: ignore[arg-type]
    made = Result(run="r", implementation="one", case=CASE.format(length), findings=(finding,), suite=FRONTIER)
    return replace(made, **fields)  # type: ignore[arg-type]


RESULTS = [
    make_result(64, "passed", memory=Memory(peak_bytes=2**20, threads=1, method="m")),
    make_result(128, "passed", memory=Memory(peak_bytes=2**22, threads=1, method="m")),
    make_result(256, "not_run", "predicted 9 GiB"),
    make_result(192, "out_of_memory", "no more"),
]


def test_the_max_length_is_read_from_the_results() -> None:
    """The longest length that fits gives length, time and memory; the next length gives the reason of the end.

    Results of another suite are ignored.
    """
    (found,) = find_max_lengths([*RESULTS, replace(RESULTS[0], suite="perf")])
    assert found == MaxLength(
        implementation="one",
        case=RESULTS[0].case,
        length=128,
        took_s=0.128,
        peak_bytes=2**22,
        beyond=192,
        failure=RESULTS[3].findings[0],
    )
    (none_fits,) = find_max_lengths([make_result(64, "crashed", "killed")])
    assert (none_fits.length, none_fits.beyond) == (None, 64)
    assert none_fits.failure is not None
    assert none_fits.failure.status == "crashed"
    (all_fit,) = find_max_lengths(RESULTS[:1])
    assert (all_fit.length, all_fit.beyond) == (64, None)


def test_max_lengths_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The printed table has one line per max length; its last column is the reason why the next length does not fit."""
    print_max_lengths(RESULTS)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["implementation", "pass", "dtype", "longest", "s", "per", "call", "peak", "MiB", "fails", "at"]
    assert lines[1] == ["one", "forward", "float32", "128", "0.128", "4", "192:", "out_of_memory:", "no", "more"]


def test_a_stored_search_gives_the_same_max_length(tmp_path: Path) -> None:
    """Results that were written to a file and read again give the max length that they gave before."""
    machine = Machine(name="m", cpu="c", cores=1, memory_bytes=1)
    run = Run(id="r", time="t", command="c", machine=machine, versions={}, threads=1)
    with RunFile.create(tmp_path, run) as file:
        for one in RESULTS:
            file.append(one)
    assert find_max_lengths(read_run(file.path).results) == find_max_lengths(RESULTS)


def answer(handlers: Sequence[Handler], request: Request[Any]) -> Any:
    """Return the answer of the handler of a request."""
    (handler,) = (handler for handler in handlers if isinstance(request, handler.kind))
    return handler.answer(request)


class LocalSupervisor:
    """Supervisor that calls a max-length worker in this process."""

    operator = "multihead"

    def __init__(self, session: Session, name: str) -> None:
        self._limits = session.limits
        self.path_prefix = session.folder / "worker"
        self._handlers = CandidateWorker(LoadedImplementations()).handlers()
        self.declared = {name: self.send(LoadImplementation(implementation=name))}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: Request[Any], *, counts: bool = True) -> Any:
        """Return the worker's answer to a request."""
        return self.send(request)

    def send(self, request: Request[Any], *, counts: bool = True) -> Any:
        """Return the worker's answer to a request."""
        return answer(self._handlers, request)

    def compute_memory_limit_bytes(self) -> int | None:
        """Return the memory limit of the session."""
        return self._limits.compute_memory_limit_bytes()

    def renew(self) -> None:
        """Do nothing: there is no process to end."""


class LocalSession(Session):
    """Session whose workers run in this process, for implementations that neither crash nor exhaust the memory."""

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="attnbench-"))
        self.workers = cast("Any", self)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder)

    @property
    def libraries(self) -> Libraries:
        """Libraries of this process, with one thread."""
        return Libraries(torch=str(torch.__version__), threads=1)

    def ask_oracle(self, request: Request[Any]) -> Any:
        """Return the answer of an oracle worker in this process."""
        return answer(OracleWorker(self.folder).handlers(), request)

    def get(self, names: Sequence[str], _: object) -> LocalSupervisor:
        """Return the supervisor of an implementation, as a pool does."""
        return LocalSupervisor(self, names[0])


@pytest.fixture
def session() -> Iterator[LocalSession]:
    """Session without worker processes, with a limit of 400 MB and of 2 s a call."""
    with LocalSession(limits=Limits(memory_bytes=4 * 10**8, work_s=2)) as opened:
        yield opened


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a file that contains SOURCE."""
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(SOURCE)
    return str(file)


def plan_shortest(session: Session) -> list[Plan]:
    """Plan the forward pass at the shortest length."""
    return session.plan(list_profile_cases(session, [SHORTEST], ["forward"], of=("multihead",)), list_gating_checks())


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "length", "beyond", "status", "fact"),
    [
        ("REFUSES", 256, 320, "unsupported", OtherRefusal),
        ("PREDICTS", 256, 320, "not_run", OverWorkLimit),
        ("SLEEPS", 192, 256, "timeout", CallOverLimit),
        ("NOT_FINITE", 128, 192, "failed", MalformedAnswer),
        ("WRONG", None, 64, "failed", ValuesOff),
    ],
)
def test_the_reason_of_the_end_is_reported(
    session: LocalSession, own: str, name: str, length: int | None, beyond: int, status: str, fact: type[Fact]
) -> None:
    """The search ends with the longest length that fits, and the reason why the next does not."""
    (found,) = find_max_lengths(
        try_lengths(session, [f"{own}:{name}"], plan_shortest(session), run="r", progress=NoProgress())
    )
    assert (found.length, found.beyond) == (length, beyond), found
    assert found.failure is not None
    assert (found.failure.status, type(found.failure.facts[0])) == (status, fact)


def test_a_length_of_which_the_memory_exceeds_the_limit_is_not_run(
    session: LocalSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A length is not run if its memory, predicted from the shorter lengths, exceeds the limit."""
    session.limits = Limits(memory_bytes=10**8, work_s=20)
    requests: list[Request[Any]] = []
    send = LocalSupervisor.send

    def record(self: LocalSupervisor, request: Request[Any], *, counts: bool = True) -> Any:
        requests.append(request)
        return send(self, request)

    monkeypatch.setattr(LocalSupervisor, "send", record)
    results = list(try_lengths(session, ["batched_matmul"], plan_shortest(session), run="r", progress=NoProgress()))
    by_case = {one.case: one.findings[0] for one in results}
    assert by_case[CASE.format(1024)].status == "passed"
    not_run = by_case[CASE.format(2048)]
    assert not_run.status == "not_run"
    (over,) = not_run.facts
    assert isinstance(over, OverMemoryLimit)
    assert (over.what, over.limit_bytes) == ("predicted", 10**8)
    attempts = [one for one in results if one.findings[0].status != "not_run"]
    assert sum(isinstance(request, TryPass) for request in requests) == len(attempts) < len(results)


def test_stored_lengths_are_not_tried_again(session: LocalSession, own: str) -> None:
    """A resumed search does not try lengths with stored results again.

    If the result of one length is missing, only that length is tried again.
    """
    names, plans = [f"{own}:REFUSES"], plan_shortest(session)
    first = list(try_lengths(session, names, plans, run="r", progress=NoProgress()))
    done = {(one.implementation, one.case): one for one in first}
    assert list(try_lengths(session, names, plans, run="r", progress=NoProgress(), done=done)) == []
    del done[first[-1].implementation, first[-1].case]
    (again,) = try_lengths(session, names, plans, run="r", progress=NoProgress(), done=done)
    assert again.findings == first[-1].findings


def test_a_crash_and_exhausted_memory_count_for_one_length(own: str) -> None:
    """A crash or exhausted memory is reported for the length that caused it; the next length runs in a new process."""
    limits = Limits(threads=1, memory_bytes=4 * 10**8, work_s=20, timeout_s=600)
    with Session(limits=limits) as session:
        results = list(try_lengths(session, [f"{own}:CRASHES"], plan_shortest(session), run="r", progress=NoProgress()))
    (found,) = find_max_lengths(results)
    assert (found.length, found.beyond) == (128, 192)
    assert found.failure is not None
    assert found.failure.facts == (Crashed(how="exit", code=9),)
    (memory,) = (one.findings[0] for one in results if one.case == CASE.format(256))
    assert memory.status == "out_of_memory"
    raised, limited = memory.facts
    assert isinstance(raised, Raised)
    assert "40000000000 bytes" in raised.message
    assert limited == LimitedMemory(limit_bytes=4 * 10**8)


def test_the_command_stores_and_prints(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``profile --frontier`` stores a run, and prints a line per search with the reason why the search ended.

    The exit code is 0 if each search found a length that fits.
    """
    monkeypatch.setattr("attnbench.cli.max_length.find_operators", lambda *_: ["multihead"])
    monkeypatch.setattr(
        "attnbench.cli.max_length.choose_timed_implementations", lambda _session, chosen, **_: list(chosen)
    )
    monkeypatch.setattr(
        "attnbench.cli.max_length.make_session", lambda job: LocalSession(limits=Limits(work_s=job.work_limit_s))
    )
    output = io.StringIO()
    output.name = "-"  # type: ignore[attr-defined]
    job = ProfileJob(
        implementations=(f"{own}:REFUSES",), timeout_s=60.0, memory_bytes=4 * 10**8, work_limit_s=2.0, threads=1,
        passes=("forward",), results=tmp_path / "stored", frontier=True,
    )  # fmt: skip
    assert search_max_lengths(job, None, OutputFiles(json_file=output)) == 0
    (file,) = tmp_path.glob("stored/*/*.jsonl")
    (found,) = find_max_lengths(read_run(file).results)
    assert (found.length, found.beyond) == (256, 320)
    assert "320: unsupported: too long for it" in capsys.readouterr().err
    statuses = [finding["status"] for finding in json.loads(output.getvalue())["findings"]]
    assert statuses == ["passed", "passed", "passed", "unsupported", "unsupported", "unsupported"]


def test_options_without_effect_are_refused() -> None:
    """Options that choose lengths or timing processes are refused: a search chooses its lengths and times nothing."""
    for name, value in {"lengths": 8, "cases": "*", "processes": 1, "case_budget_s": 1}.items():
        with pytest.raises(JobError, match=rf"^frontier: .*leave out {name}$"):
            build(ProfileJob, {"frontier": True, name: value})
