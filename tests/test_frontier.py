"""Frontiers: how lengths are chosen, what is not tried, what is stored, and where real implementations end."""

import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import click
import pytest
import torch

from attnbench.analysis.max_length import FITS, MaxLength, find_max_lengths
from attnbench.cli.max_length import UNUSED, print_max_lengths, search_max_lengths
from attnbench.interface import Inputs
from attnbench.records.run_file import RunFile, read_run
from attnbench.records.types import FRONTIER, Finding, Machine, Memory, Result, Run
from attnbench.runner import Limits, NoProgress, Plan, Session, list_gating_checks, list_profile_cases
from attnbench.runner.max_length import SHORTEST, WORKER, generate_lengths, predict_bytes, try_lengths
from attnbench.workers.max_length_worker import MaxLengthWorker, stretch
from attnbench.workers.oracle_worker import OracleWorker

CASE = (
    "multihead/B1.L{0}.S{0}.E256.H4/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/inference"
)

# Each meets its end at a length, in its own way; all are the reference below it.
SOURCE = """
import os
import time

import torch

from attnbench.interface import Implementation, Refusal


class Ends(Implementation):
    def __init__(self, length, act):
        self.length = length
        self.act = act

    def unsupported(self, case):
        return "too long for it" if self.act is None and case.problem.queries >= self.length else None

    def predicted_s(self, case):
        return 1e3 if self.act == "predicts" and case.problem.queries >= self.length else None

    def build(self, reference):
        return reference

    def prepare(self, module, case, inputs):
        if case.problem.queries < self.length or not callable(self.act):
            return module

        def call(**arguments):
            return self.act(module(**arguments))

        return call


def sleeps(answer):
    time.sleep(0.6)
    return answer


REFUSES = Ends(300, None)
PREDICTS = Ends(300, "predicts")
SLEEPS = Ends(200, sleeps)
DIES = Ends(150, lambda answer: os._exit(9) if answer[0].shape[1] < 256 else torch.empty(10**10))
NOT_FINITE = Ends(150, lambda answer: (answer[0] * float("nan"), None))
WRONG = Ends(0, lambda answer: (answer[0] + 1, None))
"""


