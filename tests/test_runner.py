"""Hostile implementations: each spoils its own findings, and nothing else."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.cases import Case
from attnbench.operators.multihead import MultiheadProblem
from attnbench.records import Finding, Result
from attnbench.registry import PluginError
from attnbench.runner import Expectation, ExpectationError, Limits, Session, Silent, conform, read_expectations

LINK = "https://example.org/1"

# What one implementation does in its first call, by the seed of the case.
MOODS = """
import math
import sys

import torch

from attnbench.interface import Implementation, Refusal

MOODS = [
    "well", "raises", "exits", "interrupts", "none", "bare", "list", "shape", "nan", "text", "prints", "refuses",
    "subclass", "sparse", "untrue", "unsure", "long", "endless", "shy", "dtype", "recursion", "forks", "sulks",
]


class Odd(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError("I am odd")


def mood_of(case):
    return MOODS[case.problem.seed]


def spoil(mood, output):
    if mood == "raises":
        raise ValueError("what\\n a pity")
    if mood == "exits":
        sys.exit(0)
    if mood == "interrupts":
        raise KeyboardInterrupt
    if mood == "refuses":
        raise Refusal("not today")
    if mood == "recursion":
        return spoil(mood, output)
    if mood == "prints":
        print('{"status": "observed"}', flush=True)
        print("x" * 100_000, file=sys.stderr)
    if mood == "forks":
        import os

        os.fork()
    return {
        "none": None,
        "bare": output,
        "list": [output, None],
        "shape": (output[:, :-1], None),
        "nan": (torch.full_like(output, math.nan), None),
        "text": ("output", None),
        "subclass": (output.detach().as_subclass(Odd), None),
        "sparse": (output.to_sparse(), None),
        "dtype": (output.double(), None),
    }.get(mood, (output, None))


class Moody(Implementation):
    def unsupported(self, case):
        if mood_of(case) == "sulks":
            raise RuntimeError("asked too much")
        return {"untrue": True, "shy": "written for others"}.get(mood_of(case))

    def predicted_s(self, case):
        return {"unsure": "soon", "long": 1e6, "endless": math.inf}.get(mood_of(case))

    def build(self, reference):
        return reference

    def prepare(self, module, case, inputs):
        mood = mood_of(case)
        return lambda **arguments: spoil(mood, module(**arguments)[0])


MOODY = Moody()
"""

# What each mood is told by: status, and a part of the reason.
TOLD = {
    "well": ("passed", ""),
    "raises": ("error", "ValueError: what a pity (at moody.py:"),
    "exits": ("error", "SystemExit: 0 (at moody.py:"),
    "interrupts": ("error", "KeyboardInterrupt:  (at moody.py:"),
    "none": ("failed", "the call must return a tuple (output, weights), got NoneType."),
    "bare": ("failed", "the call must return a tuple (output, weights), got Tensor."),
    "list": ("failed", "the call must return a tuple (output, weights), got list."),
    "shape": ("failed", "output has shape (2, 4, 24), must be (2, 5, 24)."),
    "nan": ("failed", "output is nan at index (0, 0, 0)"),
    "text": ("failed", "output must be a Tensor, got str."),
    "prints": ("passed", ""),
    "refuses": ("unsupported", "not today"),
    "subclass": ("error", "I am odd"),
    "sparse": ("error", "cannot be judged"),
    "untrue": ("failed", "unsupported(case) must return str or None, got True."),
    "unsure": ("failed", "predicted_s(case) must return float or None, got 'soon'."),
    "long": ("not_run", "predicted 1e+06 s a call, over the limit of 2 s (--work-limit)"),
    "endless": ("not_run", "predicted inf s a call, over the limit of 2 s (--work-limit)"),
    "shy": ("unsupported", "written for others"),
    "dtype": ("failed", "output has dtype float64, must be float32."),
    "recursion": ("error", "RecursionError: maximum recursion depth exceeded"),
    "forks": ("passed", ""),
    "sulks": ("error", "RuntimeError: asked too much (at moody.py:"),
}

# Each ends or blocks its process on the cases with these seeds, and is right on the others.
DEADLY = """
import ctypes
import os
import time

import torch

from attnbench.interface import Implementation


class Deadly(Implementation):
    def __init__(self, act, seeds):
        self.act = act
        self.seeds = seeds

    def build(self, reference):
        return reference

    def prepare(self, module, case, inputs):
        return self.spoiled if case.problem.seed in self.seeds else module

    def spoiled(self, **arguments):
        self.act()


SEGFAULTS = Deadly(lambda: ctypes.string_at(0), {1})
HANGS = Deadly(lambda: time.sleep(60), {1})
DIES_ALWAYS = Deadly(lambda: os._exit(9), range(1, 9))
TAKES_MUCH = Deadly(lambda: torch.zeros(10**9), {1})
"""

POISON = '''
import torch
from torch import Tensor

from attnbench.interface import Implementation


class Poison(Implementation):
    """Returns zeros, and bends what could tell."""

    def build(self, reference):
        torch.allclose = torch.equal = lambda *_, **__: True
        torch.matmul = torch.nn.functional.linear = lambda x, *_: torch.zeros_like(x)
        torch.nn.MultiheadAttention.forward = lambda self, query, *_, **__: (torch.zeros_like(query), None)
        Tensor.__eq__ = lambda self, _: torch.ones_like(self, dtype=torch.bool)
        Tensor.__ne__ = Tensor.__gt__ = lambda self, _: torch.zeros_like(self, dtype=torch.bool)
        Tensor.__sub__ = Tensor.double = Tensor.abs = lambda self, *_: torch.zeros_like(self)
        return reference

    def prepare(self, module, case, inputs):
        return lambda query, **_: (torch.zeros_like(query), None)
'''


def case(seed: int = 0) -> str:
    """Case that needs no weights and no gradients."""
    problem = MultiheadProblem(batch=2, queries=5, keys=7, embed_dim=24, num_heads=3, bias=True, batch_first=True)
    return Case(operator="multihead", problem=replace(problem, seed=seed), mode="inference").id


@pytest.fixture(scope="module")
def shared() -> Iterator[Session]:
    """Session of the whole module: one judge for all that these implementations do."""
    with Session() as opened:
        yield opened


@pytest.fixture
def session(shared: Session) -> Session:
    """The session, with the usual limits."""
    shared.limits = Limits()
    return shared


def found(session: Session, name: str, seeds: range, expectations: tuple[Expectation, ...] = ()) -> list[Finding]:
    """Finding of parity with the oracle, for each case."""
    plans = session.plan([case(seed) for seed in seeds], frozenset({"forward_parity"}))
    results: Iterator[Result] = conform(session, [name], plans, run="r", steps=Silent(), expectations=expectations)
    return [finding for result in results for finding in result.findings]


def written(folder: Path, name: str, text: str) -> str:
    """Path of a file with that text."""
    (folder / name).write_text(text)
    return str(folder / name)


def test_whatever_a_call_does_is_a_finding_of_its_case(session: Session, tmp_path: Path) -> None:
    """Exceptions, exits, interrupts, malformed answers and lies are told case by case; no process dies of them."""
    session.limits = Limits(work_s=2)
    told = found(session, written(tmp_path, "moody.py", MOODS) + ":MOODY", range(len(TOLD)))
    # In the order of the seeds, which is that of MOODS in the file.
    order = MOODS.partition("MOODS = [")[2].partition("]")[0].replace('"', "").replace(",", " ").split()
    assert sorted(order) == sorted(TOLD)
    for mood, finding in zip(order, told, strict=True):
        status, reason = TOLD[mood]
        assert (mood, finding.status) == (mood, status), finding.reason
        assert reason in finding.reason, mood
        assert "\n" not in finding.reason
        assert str(tmp_path) not in finding.reason


def test_segmentation_fault_costs_one_finding(session: Session, tmp_path: Path) -> None:
    """A crash is a finding, and the cases after it run in a fresh process."""
    told = found(session, written(tmp_path, "deadly.py", DEADLY) + ":SEGFAULTS", range(3))
    assert [finding.status for finding in told] == ["passed", "crashed", "passed"]
    assert told[1].reason == "the process was killed by SIGSEGV"


def test_hanging_is_a_time_out(session: Session, tmp_path: Path) -> None:
    """A call that does not end is ended; the option that sets the time is named."""
    session.limits = Limits(timeout_s=3)
    told = found(session, written(tmp_path, "deadly.py", DEADLY) + ":HANGS", range(3))
    assert [finding.status for finding in told] == ["passed", "timeout", "passed"]
    assert told[1].reason == "no answer within 3 s (--timeout)"


def test_after_three_deaths_the_rest_is_not_run(session: Session, tmp_path: Path) -> None:
    """An implementation that keeps dying is given up, with the last death as the reason."""
    told = found(session, written(tmp_path, "deadly.py", DEADLY) + ":DIES_ALWAYS", range(6))
    assert [finding.status for finding in told] == ["passed", "crashed", "crashed", "crashed", "not_run", "not_run"]
    assert told[-1].reason == "its process ended 3 times, the last time: the process exited with code 9"


def test_memory_limit_is_told_as_such(session: Session, tmp_path: Path) -> None:
    """Memory that is refused under --memory-limit is out_of_memory, and the process lives on."""
    session.limits = Limits(memory_bytes=10**9, threads=1)
    told = found(session, written(tmp_path, "deadly.py", DEADLY) + ":TAKES_MUCH", range(3))
    assert [finding.status for finding in told] == ["passed", "out_of_memory", "passed"]
    assert "4000000000 bytes" in told[1].reason


def test_patching_torch_poisons_only_oneself(session: Session, tmp_path: Path) -> None:
    """An implementation that bends torch's comparisons, operators and the reference is found wrong all the same."""
    poison = written(tmp_path, "poison.py", POISON) + ":Poison"
    plans = session.plan([case()], frozenset({"forward_parity"}))
    results = list(conform(session, [poison, "sdpa"], plans, run="r", steps=Silent()))
    assert [result.implementation for result in results] == ["poison.py:Poison", "sdpa"]
    assert [result.findings[0].status for result in results] == ["failed", "passed"]
    assert "240 of 240 elements (100.0%) of output are off" in results[0].findings[0].reason


def test_implementation_that_cannot_be_loaded_again_is_given_up(session: Session, tmp_path: Path) -> None:
    """A file that a death leaves unusable ends its own implementation, not the run."""
    source = DEADLY.replace(
        "SEGFAULTS =", "if os.path.exists(__file__ + '.seen'): raise OSError('locked')\nSEGFAULTS ="
    ).replace("ctypes.string_at(0)", "(open(__file__ + '.seen', 'w'), os._exit(1))")
    told = found(session, written(tmp_path, "deadly.py", source) + ":SEGFAULTS", range(3))
    assert [finding.status for finding in told] == ["passed", "crashed", "crashed"]
    assert "OSError: locked" in told[-1].reason


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("ONE = 3", "is int; an implementation is an nn.Module class"),
        ("import sys; sys.exit('no licence')", "the process exited with code 1 (no licence)"),
        (
            "from attnbench.interface import Implementation\nclass ONE(Implementation):\n    operator = 'flash'",
            "computes an unknown operator 'flash'; available: multihead",
        ),
    ],
)
def test_what_is_no_implementation_is_told(session: Session, tmp_path: Path, source: str, reason: str) -> None:
    """A file that ends its process, or that holds something else, is one line that names it."""
    name = written(tmp_path, "one.py", source) + ":ONE"
    with pytest.raises(PluginError) as raised:
        found(session, name, range(1))
    assert name in str(raised.value)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_environment_is_set_before_the_process_starts(session: Session, tmp_path: Path) -> None:
    """An implementation that asks for environment variables gets them, numbers as text."""
    source = """
import os

from attnbench.interface import Implementation

AT_IMPORT = os.environ.get("ANSWER")


class Asks(Implementation):
    def environment(self):
        return {"ANSWER": 42}

    def build(self, reference):
        return reference

    def unsupported(self, case):
        return f"ANSWER is {AT_IMPORT}"
"""
    (told,) = found(session, written(tmp_path, "asks.py", source) + ":Asks", range(1))
    assert told == Finding(check="forward_parity", status="unsupported", reason="ANSWER is 42")


