"""Hostile implementations: each spoils its own findings, and nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.cases import Case, Mode
from attnbench.operators.multihead import MultiheadProblem
from attnbench.plugins.registry import PluginError
from attnbench.records.types import Finding, Result
from attnbench.runner import Expectation, ExpectationError, Limits, NoProgress, Session, audit, conform, read_expectations

LINK = "https://example.org/1"
# Checks of a case with a padding mask, in their order.
SEVERAL = ("forward_parity", "input_gradients", "padding_cannot_leak", "inputs_untouched", "global_state_untouched")
# Writes to its caller's mask what is there already when it is called again.
WRITES = """
import torch


class Writes(torch.nn.MultiheadAttention):
    def forward(self, query, key, value, key_padding_mask=None, **given):
        if key_padding_mask is not None:
            key_padding_mask[:, :1] = True
        return super().forward(query, key, value, key_padding_mask=key_padding_mask, **given)
"""

# What one implementation does in its first call, by the seed of the case.
MOODS = """
import math
import sys

import torch

from attnbench.interface import Implementation, Refusal

MOODS = [
    "well", "raises", "exits", "interrupts", "none", "bare", "list", "shape", "nan", "text", "prints", "refuses",
    "subclass", "sparse", "untrue", "unsure", "long", "endless", "shy", "dtype", "recursion", "forks", "sulks",
    "liar", "floods", "unsettles", "well",
]