def tried(fits: Callable[[int], bool], **limits: int) -> list[int]:
    """Lengths in the order in which they are tried."""
    turn = generate_lengths(**limits)
    seen = [next(turn)]
    while True:
        try:
            seen.append(turn.send(fits(seen[-1])))
        except StopIteration:
            return seen


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
def test_lengths_are_doubled_and_then_halved_between(end: int, expected: list[int]) -> None:
    """The longest that fits and the shortest that does not end an eighth of the last doubling apart, or 64 tokens."""
    seen = tried(lambda length: length <= end)
    assert seen == expected
    fitting = [length for length in seen if length <= end]
    beyond = min(length for length in seen if length > end)
    assert not fitting or beyond - max(fitting) <= max(max(fitting) // 8, 64)


def test_lengths_end_at_the_longest() -> None:
    """What fits at every length is not tried for ever."""
    assert tried(lambda _: True, shortest=64, longest=300) == [64, 128, 256]


def test_memory_of_the_next_length_is_predicted() -> None:
    """A parabola is met exactly; fewer than three lengths say nothing."""

    def taken(length: int) -> int:
        return 12 * length * length + 5_000 * length + 77

    known = {length: taken(length) for length in (64, 128, 256, 512)}
    assert predict_bytes(known, 2048) == taken(2048)
    assert predict_bytes({64: 1, 128: 2}, 256) is None
    # Something else at the shortest length is forgotten.
    assert predict_bytes(known | {64: 10**9}, 1024) == taken(1024)


def test_inputs_are_stretched_along_the_dimension_that_grows() -> None:
    """What doubles with the length is repeated, what does not stays; one tensor under two names stays one."""

    def inputs(length: int) -> Inputs:
        query, mask = torch.rand(1, length, 4), torch.rand(length, length)
        cotangents = {"output": torch.rand(1, length, 4), "weights": torch.rand(1, 2, length, length)}
        return Inputs(
            parameters={"w": torch.rand(4, 4)},
            tensors={"query": query, "key": query, "attn_mask": mask},
            options={"need_weights": False},
            cotangents=cotangents,
        )

    short = inputs(4)
    made = stretch(short, inputs(8), 3)
    assert made.tensors["query"].shape == (1, 12, 4)
    assert made.tensors["key"] is made.tensors["query"]
    assert made.tensors["attn_mask"].shape == (12, 12)
    assert torch.equal(made.tensors["query"][:, 4:8], short.tensors["query"])
    assert {name: tensor.shape for name, tensor in made.cotangents.items()} == {"output": (1, 12, 4)}
    assert made.parameters is short.parameters
    assert made.options == short.options


def result(length: int, status: str, reason: str = "", **fields: object) -> Result:
    """What came of one length."""
    finding = Finding(check=FITS, status=status, reason=reason, measured=length / 1e3)  # type: ignore[arg-type]
    made = Result(run="r", implementation="one", case=CASE.format(length), findings=(finding,), suite=FRONTIER)
    return replace(made, **fields)  # type: ignore[arg-type]


TRIED = [
    result(64, "passed", memory=Memory(peak_bytes=2**20, threads=1, method="m")),
    result(128, "passed", memory=Memory(peak_bytes=2**22, threads=1, method="m")),
    result(256, "not_run", "predicted 9 GiB"),
    result(192, "out_of_memory", "no more"),
]


def test_a_frontier_is_read_from_what_was_tried() -> None:
    """The longest that fits, what it took, and what the next one met; results of other suites say nothing of it."""
    (found,) = find_max_lengths([*TRIED, replace(TRIED[0], suite="perf")])
    assert found == MaxLength(
        implementation="one",
        case="multihead/float32/cpu/inference",
        length=128,
        took_s=0.128,
        peak_bytes=2**22,
        beyond=192,
        reason="out_of_memory: no more",
    )
    (nowhere,) = find_max_lengths([result(64, "crashed", "killed")])
    assert (nowhere.length, nowhere.beyond, nowhere.reason) == (None, 64, "crashed: killed")
    (everywhere,) = find_max_lengths(TRIED[:1])
    assert (everywhere.length, everywhere.beyond) == (64, None)


def test_frontiers_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each, with the reason why the next length does not fit."""
    print_max_lengths(TRIED)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["implementation", "pass", "dtype", "longest", "s", "per", "call", "peak", "MiB", "fails", "at"]
    assert lines[1] == ["one", "forward", "float32", "128", "0.128", "4", "192:", "out_of_memory:", "no", "more"]


def test_what_was_tried_is_stored_as_results(tmp_path: Path) -> None:
    """A frontier survives writing and reading."""
    machine = Machine(name="m", cpu="c", cores=1, memory_bytes=1)
    run = Run(id="r", time="t", command="c", machine=machine, versions={}, threads=1)
    with RunFile.create(tmp_path, run) as file:
        for one in TRIED:
            file.append(one)
    assert find_max_lengths(read_run(file.path).results) == find_max_lengths(TRIED)


class Here:
    """A supervisor of a worker in this process."""

    operator = "multihead"

    def __init__(self, session: Session, name: str) -> None:
        self._limits = session.limits
        self.path_prefix = session.folder / "worker"
        self._handlers = MaxLengthWorker().handlers()
        self.declared = {name: self._handlers["open"](implementation=name)}

    def ask(self, do: str, *, counts: bool = True, **request: Any) -> Any:
        """Answer of the worker."""
        return self._handlers[do](**request)

    def compute_memory_limit_bytes(self) -> int | None:
        """That of the session."""
        return self._limits.compute_memory_limit_bytes()

    def renew(self) -> None:
        """There is no process to end."""


class Inside(Session):
    """A session without processes; what ends one, or takes its memory, is not for it."""

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="attnbench-"))
        self.libraries = {"torch": str(torch.__version__), "threads": 1}
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder)

    def ask_oracle(self, do: str, **request: Any) -> Any:
        """Answer of the judge."""
        return OracleWorker(self.folder).handlers()[do](**request)

    def supervise_each(self, implementations: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """A worker of each."""
        for name in implementations:
            yield name, Here(self, name)


@pytest.fixture
def session() -> Iterator[Inside]:
    """Session in this process."""
    with Inside(limits=Limits(memory_bytes=4 * 10**8, work_s=0.5)) as opened:
        yield opened


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """File with the implementations."""
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(SOURCE)
    return str(file)


def shortest(session: Session) -> list[Plan]:
    """The forward pass at the shortest length."""
    return session.plan(list_profile_cases(session, [SHORTEST], ["forward"], of=("multihead",)), list_gating_checks())


@pytest.mark.parametrize(
    ("name", "length", "beyond", "reason"),
    [
        ("REFUSES", 256, 320, "unsupported: too long for it"),
        ("PREDICTS", 256, 320, "not_run: predicted 1e+03 s a call, over the limit of 0.5 s (--work-limit)"),
        ("SLEEPS", 192, 256, "timeout: a call took 0."),
        ("NOT_FINITE", 128, 192, "failed: output is not finite."),
        ("WRONG", None, 64, "failed: The output equals the oracle's within the error budget."),
    ],
)
def test_whatever_ends_it_is_told(
    session: Inside, own: str, name: str, length: int | None, beyond: int, reason: str
) -> None:
    """The search ends by itself, with the longest length below the end and what was met there."""
    (found,) = find_max_lengths(
        try_lengths(session, [f"{own}:{name}"], shortest(session), run="r", progress=NoProgress())
    )
    assert (found.length, found.beyond) == (length, beyond), found
    assert found.reason.startswith(reason)


def test_memory_out_of_reach_is_not_tried(session: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what holds all pairs the memory of a longer sequence is predicted from shorter ones, and that is that."""
    session.limits = Limits(memory_bytes=10**8, work_s=20)
    asked: list[str] = []
    ask = Here.ask
    monkeypatch.setattr(Here, "ask", lambda self, do, **request: (asked.append(do), ask(self, do, **request))[1])
    results = list(try_lengths(session, ["batched_matmul"], shortest(session), run="r", progress=NoProgress()))
    said = {one.case: one.findings[0] for one in results}
    assert said[CASE.format(1024)].status == "passed"
    refused = said[CASE.format(2048)]
    assert refused.status == "not_run"
    assert refused.reason == "predicted 0.193 GiB, over the limit of 0.0931 GiB (--memory-limit)"
    tries = [one for one in results if one.findings[0].status != "not_run"]
    assert asked.count("attempt") == len(tries) < len(results)


def test_what_was_tried_is_not_tried_again(session: Inside, own: str) -> None:
    """A search that goes on after a kill takes what is stored at its word, and ends where it would have."""
    names, plans = [f"{own}:REFUSES"], shortest(session)
    first = list(try_lengths(session, names, plans, run="r", progress=NoProgress()))
    done = {(one.implementation, one.case): one for one in first}
    assert list(try_lengths(session, names, plans, run="r", progress=NoProgress(), done=done)) == []
    del done[first[-1].implementation, first[-1].case]
    (again,) = try_lengths(session, names, plans, run="r", progress=NoProgress(), done=done)
    assert again.findings == first[-1].findings


def test_ends_of_processes_and_of_memory_are_contained(own: str) -> None:
    """What a length does to its process is told of that length, and the lengths after it run in a fresh one."""
    limits = Limits(threads=1, memory_bytes=4 * 10**8, work_s=2, timeout_s=60)
    with Session(limits=limits, worker_module=WORKER) as session:
        results = list(try_lengths(session, [f"{own}:DIES"], shortest(session), run="r", progress=NoProgress()))
    (found,) = find_max_lengths(results)
    assert (found.length, found.beyond) == (128, 192)
    assert found.reason == "crashed: the process exited with code 9"
    (memory,) = (one.findings[0] for one in results if one.case == CASE.format(256))
    assert memory.status == "out_of_memory"
    assert "40000000000 bytes" in memory.reason
    assert memory.reason.endswith("under the limit of 0.373 GiB (--memory-limit)")


def test_the_command_stores_and_prints(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``profile --frontier`` leaves a run file and a line for each; its code says whether something fits of each."""
    monkeypatch.setattr("attnbench.cli.max_length.find_operators", lambda *_: ["multihead"])
    monkeypatch.setattr(
        "attnbench.cli.max_length.choose_timed_implementations", lambda _session, chosen, **_: list(chosen)
    )
    monkeypatch.setattr(
        "attnbench.cli.max_length.make_session", lambda given: Inside(limits=Limits(work_s=given["work_limit"]))
    )
    told = io.StringIO()
    told.name = "-"  # type: ignore[attr-defined]
    given = {
        **dict.fromkeys(UNUSED), "dtypes": (), "device": "cpu", "shard": None, "timeout": 60.0,
        "memory_limit": 4 * 10**8, "work_limit": 2.0, "threads": 1, "passes": ("forward",),
        "results": tmp_path / "stored", "resume": None, "json_file": told, "operators": ("multihead",),
    }  # fmt: skip
    assert search_max_lengths([f"{own}:REFUSES"], given) == 0
    (file,) = tmp_path.glob("stored/*/*.jsonl")
    (found,) = find_max_lengths(read_run(file).results)
    assert (found.length, found.beyond) == (256, 320)
    assert "320: unsupported: too long for it" in capsys.readouterr().err
    statuses = [finding["status"] for finding in json.loads(told.getvalue())["findings"]]
    assert statuses == ["passed", "passed", "passed", "unsupported", "unsupported", "unsupported"]


def test_options_that_say_nothing_are_refused() -> None:
    """Lengths are what is looked for, and no timing process is started."""
    for name, option in UNUSED.items():
        given = {**dict.fromkeys(UNUSED), name: 1}
        with pytest.raises(click.UsageError, match=rf"leave out {option}$"):
            search_max_lengths([], given)