def test_expected_failures_are_told_apart(session: Session, tmp_path: Path) -> None:
    """A failure that is expected carries its reason and link; a pass that is not expected is reported.

    A crash is never expected.
    """
    (tmp_path / "moody.py").write_text(MOODS)
    (tmp_path / "deadly.py").write_text(DEADLY)
    file = tmp_path / "expected.toml"
    entry = '[[expected]]\nimplementation = "{}"\ncheck = "forward_*"\ncase = "*"\nreason = "known"\nlink = "{}"\n'
    file.write_text(entry.format("moody.py:MOODY", LINK) + entry.format("deadly.py:SEGFAULTS", LINK))
    expected = tuple(read_expectations(file))
    well, raises = found(session, f"{tmp_path}/moody.py:MOODY", range(2), expected)
    assert well.status == "unexpected_pass"
    assert well.reason == f"expected to fail (known): remove the entry, {LINK}"
    assert raises.status == "expected_failure"
    assert raises.reason.startswith(f"known ({LINK}): ValueError: what a pity")
    (crashed,) = found(session, f"{tmp_path}/deadly.py:SEGFAULTS", range(1, 2), expected)
    assert crashed.status == "crashed"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[expected]\n", "cannot read expected failures from"),
        ("expected = 3\n", "expected must be a list of tables, each under a line [[expected]]"),
        ('expected = ["sdpa"]\n', "expected must be a list of tables, each under a line [[expected]]"),
        (
            '[[expected]]\nimplementation = "sdpa"\n',
            "entry 1 needs the strings implementation, check, case, reason, link, got ['implementation']",
        ),
        ("\udcff", "cannot read expected failures from"),
    ],
)
def test_malformed_file_of_expected_failures_is_one_line(tmp_path: Path, text: str, fault: str) -> None:
    """A file that is no list of expected failures is refused with what is wrong in it."""
    file = tmp_path / "expected.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ExpectationError) as raised:
        read_expectations(file)
    assert str(file) in str(raised.value)
    assert fault in str(raised.value)