class Odd(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError("I am odd")


class Liar(torch.Tensor):
    shape = torch.Size([2, 5, 24])

    def size(self, *_):
        return self.shape

    def numel(self):
        return 240


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
    if mood == "floods":
        for _ in range(30):
            print("x" * 1_000_000)
    if mood == "unsettles":
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(True)
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(7)
    return {
        "none": None,
        "bare": output,
        "list": [output, None],
        "shape": (output[:, :-1], None),
        "nan": (torch.full_like(output, math.nan), None),
        "text": ("output", None),
        "subclass": (output.detach().as_subclass(Odd), None),
        "sparse": (output.to_sparse(), None),
        "liar": (output.detach()[:, :-1].as_subclass(Liar), None),
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

ORDER = MOODS.partition("MOODS = [")[2].partition("]")[0].replace('"', "").replace(",", " ").split()

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
    "nan": ("failed", "output is nan at batch 0, query 0, feature 0"),
    "text": ("failed", "output must be a Tensor, got str."),
    "prints": ("passed", ""),
    "refuses": ("unsupported", "not today"),
    "subclass": ("passed", ""),
    "sparse": ("error", "Sparse"),
    "untrue": ("failed", "unsupported(case) must return str or None, got True."),
    "unsure": ("failed", "predicted_s(case) must return float or None, got 'soon'."),
    "long": ("not_run", "predicted 1e+06 s a call, over the limit of 2 s (--work-limit)"),
    "endless": ("not_run", "predicted inf s a call, over the limit of 2 s (--work-limit)"),
    "shy": ("unsupported", "written for others"),
    "dtype": ("failed", "output has dtype float64, must be float32."),
    "recursion": ("error", "RecursionError: maximum recursion depth exceeded"),
    "forks": ("passed", ""),
    "sulks": ("error", "RuntimeError: asked too much (at moody.py:"),
    "liar": ("failed", "output has shape (2, 4, 24), must be (2, 5, 24)."),
    "floods": ("passed", ""),
    "unsettles": ("passed", ""),
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


# One request holds all checks of a case; each of these dies in one of them, or only when all are asked in turn.
TOGETHER = """
import os
import time
from pathlib import Path

from attnbench.interface import Implementation


class Counted(Implementation):
    def __init__(self, act):
        self.act = act
        self.calls = 0

    def build(self, reference):
        return reference

    def prepare(self, module, case, inputs):
        def call(**arguments):
            self.calls += 1
            self.act(self, arguments)
            return module(**arguments)

        return call


def dies_of_padding(self, arguments):
    # The check padding_cannot_leak writes large numbers over padded tokens.
    if arguments["value"].detach().abs().max() > 1e3:
        os._exit(9)


def dies_of_many(self, arguments):
    if self.calls > 6:
        os._exit(9)


def waits_for_padding(self, arguments):
    if arguments["value"].detach().abs().max() > 1e3:
        time.sleep(60)


PADDING = Counted(dies_of_padding)
MANY = Counted(dies_of_many)
WAITS = Counted(waits_for_padding)
"""

# Takes no padding mask, and says so; what it does when it is given one is in its name.
REFUSES = """
import ctypes

import torch

from attnbench.interface import Implementation


class Refuses(Implementation):
    def __init__(self, act):
        self.act = act

    def unsupported(self, case):
        return None if case.problem.mask == "none" else "no masks"

    def build(self, reference):
        return reference

    def prepare(self, module, case, inputs):
        if self.unsupported(case) is None:
            return module
        return lambda **arguments: self.act(module, arguments)


def raises(module, arguments):
    raise NotImplementedError("no masks")


def ignores(module, arguments):
    del arguments["key_padding_mask"]
    return module(**arguments)


def detaches(module, arguments):
    output, weights = module(**arguments)
    return output.detach(), weights


def forgets(module, arguments):
    output, weights = module(**arguments)
    return output, None


RAISES = Refuses(raises)
IGNORES = Refuses(ignores)
WORKS = Refuses(lambda module, arguments: module(**arguments))
DIES = Refuses(lambda module, arguments: ctypes.string_at(0))
NOTHING = Refuses(lambda module, arguments: None)
DETACHES = Refuses(detaches)
FORGETS = Refuses(forgets)
"""


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
    results: Iterator[Result] = conform(
        session, [name], plans, run="r", progress=NoProgress(), expectations=expectations
    )
    return [finding for result in results for finding in result.findings]


def written(folder: Path, name: str, text: str) -> str:
    """Path of a file with that text."""
    (folder / name).write_text(text)
    return str(folder / name)


def test_whatever_a_call_does_is_a_finding_of_its_case(session: Session, tmp_path: Path) -> None:
    """Exceptions, exits, interrupts, malformed answers and lies are told case by case; no process dies of them."""
    session.limits = Limits(work_s=2)
    told = found(session, written(tmp_path, "moody.py", MOODS) + ":MOODY", range(len(ORDER)))
    # In the order of the seeds, which is that of MOODS in the file; it ends well.
    assert sorted(ORDER) == sorted([*TOLD, "well"])
    for mood, finding in zip(ORDER, told, strict=True):
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


PADDED = replace(
    MultiheadProblem(batch=2, queries=5, keys=7, embed_dim=24, num_heads=3, bias=True, batch_first=True), mask="pad"
)


def padded(mode: Mode = "eval", **changes: Any) -> str:
    """Case with a padding mask."""
    return Case(operator="multihead", problem=replace(PADDED, **changes), mode=mode).id


def by_check(session: Session, name: str, cases: Sequence[str], *checks: str) -> list[dict[str, Finding]]:
    """Findings of each case by check, of those checks or of all."""
    plans = session.plan(cases, frozenset(checks) or None)
    results = conform(session, [name], plans, run="r", progress=NoProgress())
    return [{finding.check: finding for finding in result.findings} for result in results]


def test_a_crash_is_told_of_its_own_check(session: Session, tmp_path: Path) -> None:
    """Where all checks of a case are observed at once, a death is laid on the check that dies alone, and on no other.

    It is one of the three deaths, not two.
    """
    name = written(tmp_path, "together.py", TOGETHER) + ":PADDING"
    cases = [padded(seed=seed) for seed in range(2)]
    told = by_check(session, name, cases, "forward_parity", "input_gradients", "padding_cannot_leak", "repeats_itself")
    for findings in told:
        assert {check for check, finding in findings.items() if finding.status == "crashed"} == {"padding_cannot_leak"}
        assert findings["padding_cannot_leak"].reason == "the process exited with code 9"
        assert {f.status for check, f in findings.items() if check != "padding_cannot_leak"} == {"passed"}


def test_a_crash_of_no_single_check_is_told(session: Session, tmp_path: Path) -> None:
    """What dies only after many calls is told at the last check, and counts as a death."""
    name = written(tmp_path, "together.py", TOGETHER) + ":MANY"
    told = by_check(session, name, [padded(seed=seed) for seed in range(5)], *SEVERAL)
    assert [findings[SEVERAL[-1]].status for findings in told] == ["passed", "crashed", "crashed", "crashed", "not_run"]
    assert told[1][SEVERAL[-1]].reason == (
        "the process exited with code 9 after checks of other cases; in a fresh process no check of this case did that"
    )
    assert {told[1][check].status for check in SEVERAL[:-1]} == {"passed"}


def test_hanging_is_told_of_its_own_check(session: Session, tmp_path: Path) -> None:
    """A check that does not end costs itself alone."""
    session.limits = Limits(timeout_s=4)
    name = written(tmp_path, "together.py", TOGETHER) + ":WAITS"
    (told,) = by_check(session, name, [padded()], "forward_parity", "padding_cannot_leak", "repeats_itself")
    assert {check: finding.status for check, finding in told.items()} == {
        "forward_parity": "passed", "padding_cannot_leak": "timeout", "repeats_itself": "passed",
    }  # fmt: skip


def test_what_a_call_writes_once_is_told(session: Session, tmp_path: Path) -> None:
    """Nobody has called before the check that looks at the caller's tensors."""
    (told,) = by_check(session, written(tmp_path, "mine.py", WRITES) + ":Writes", [padded()], *SEVERAL)
    assert told["inputs_untouched"].status == "failed"
    assert "key_padding_mask after the call" in told["inputs_untouched"].reason


def test_settings_of_one_call_do_not_reach_the_next(session: Session, tmp_path: Path) -> None:
    """What a call changes in torch is told by the check of that, and the cases after it run as if it had not been."""
    source = MOODS.replace("return MOODS[case.problem.seed]", "return ['well', 'unsettles', 'well'][case.problem.seed]")
    cases = [padded(seed=seed) for seed in range(3)]
    told = by_check(session, written(tmp_path, "moody.py", source) + ":MOODY", cases, *SEVERAL)
    statuses = [findings["global_state_untouched"].status for findings in told]
    assert statuses == ["passed", "failed", "passed"]
    for word in ("the default dtype", "the use of deterministic algorithms"):
        assert word in told[1]["global_state_untouched"].reason


# What is declared unsupported


@pytest.mark.parametrize(
    ("act", "status", "reason", "warnings"),
    [
        ("RAISES", "unsupported", "no masks", ()),
        ("WORKS", "unsupported", "no masks", ("works: declare it",)),
        (
            "IGNORES", "failed",
            "declared unsupported (no masks), yet it returned a wrong result instead of refusing: The output ", (),
        ),
        (
            "NOTHING", "failed",
            "declared unsupported (no masks), yet it returned a wrong result instead of refusing: the call must return "
            "a tuple (output, weights), got NoneType.", (),
        ),
        (
            "DIES", "crashed",
            "declared unsupported (no masks), yet it did not refuse: the process was killed by SIGSEGV", (),
        ),
        (
            "DETACHES", "unsupported", "no masks",
            ("returns an output without gradients where they are asked for, instead of refusing",),
        ),
        (
            "FORGETS", "unsupported", "no masks",
            ("returns no weights where they are asked for, instead of refusing",),
        ),
    ],
)  # fmt: skip
def test_what_is_declared_unsupported_must_be_refused_aloud(
    session: Session, tmp_path: Path, act: str, status: str, reason: str, warnings: tuple[str, ...]
) -> None:
    """A refused case is called all the same: a wrong tensor is a failure, a right one a warning."""
    name = written(tmp_path, "refuses.py", REFUSES) + f":{act}"
    one = padded(need_weights=act == "FORGETS")
    (told,) = by_check(session, name, [one])
    parity = told.pop("forward_parity")
    assert (parity.status, parity.warnings) == (status, warnings)
    assert parity.reason.startswith(reason)
    others = {(finding.status, finding.reason) for check, finding in told.items()}
    assert ("unsupported", "no masks") in others
    assert {said for said, _ in others} <= {"unsupported", status}


def test_a_refusal_is_not_tried_where_it_would_take_long(session: Session, tmp_path: Path) -> None:
    """Neither a case over the work limit nor one that is compiled is called to hear its refusal."""
    source = REFUSES.replace(
        "    def build(", "    def predicted_s(self, case):\n        return 10.0 * case.problem.seed\n\n    def build("
    )
    name = written(tmp_path, "refuses.py", source) + ":IGNORES"
    told = by_check(session, name, [padded(seed=0), padded(seed=1), padded(mode="aot")])
    assert [{f.status for f in findings.values()} for findings in told] == [
        {"unsupported", "failed"}, {"unsupported"}, {"unsupported"},
    ]  # fmt: skip


def test_what_works_though_declared_unsupported_is_no_matter_of_other_checks(session: Session, tmp_path: Path) -> None:
    """The warning belongs to the comparison with the oracle, which a filter may have left out."""
    name = written(tmp_path, "refuses.py", REFUSES) + ":WORKS"
    (told,) = by_check(session, name, [padded()], "inputs_untouched")
    assert [(finding.status, finding.warnings) for finding in told.values()] == [("unsupported", ())]


# Time and memory


def test_hanging_is_a_time_out(session: Session, tmp_path: Path) -> None:
    """A call that does not end is ended; the option that sets the time is named."""
    session.limits = Limits(timeout_s=3)
    told = found(session, written(tmp_path, "deadly.py", DEADLY) + ":HANGS", range(3))
    assert [finding.status for finding in told] == ["passed", "timeout", "passed"]
    assert told[1].reason == "no answer within 3 s (--timeout)"


@pytest.mark.parametrize(("shared_by", "status"), [(1, "timeout"), (3, "unsupported")])
def test_what_several_share_may_take_longer(session: Session, tmp_path: Path, shared_by: int, status: str) -> None:
    """A request about three implementations has three times the time of one."""
    source = "from attnbench.interface import Implementation, Refusal\nimport time\n"
    source += "class Slow(Implementation):\n    def unsupported(self, case):\n        time.sleep(1.5)\n"
    source += "        raise Refusal('slow')\n"
    name = written(tmp_path, "slow.py", source) + ":Slow"
    with session.supervise(name) as worker:
        session.limits = Limits(timeout_s=1.0)
        answer = worker.ask("describe", shared_by=shared_by, implementation=name, case=case())
    assert answer["status"] == status


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
    results = conform(session, [poison, "sdpa"], plans, run="r", progress=NoProgress())
    told = {result.implementation: result.findings[0] for result in results}
    assert {name: finding.status for name, finding in told.items()} == {"poison.py:Poison": "failed", "sdpa": "passed"}
    assert "240 of 240 elements (100.0%) of output are off" in told["poison.py:Poison"].reason


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
            "computes an unknown operator 'flash'; available: additive_pooling, attention_core, ",
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
    assert (told.status, told.reason) == ("unsupported", "ANSWER is 42")


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
    assert well.reason == f"expected to fail (known, {LINK}): remove entry 1 of expected.toml, or narrow it by unless"
    assert raises.status == "expected_failure"
    assert raises.reason.startswith(f"known ({LINK}): ValueError: what a pity")
    elsewhere = tuple(replace(one, passes_where="the machine has no such kernel") for one in expected)
    statuses = [one.status for one in found(session, f"{tmp_path}/moody.py:MOODY", range(2), elsewhere)]
    assert statuses == ["passed", "expected_failure"]
    (crashed,) = found(session, f"{tmp_path}/deadly.py:SEGFAULTS", range(1, 2), expected)
    assert crashed.status == "crashed"


def test_an_entry_may_name_several_checks_and_leave_cases_out(tmp_path: Path) -> None:
    """Patterns are separated by blanks; what ``unless`` matches is not spoken of."""
    file = tmp_path / "expected.toml"
    file.write_text(
        '[[expected]]\nimplementation = "mine"\ncheck = "forward_* weights_parity"\ncase = "*/mask=pad/*"\n'
        f'unless = "*add_* *regime=flat*"\nreason = "known"\nlink = "{LINK}"\n'
    )
    (entry,) = read_expectations(file)
    spoken = [
        (case, check)
        for case in ("m/mask=pad/regime=plain", "m/mask=pad/regime=flat", "m/add_bias_kv/mask=pad/x", "m/mask=none/x")
        for check in ("forward_parity", "weights_parity", "weights_are_shares")
        if entry.covers("mine", case, check)
    ]
    assert spoken == [
        ("m/mask=pad/regime=plain", "forward_parity"),
        ("m/mask=pad/regime=plain", "weights_parity"),
    ]


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


ENTRY = '[[expected]]\nimplementation = "{}"\ncheck = "{}"\ncase = "{}"\nreason = "known"\nlink = "x"\n'
# Cases of a pattern, and a pattern that leaves all of them out.
NONE_LEFT = '*/mask=bool3d/*"\nunless = "*/mask=bool3d/*'


@pytest.mark.parametrize(
    ("implementation", "check", "pattern", "fault"),
    [
        ("spda", "forward_parity", "*", "no implementation 'spda'; did you mean 'sdpa'?"),
        ("mine.py:MISSING", "forward_parity", "*", "no implementation 'mine.py:MISSING'; remove the entry, or correct"),
        ("other.py:MINE", "forward_parity", "*", "no implementation 'other.py:MINE'"),
        ("sdpa", "forward_party", "*", "no check 'forward_party'; did you mean 'forward_parity' or 'shares_parity'?"),
        ("sdpa", "nothing_*", "*", "no check 'nothing_*'; remove the entry, or correct it"),
        ("sdpa", "*", "multihead/*/mask=bool4d/*", "applies to no case of any suite whose id matches"),
        (
            "sdpa",
            "input_gradients",
            "*/inference",
            "'input_gradients' applies to no case of any suite whose id matches",
        ),
        ("sdpa", "*", NONE_LEFT, "matches '*/mask=bool3d/*' and none of '*/mask=bool3d/*'"),
    ],
)
def test_an_expectation_that_can_match_nothing_is_an_error(
    session: Session, tmp_path: Path, implementation: str, check: str, pattern: str, fault: str
) -> None:
    """An entry that has outlived what it speaks of is named, with its file and its number, before anything runs."""
    written(tmp_path, "mine.py", "MINE = 1\n")
    file = tmp_path / "expected.toml"
    file.write_text(ENTRY.format("sdpa", "*_parity", "*") + ENTRY.format(implementation, check, pattern))
    with pytest.raises(ExpectationError) as raised:
        audit(session, read_expectations(file), ["sdpa"])
    assert str(raised.value).startswith(f"{file} entry 2: ")
    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_expectation_need_not_speak_of_this_run(session: Session, tmp_path: Path) -> None:
    """Entries of other implementations, dtypes, devices and cases are right, whatever is run this time.

    So is one of a case that is in no suite and is run.
    """
    written(tmp_path, "mine.py", "class Mine: ...\n")
    file = tmp_path / "expected.toml"
    entries = [
        ("sdpa", "forward_parity", "*/float64/cuda/inference"),
        ("torch_mha", "*_gradients", "*/bfloat16/*"),
        ("mine.py:Mine", "*", "*"),
        ("attnzoo.sdpa:SDPA", "*", "*"),
        (f"{tmp_path.name}.py:RUN", "*", case(seed=123)),
    ]
    file.write_text("".join(ENTRY.format(*entry) for entry in entries))
    audit(session, read_expectations(file), [f"{tmp_path.name}.py:RUN"], [case(seed=123)])
