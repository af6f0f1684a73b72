"""Tests of hostile implementations: one that crashes, hangs or misbehaves affects only its own findings."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.cases import Case, Mode
from attnbench.operators.multihead import MultiheadProblem
from attnbench.plugins.registry import PluginError, list_names
from attnbench.processes.candidate_requests import CandidateRequest, Declaration, Describe, Outcome
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import (
    AnsweredThoughRefused,
    CannotLoad,
    ComputesRefusedCase,
    Crashed,
    ExpectedToFail,
    MalformedAnswer,
    NotReproduced,
    OverWorkLimit,
    PassedUnexpectedly,
    Raised,
    ReturnsNoGradients,
    ReturnsNoWeights,
    TimedOut,
    TooManyDeaths,
)
from attnbench.records.types import Finding, Result
from attnbench.records.value_facts import (
    BitsDiffer,
    Compared,
    NotFinite,
    ValueFact,
    ValuesOff,
    WrongDtype,
    WrongShape,
    phrase,
)
from attnbench.refusals import OtherRefusal
from attnbench.runner import (
    Expectation,
    ExpectationError,
    Limits,
    NoProgress,
    Session,
    audit,
    conform,
    read_expectations,
    read_expectations_beside,
)
from time_limits import repeat_with_longer_limits

LINK = "https://example.org/1"
# Five checks that apply to a case with a padding mask, in the order in which they run.
SEVERAL = ("forward_parity", "input_gradients", "padding_cannot_leak", "inputs_untouched", "global_state_untouched")
# An implementation that changes its caller's mask in the first call; the further calls do not change the mask again.
WRITES = """
import torch


class Writes(torch.nn.MultiheadAttention):
    def forward(self, query, key, value, key_padding_mask=None, **given):
        if key_padding_mask is not None:
            key_padding_mask[:, :1] = True
        return super().forward(query, key, value, key_padding_mask=key_padding_mask, **given)
"""


# An implementation whose behaviour is chosen by the seed of the case.
def make_malformed(key: str, **values: str) -> MalformedAnswer:
    """Return the fact of an answer that does not have the required form."""
    return MalformedAnswer(what=phrase(key, **values))


SCRIPTED = """
import math
import sys

import torch

from attnbench.interface import Implementation, Refusal

BEHAVIOURS = [
    "right", "raises", "exits", "interrupts", "none", "bare", "list", "shape", "nan", "text", "prints", "refuses",
    "subclass", "sparse", "unsupported_true", "predicts_text", "predicts_long", "predicts_inf", "unsupported", "dtype",
    "recursion", "forks", "unsupported_raises", "false_shape", "floods", "changes_state", "right",
]


class RaisingTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError("no function")


class FalseShape(torch.Tensor):
    shape = torch.Size([2, 5, 24])

    def size(self, *_):
        return self.shape

    def numel(self):
        return 240


def choose_behaviour(case):
    return BEHAVIOURS[case.problem.seed]


def act(behaviour, output):
    if behaviour == "raises":
        raise ValueError("what\\n a pity")
    if behaviour == "exits":
        sys.exit(0)
    if behaviour == "interrupts":
        raise KeyboardInterrupt
    if behaviour == "refuses":
        raise Refusal("not today")
    if behaviour == "recursion":
        return act(behaviour, output)
    if behaviour == "prints":
        print('{"status": "observed"}', flush=True)
        print("x" * 100_000, file=sys.stderr)
    if behaviour == "forks":
        import os

        os.fork()
    if behaviour == "floods":
        for _ in range(30):
            print("x" * 1_000_000)
    if behaviour == "changes_state":
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
        "subclass": (output.detach().as_subclass(RaisingTensor), None),
        "sparse": (output.to_sparse(), None),
        "false_shape": (output.detach()[:, :-1].as_subclass(FalseShape), None),
        "dtype": (output.double(), None),
    }.get(behaviour, (output, None))


class Scripted(Implementation):
    def unsupported(self, case):
        if choose_behaviour(case) == "unsupported_raises":
            raise RuntimeError("no declaration")
        return {"unsupported_true": True, "unsupported": "written for others"}.get(choose_behaviour(case))

    def predicted_s(self, case):
        predictions = {"predicts_text": "soon", "predicts_long": 1e6, "predicts_inf": math.inf}
        return predictions.get(choose_behaviour(case))

    def build(self, reference):
        return reference

    def prepare(self, module, case, inputs):
        behaviour = choose_behaviour(case)
        return lambda **arguments: act(behaviour, module(**arguments)[0])


SCRIPTED = Scripted()
"""

# The list BEHAVIOURS of SCRIPTED: the behaviour for seed 0, for seed 1, ….
ORDER = SCRIPTED.partition("BEHAVIOURS = [")[2].partition("]")[0].replace('"', "").replace(",", " ").split()

NO_MASKS = OtherRefusal(text="no masks")

# For each behaviour of SCRIPTED: the status of the finding and its first fact; of an exception, its type and message.
EXPECTED: dict[str, tuple[str, Fact | tuple[str, str] | type[ValueFact] | None]] = {
    "right": ("passed", None),
    "raises": ("error", ("ValueError", "what a pity")),
    "exits": ("error", ("SystemExit", "0")),
    "interrupts": ("error", ("KeyboardInterrupt", "")),
    "none": ("failed", make_malformed("not_a_tuple", names="output, weights", got="NoneType")),
    "bare": ("failed", make_malformed("not_a_tuple", names="output, weights", got="Tensor")),
    "list": ("failed", make_malformed("not_a_tuple", names="output, weights", got="list")),
    "shape": ("failed", WrongShape(compared=Compared(quantity="output"), shape=(2, 4, 24), expected=(2, 5, 24))),
    "nan": ("failed", NotFinite),
    "text": ("failed", make_malformed("not_a_tensor", name="output", got="str")),
    "prints": ("passed", None),
    "refuses": ("unsupported", OtherRefusal(text="not today")),
    "subclass": ("passed", None),
    "sparse": ("error", ("NotImplementedError", "")),
    "unsupported_true": ("failed", make_malformed("no_text", method="unsupported", got="True")),
    "predicts_text": ("failed", make_malformed("no_number", method="predicted_s", got="'soon'")),
    "predicts_long": ("not_run", OverWorkLimit(predicted_s=1e6, limit_s=2)),
    "predicts_inf": ("not_run", OverWorkLimit(predicted_s="inf", limit_s=2)),
    "unsupported": ("unsupported", OtherRefusal(text="written for others")),
    "dtype": ("failed", WrongDtype(compared=Compared(quantity="output"), dtype="float64", expected="float32")),
    "recursion": ("error", ("RecursionError", "maximum recursion depth exceeded")),
    "forks": ("passed", None),
    "unsupported_raises": ("error", ("RuntimeError", "no declaration")),
    "false_shape": ("failed", WrongShape(compared=Compared(quantity="output"), shape=(2, 4, 24), expected=(2, 5, 24))),
    "floods": ("passed", None),
    "changes_state": ("passed", None),
}

# Implementations that, on cases with some seeds, end or block their process or exhaust memory; on other cases they are
# right.
FATAL = """
import ctypes
import os
import time

import torch

from attnbench.interface import Implementation


class Fatal(Implementation):
    def __init__(self, act, seeds):
        self.act = act
        self.seeds = seeds

    def build(self, reference):
        return reference

    def prepare(self, module, case, inputs):
        return self.call if case.problem.seed in self.seeds else module

    def call(self, **arguments):
        self.act()


SEGFAULTS = Fatal(lambda: ctypes.string_at(0), {1})
HANGS = Fatal(lambda: time.sleep(3600), {1})
EXITS_ALWAYS = Fatal(lambda: os._exit(9), range(1, 9))
ALLOCATES = Fatal(lambda: torch.zeros(10**9), {1})


def garble():
    from attnbench.processes import rpc

    rpc.to_plain = lambda reply: {"type": "Observed", "outcomes": 7}


GARBLES = Fatal(garble, {1})
"""

PATCHING = '''
import torch
from torch import Tensor

from attnbench.interface import Implementation


class Patching(Implementation):
    """Returns zeros, and patches the functions of torch that could show it."""

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


# Implementations that end or block their process in one check, or only after many calls. All checks of a case are in
# one request, so the runner has to find the check.
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


def exit_at_padding(self, arguments):
    # The check padding_cannot_leak writes large numbers over padded tokens.
    if arguments["value"].detach().abs().max() > 1e3:
        os._exit(9)


def exit_after_many(self, arguments):
    if self.calls > 6:
        os._exit(9)


def wait_at_padding(self, arguments):
    if arguments["value"].detach().abs().max() > 1e3:
        time.sleep(3600)


PADDING = Counted(exit_at_padding)
MANY = Counted(exit_after_many)
WAITS = Counted(wait_at_padding)
"""

# Implementations that declare masks unsupported. If called with a mask all the same, each does what its name says.
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


def raise_error(module, arguments):
    raise NotImplementedError("no masks")


def ignore_mask(module, arguments):
    del arguments["key_padding_mask"]
    return module(**arguments)


def detach(module, arguments):
    output, weights = module(**arguments)
    return output.detach(), weights


def drop_weights(module, arguments):
    output, weights = module(**arguments)
    return output, None


RAISES = Refuses(raise_error)
IGNORES_MASK = Refuses(ignore_mask)
WORKS = Refuses(lambda module, arguments: module(**arguments))
CRASHES = Refuses(lambda module, arguments: ctypes.string_at(0))
RETURNS_NONE = Refuses(lambda module, arguments: None)
DETACHES = Refuses(detach)
DROPS_WEIGHTS = Refuses(drop_weights)
"""


def make_case(seed: int = 0) -> str:
    """Return the id of a case without attention weights and gradients."""
    problem = MultiheadProblem(batch=2, queries=5, keys=7, embed_dim=24, num_heads=3, bias=True, batch_first=True)
    return Case(operator="multihead", problem=replace(problem, seed=seed), mode="inference").id


@pytest.fixture(scope="module")
def shared() -> Iterator[Session]:
    """Session that all tests of this module use, with one oracle worker."""
    with Session() as opened:
        yield opened


@pytest.fixture
def session(shared: Session) -> Session:
    """The shared session, reset to the default limits."""
    shared.limits = shared.workers.limits = Limits()
    return shared


def check_parity(
    session: Session, name: str, seeds: range, expectations: tuple[Expectation, ...] = ()
) -> list[Finding]:
    """Run ``forward_parity`` on the case of each seed, and return the findings."""
    plans = session.plan([make_case(seed) for seed in seeds], frozenset({"forward_parity"}))
    results: Iterator[Result] = conform(
        session, [name], plans, run="r", progress=NoProgress(), expectations=expectations
    )
    return [finding for result in results for finding in result.findings]


def write_file(folder: Path, name: str, text: str) -> str:
    """Write a file, and return its path."""
    (folder / name).write_text(text)
    return str(folder / name)


def test_every_behaviour_of_a_call_is_a_finding_of_its_case(session: Session, tmp_path: Path) -> None:
    """An exception, exit, interrupt or malformed result in a call is the finding of that case.

    None of them ends the process.
    """
    session.limits = session.workers.limits = Limits(work_s=2)
    findings = check_parity(session, write_file(tmp_path, "scripted.py", SCRIPTED) + ":SCRIPTED", range(len(ORDER)))
    # The first and the last behaviour are both "right", so that the last case shows that the process still works.
    assert sorted(ORDER) == sorted([*EXPECTED, "right"])
    for behaviour, finding in zip(ORDER, findings, strict=True):
        status, expected = EXPECTED[behaviour]
        assert (behaviour, finding.status) == (behaviour, status), finding
        fact = finding.facts[0] if finding.facts else None
        if isinstance(fact, Raised):
            assert isinstance(expected, tuple)
            assert (fact.kind, fact.message[: len(expected[1])]) == expected
            assert behaviour == "sparse" or fact.file == "scripted.py"
            assert "\n" not in fact.message
            # What raises before there is a candidate has no arguments.
            shapes = [] if behaviour == "unsupported_raises" else [(2, 5, 24), (2, 7, 24), (2, 7, 24)]
            assert [argument.shape for argument in fact.arguments] == shapes
        elif isinstance(expected, type):
            assert isinstance(fact, expected)
        else:
            assert (behaviour, fact) == (behaviour, expected)
        assert str(tmp_path) not in str(finding)


def test_segmentation_fault_costs_one_finding(session: Session, tmp_path: Path) -> None:
    """If a call crashes, its finding is "crashed", and the next case runs in a new process and passes."""
    findings = check_parity(session, write_file(tmp_path, "fatal.py", FATAL) + ":SEGFAULTS", range(3))
    assert [finding.status for finding in findings] == ["passed", "crashed", "passed"]
    assert findings[1].facts == (Crashed(how="signal", signal="SIGSEGV"),)


PADDED = replace(
    MultiheadProblem(batch=2, queries=5, keys=7, embed_dim=24, num_heads=3, bias=True, batch_first=True), mask="pad"
)


def make_padded_case(mode: Mode = "eval", **changes: Any) -> str:
    """Return the id of a case with a padding mask."""
    return Case(operator="multihead", problem=replace(PADDED, **changes), mode=mode).id


def run_checks(session: Session, name: str, cases: Sequence[str], *checks: str) -> list[dict[str, Finding]]:
    """Run the named checks, or all checks if none is named; return, for each case, the findings by check."""
    plans = session.plan(cases, frozenset(checks) or None)
    results = conform(session, [name], plans, run="r", progress=NoProgress())
    return [{finding.check: finding for finding in result.findings} for result in results]


def test_a_crash_is_attributed_to_its_check(session: Session, tmp_path: Path) -> None:
    """If a request with all checks of a case crashes, the crash is reported for the check that also crashes alone.

    Only the crash of the check alone counts towards the number after which it is left out.
    """
    name = write_file(tmp_path, "together.py", TOGETHER) + ":PADDING"
    cases = [make_padded_case(seed=seed) for seed in range(2)]
    results = run_checks(
        session, name, cases, "forward_parity", "input_gradients", "padding_cannot_leak", "repeats_itself"
    )
    for findings in results:
        assert {check for check, finding in findings.items() if finding.status == "crashed"} == {"padding_cannot_leak"}
        assert findings["padding_cannot_leak"].facts == (Crashed(how="exit", code=9),)
        assert {f.status for check, f in findings.items() if check != "padding_cannot_leak"} == {"passed"}


def test_a_crash_of_no_single_check_is_reported(session: Session, tmp_path: Path) -> None:
    """A crash that no check of the case causes alone, but many calls do, is reported for the last check.

    After three such cases, the checks are asked one by one from the beginning, and pass.
    """
    name = write_file(tmp_path, "together.py", TOGETHER) + ":MANY"
    results = run_checks(session, name, [make_padded_case(seed=seed) for seed in range(5)], *SEVERAL)
    assert [findings[SEVERAL[-1]].status for findings in results] == [
        "passed",
        "crashed",
        "crashed",
        "crashed",
        "passed",
    ]
    assert results[1][SEVERAL[-1]].facts == (Crashed(how="exit", code=9), NotReproduced())
    assert {results[1][check].status for check in SEVERAL[:-1]} == {"passed"}


@pytest.mark.extended
def test_a_time_out_is_attributed_to_its_check(session: Session, tmp_path: Path) -> None:
    """If one check of a case does not end, that check has the status "timeout", and the other checks pass."""
    name = write_file(tmp_path, "together.py", TOGETHER) + ":WAITS"
    expected = {"forward_parity": "passed", "padding_cannot_leak": "timeout", "repeats_itself": "passed"}

    def list_statuses(limit_s: float) -> dict[str, str]:
        session.limits = session.workers.limits = Limits(timeout_s=limit_s)
        (findings,) = run_checks(session, name, [make_padded_case()], *expected)
        return {check: finding.status for check, finding in findings.items()}

    found, _ = repeat_with_longer_limits(list_statuses, lambda found: found == expected, first_s=4)
    assert found == expected


def test_a_write_of_the_first_call_is_reported(session: Session, tmp_path: Path) -> None:
    """``inputs_untouched`` observes the first call, so that a change made only by the first call fails."""
    (findings,) = run_checks(
        session, write_file(tmp_path, "mine.py", WRITES) + ":Writes", [make_padded_case()], *SEVERAL
    )
    assert findings["inputs_untouched"].status == "failed"
    (fact, *_) = findings["inputs_untouched"].facts
    assert isinstance(fact, BitsDiffer)
    assert fact.compared == Compared(quantity="key_padding_mask", how=phrase("after_call"))


def test_settings_of_one_call_do_not_reach_the_next(session: Session, tmp_path: Path) -> None:
    """A call that changes torch's settings fails ``global_state_untouched``; they are restored before the next case."""
    source = SCRIPTED.replace(
        "return BEHAVIOURS[case.problem.seed]", "return ['right', 'changes_state', 'right'][case.problem.seed]"
    )
    cases = [make_padded_case(seed=seed) for seed in range(3)]
    results = run_checks(session, write_file(tmp_path, "scripted.py", source) + ":SCRIPTED", cases, *SEVERAL)
    statuses = [findings["global_state_untouched"].status for findings in results]
    assert statuses == ["passed", "failed", "passed"]
    for word in ("the default dtype", "the use of deterministic algorithms"):
        assert word in str(results[1]["global_state_untouched"].facts)


# Cases that an implementation declares unsupported


@pytest.mark.parametrize(
    ("act", "status", "facts", "warnings"),
    [
        ("RAISES", "unsupported", (NO_MASKS,), ()),
        ("WORKS", "unsupported", (NO_MASKS,), (ComputesRefusedCase(),)),
        ("IGNORES_MASK", "failed", (AnsweredThoughRefused(refusal=NO_MASKS, how="wrong_result"), ValuesOff), ()),
        (
            "RETURNS_NONE", "failed",
            (
                AnsweredThoughRefused(refusal=NO_MASKS, how="wrong_result"),
                make_malformed("not_a_tuple", names="output, weights", got="NoneType"),
            ), (),
        ),
        (
            "CRASHES", "crashed",
            (
                AnsweredThoughRefused(refusal=NO_MASKS, how="no_exception"), Crashed(how="signal", signal="SIGSEGV"),
            ), (),
        ),
        ("DETACHES", "unsupported", (NO_MASKS,), (ReturnsNoGradients(),)),
        ("DROPS_WEIGHTS", "unsupported", (NO_MASKS,), (ReturnsNoWeights(),)),
    ],
)  # fmt: skip
def test_a_call_declared_unsupported_must_raise(
    session: Session, tmp_path: Path, act: str, status: str, facts: tuple[Any, ...], warnings: tuple[Fact, ...]
) -> None:
    """An implementation is called on a case that it declares unsupported, to see whether it refuses.

    A wrong result is a failure; a right one is a warning.
    """
    name = write_file(tmp_path, "refuses.py", REFUSES) + f":{act}"
    one = make_padded_case(need_weights=act == "DROPS_WEIGHTS")
    (findings,) = run_checks(session, name, [one])
    parity = findings.pop("forward_parity")
    assert (parity.status, parity.warnings) == (status, warnings)
    for fact, expected in zip(parity.facts, facts, strict=False):
        assert isinstance(fact, expected) if isinstance(expected, type) else fact == expected
    others = {(finding.status, finding.facts) for check, finding in findings.items()}
    assert ("unsupported", (NO_MASKS,)) in others
    assert {other for other, _ in others} <= {"unsupported", status}


def test_a_refused_case_is_not_called_where_it_would_take_long(session: Session, tmp_path: Path) -> None:
    """No call is made on an unsupported case if its predicted time is over the work limit, or if it is compiled."""
    source = REFUSES.replace(
        "    def build(", "    def predicted_s(self, case):\n        return 10.0 * case.problem.seed\n\n    def build("
    )
    name = write_file(tmp_path, "refuses.py", source) + ":IGNORES_MASK"
    results = run_checks(
        session, name, [make_padded_case(seed=0), make_padded_case(seed=1), make_padded_case(mode="aot")]
    )
    assert [{f.status for f in findings.values()} for findings in results] == [
        {"unsupported", "failed"}, {"unsupported"}, {"unsupported"},
    ]  # fmt: skip


def test_other_checks_do_not_warn_of_a_refused_case_that_works(session: Session, tmp_path: Path) -> None:
    """Only ``forward_parity`` warns that an unsupported case works; if it is not selected, there is no warning."""
    name = write_file(tmp_path, "refuses.py", REFUSES) + ":WORKS"
    (findings,) = run_checks(session, name, [make_padded_case()], "inputs_untouched")
    assert [(finding.status, finding.warnings) for finding in findings.values()] == [("unsupported", ())]


# Replies and requests that do not fit


def test_a_reply_of_a_wrong_type_is_a_crash_of_one_case(session: Session, tmp_path: Path) -> None:
    """If a worker's reply is not of the type that the request names, the case crashed, and the next case runs."""
    findings = check_parity(session, write_file(tmp_path, "fatal.py", FATAL) + ":GARBLES", range(3))
    assert [finding.status for finding in findings] == ["passed", "crashed", "passed"]
    assert findings[1].facts == (Crashed(how="answer", text="Expected `object`, got `int` - at `$.outcomes`"),)


class Unheard(CandidateRequest[Declaration], frozen=True, kw_only=True):
    """A request that no worker answers."""


def test_an_unknown_request_is_a_crash_of_one_process(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown request ends the candidate worker with a reason; the worker is restarted for the next request."""
    # On a busy machine, the 2 s of a run may be too few for a process to exit.
    monkeypatch.setattr("attnbench.processes.rpc.GRACE_S", 60.0)
    with session.workers.get(["torch_mha"]) as worker:
        answer = worker.ask(Unheard())
        assert isinstance(answer, Outcome)
        assert answer.status == "crashed"
        (crash,) = answer.facts
        assert isinstance(crash, Crashed)
        assert crash.text.startswith("ValueError: unknown request 'Unheard'; this")
        assert isinstance(worker.ask(Describe(implementation="torch_mha", case=make_case())), Declaration)


# Limits of time and memory


def test_hanging_is_a_time_out(session: Session, tmp_path: Path) -> None:
    """A call that does not end is killed; the finding has the time limit."""
    name = write_file(tmp_path, "fatal.py", FATAL) + ":HANGS"
    expected = ["passed", "timeout", "passed"]

    def find(limit_s: float) -> list[Finding]:
        session.limits = session.workers.limits = Limits(timeout_s=limit_s)
        return check_parity(session, name, range(3))

    findings, limit_s = repeat_with_longer_limits(
        find, lambda found: [finding.status for finding in found] == expected, first_s=3
    )
    assert [finding.status for finding in findings] == expected
    assert findings[1].facts == (TimedOut(limit_s=limit_s),)


@pytest.mark.parametrize(("shared_by", "status"), [(1, "timeout"), (3, "unsupported")])
def test_a_shared_request_may_take_longer(session: Session, tmp_path: Path, shared_by: int, status: str) -> None:
    """A request for three implementations (``shared_by`` = 3) has three times the time limit of one."""
    source = "from attnbench.interface import Implementation, Refusal\nimport time\n"
    source += "class Slow(Implementation):\n    def unsupported(self, case):\n        time.sleep({seconds})\n"
    source += "        raise Refusal('slow')\n"

    def describe(limit_s: float) -> Any:
        name = write_file(tmp_path, "slow.py", source.format(seconds=1.5 * limit_s)) + ":Slow"
        session.limits = session.workers.limits = Limits()
        with session.workers.get([name]) as worker:
            session.limits = session.workers.limits = Limits(timeout_s=limit_s)
            answer = worker.ask(Describe(implementation=name, case=make_case()), shared_by=shared_by)
        assert isinstance(answer, Outcome)
        return answer.status

    found, _ = repeat_with_longer_limits(describe, lambda found: found == status, first_s=1)
    assert found == status


def test_after_three_cases_without_an_answer_the_others_are_not_run(session: Session, tmp_path: Path) -> None:
    """An implementation that ends the process in its first three cases is not run on the others."""
    findings = check_parity(session, write_file(tmp_path, "fatal.py", FATAL) + ":EXITS_ALWAYS", range(1, 6))
    assert [finding.status for finding in findings] == ["crashed", "crashed", "crashed", "not_run", "not_run"]
    assert findings[-1].facts == (TooManyDeaths(count=3, last=Crashed(how="exit", code=9)),)


RARELY_FATAL = """
import os
import threading

import torch

from attnbench.interface import Implementation


class Fatal(torch.nn.MultiheadAttention):
    def forward(self, query, key, value, **options):
        if self.is_fatal(query):
            os._exit(5)
        return super().forward(query, key, value, **options)


class OnNothing(Fatal):
    def is_fatal(self, query):
        return not query.numel()


class UnderVmap(Fatal):
    def is_fatal(self, query):
        return torch._C._functorch.is_batchedtensor(query)


class InThread(Fatal):
    def is_fatal(self, query):
        return threading.current_thread() is not threading.main_thread()


class Built(Implementation):
    def __init__(self, kind):
        self.kind = kind

    def build(self, reference):
        reference.__class__ = self.kind
        return reference


ON_NOTHING, UNDER_VMAP, IN_THREAD = Built(OnNothing), Built(UnderVmap), Built(InThread)
"""


@pytest.mark.parametrize(
    ("name", "fatal"), [("ON_NOTHING", ""), ("UNDER_VMAP", "vmap_equals_loop"), ("IN_THREAD", "two_threads")]
)
def test_a_rare_death_leaves_out_nothing_else(session: Session, tmp_path: Path, name: str, fatal: str) -> None:
    """A process that ends on nothing to attend, under vmap or in a thread: a finding each, and the others complete."""
    cases = [
        make_padded_case("inference" if fatal == "two_threads" else "eval", seed=seed, batch=0 if 0 < seed < 5 else 2)
        for seed in range(8)
    ]
    found = run_checks(session, write_file(tmp_path, "fatal.py", RARELY_FATAL) + f":{name}", cases)
    dead = [[check for check, one in case.items() if one.status in {"crashed", "not_run"}] for case in found]
    if not fatal:
        crashed = [[one.status for one in case.values()].count("crashed") for case in found]
        assert crashed == [0, 2, 1, 1, 1, 0, 0, 0]
    assert [dead[number] for number in (0, 5, 6, 7)] == 4 * [[fatal] if fatal else []]
    assert fatal == "" or [found[number][fatal].status for number in (0, 5, 6, 7)] == [*3 * ["crashed"], "not_run"]


def test_exceeding_the_memory_limit_is_out_of_memory(session: Session, tmp_path: Path) -> None:
    """If an allocation exceeds the memory limit, the finding is "out_of_memory", and the process runs on."""
    session.limits = session.workers.limits = Limits(memory_bytes=10**9, threads=1)
    findings = check_parity(session, write_file(tmp_path, "fatal.py", FATAL) + ":ALLOCATES", range(3))
    assert [finding.status for finding in findings] == ["passed", "out_of_memory", "passed"]
    (raised,) = findings[1].facts
    assert isinstance(raised, Raised)
    assert "4000000000 bytes" in raised.message


def test_patching_torch_affects_only_the_implementation_itself(session: Session, tmp_path: Path) -> None:
    """An implementation that patches torch's comparisons, operators and the reference fails all the same.

    The implementation after it passes.
    """
    patching = write_file(tmp_path, "patching.py", PATCHING) + ":Patching"
    plans = session.plan([make_case()], frozenset({"forward_parity"}))
    results = conform(session, [patching, "sdpa"], plans, run="r", progress=NoProgress())
    findings = {result.implementation: result.findings[0] for result in results}
    statuses = {name: finding.status for name, finding in findings.items()}
    assert statuses == {"patching.py:Patching": "failed", "sdpa": "passed"}
    (off, *_) = findings["patching.py:Patching"].facts
    assert isinstance(off, ValuesOff)
    assert (off.compared.quantity, off.count, off.total) == ("output", 240, 240)


def test_implementation_that_cannot_be_loaded_again_is_excluded(session: Session, tmp_path: Path) -> None:
    """If a file cannot be loaded again after a crash, the remaining cases are "crashed", with that error as reason."""
    source = FATAL.replace(
        "SEGFAULTS =", "if os.path.exists(__file__ + '.seen'): raise OSError('locked')\nSEGFAULTS ="
    ).replace("ctypes.string_at(0)", "(open(__file__ + '.seen', 'w'), os._exit(1))")
    findings = check_parity(session, write_file(tmp_path, "fatal.py", source) + ":SEGFAULTS", range(3))
    assert [finding.status for finding in findings] == ["passed", "crashed", "crashed"]
    (fault,) = findings[-1].facts
    assert isinstance(fault, CannotLoad)
    assert "OSError: locked" in fault.message


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("ONE = 3", "is int; an implementation is an nn.Module class"),
        ("import sys; sys.exit('no licence')", "SystemExit: no licence"),
        (
            "from attnbench.interface import Implementation\nclass ONE(Implementation):\n    operator = 'flash'",
            "computes an unknown operator 'flash'; available: additive_pooling, attention_core, ",
        ),
    ],
)
def test_an_object_that_is_no_implementation_is_an_error(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    """If a file ends its process, or its object is no implementation, the error is one line that names the file."""
    # On a busy machine, the 2 s of a run may be too few for a process to exit.
    monkeypatch.setattr("attnbench.processes.rpc.GRACE_S", 60.0)
    name = write_file(tmp_path, "one.py", source) + ":ONE"
    with pytest.raises(PluginError) as raised:
        check_parity(session, name, range(1))
    assert name in str(raised.value)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_environment_is_set_before_the_process_starts(session: Session, tmp_path: Path) -> None:
    """Environment variables that an implementation declares are set before its file is imported; 42 is set as "42"."""
    source = """
import os

from attnbench.interface import Implementation

AT_IMPORT = os.environ.get("ANSWER")


class Declares(Implementation):
    def environment(self):
        return {"ANSWER": 42}

    def build(self, reference):
        return reference

    def unsupported(self, case):
        return f"ANSWER is {AT_IMPORT}"
"""
    (finding,) = check_parity(session, write_file(tmp_path, "declares.py", source) + ":Declares", range(1))
    assert (finding.status, finding.facts) == ("unsupported", (OtherRefusal(text="ANSWER is 42"),))


def test_expected_failures_are_distinguished(session: Session, tmp_path: Path) -> None:
    """A failure that an entry expects is an "expected_failure" with the entry's reason and link.

    If the check passes, the finding is an "unexpected_pass", or "passed" if the entry has the field ``passes_where``.
    A crash is always a "crashed", even if an entry matches it.
    """
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    (tmp_path / "fatal.py").write_text(FATAL)
    file = tmp_path / "expected.toml"
    entry = '[[expected]]\nimplementation = "{}"\ncheck = "forward_*"\ncase = "*"\nreason = "known"\nlink = "{}"\n'
    file.write_text(entry.format("scripted.py:SCRIPTED", LINK) + entry.format("fatal.py:SEGFAULTS", LINK))
    expected = tuple(read_expectations(file))
    right, raises = check_parity(session, f"{tmp_path}/scripted.py:SCRIPTED", range(2), expected)
    assert right.status == "unexpected_pass"
    assert right.facts == (PassedUnexpectedly(reason="known", link=LINK, file="expected.toml", entry=1),)
    assert raises.status == "expected_failure"
    assert raises.facts[0] == ExpectedToFail(reason="known", link=LINK)
    assert isinstance(raises.facts[1], Raised)
    elsewhere = tuple(replace(one, passes_where="the machine has no such kernel") for one in expected)
    findings = check_parity(session, f"{tmp_path}/scripted.py:SCRIPTED", range(2), elsewhere)
    assert [one.status for one in findings] == ["passed", "expected_failure"]
    (crashed,) = check_parity(session, f"{tmp_path}/fatal.py:SEGFAULTS", range(1, 2), expected)
    assert crashed.status == "crashed"


def test_an_entry_may_name_several_checks_and_leave_cases_out(tmp_path: Path) -> None:
    """``check`` and ``unless`` of an entry may have several patterns, separated by spaces.

    The entry does not cover cases that match a pattern of ``unless``.
    """
    file = tmp_path / "expected.toml"
    file.write_text(
        '[[expected]]\nimplementation = "mine"\ncheck = "forward_* weights_parity"\ncase = "*/mask=pad/*"\n'
        f'unless = "*add_* *regime=flat*"\nreason = "known"\nlink = "{LINK}"\n'
    )
    (entry,) = read_expectations(file)
    covered = [
        (case, check)
        for case in ("m/mask=pad/regime=plain", "m/mask=pad/regime=flat", "m/add_bias_kv/mask=pad/x", "m/mask=none/x")
        for check in ("forward_parity", "weights_parity", "weights_are_shares")
        if entry.covers("mine", case, check)
    ]
    assert covered == [
        ("m/mask=pad/regime=plain", "forward_parity"),
        ("m/mask=pad/regime=plain", "weights_parity"),
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[expected]\n", "cannot read expected failures from"),
        ("expected = 3\n", "'expected' must be a list of tables, each under a line [[expected]]"),
        ('expected = ["sdpa"]\n', "'expected' must be a list of tables, each under a line [[expected]]"),
        (
            '[[expected]]\nimplementation = "sdpa"\n',
            "entry 1 needs non-empty strings under the keys implementation, check, case, reason, link "
            "(optional: passes_where, unless), got the keys implementation",
        ),
        ("\udcff", "cannot read expected failures from"),
    ],
)
def test_malformed_file_of_expected_failures_is_one_line(tmp_path: Path, text: str, fault: str) -> None:
    """The error about a malformed file of expected failures names the file and what is wrong with it."""
    file = tmp_path / "expected.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ExpectationError) as raised:
        read_expectations(file)
    assert str(file) in str(raised.value)
    assert fault in str(raised.value)


ENTRY = '[[expected]]\nimplementation = "{}"\ncheck = "{}"\ncase = "{}"\nreason = "known"\nlink = "x"\n'
# Text for the field ``case`` of ENTRY: a pattern of cases, and an ``unless`` that excludes all of these cases.
NONE_LEFT = '*/mask=bool3d/*"\nunless = "*/mask=bool3d/*'


@pytest.mark.parametrize(
    ("implementation", "check", "pattern", "fault"),
    [
        ("spda", "forward_parity", "*", "no implementation 'spda'; did you mean 'sdpa'?"),
        ("mine.py:MISSING", "forward_parity", "*", "no implementation 'mine.py:MISSING'; remove the entry, or correct"),
        ("other.py:MINE", "forward_parity", "*", "no implementation 'other.py:MINE'"),
        (
            "sdpa",
            "forward_party",
            "*",
            "no check 'forward_party'; did you mean 'forward_parity' or 'forward_derivatives' or 'shares_parity'?",
        ),
        ("sdpa", "nothing_*", "*", "no check 'nothing_*'; remove the entry, or correct it"),
        (
            "sdpa",
            "*",
            "multihead/*/mask=bool4d/*",
            "no check that matches '*' applies to a case whose id matches",
        ),
        (
            "sdpa",
            "input_gradients",
            "*/inference",
            "no check that matches 'input_gradients' applies to a case whose id matches",
        ),
        ("sdpa", "*", NONE_LEFT, "matches '*/mask=bool3d/*' and does not match '*/mask=bool3d/*'"),
    ],
)
def test_an_expectation_that_can_match_nothing_is_an_error(
    session: Session, tmp_path: Path, implementation: str, check: str, pattern: str, fault: str
) -> None:
    """If an entry can match no finding of any run, the error names its file and number, before any check runs."""
    write_file(tmp_path, "mine.py", "MINE = 1\n")
    file = tmp_path / "expected.toml"
    file.write_text(ENTRY.format("sdpa", "*_parity", "*") + ENTRY.format(implementation, check, pattern))
    with pytest.raises(ExpectationError) as raised:
        audit(session, read_expectations(file), ["sdpa"])
    assert str(raised.value).startswith(f"{file} entry 2: ")
    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_expectation_need_not_match_this_run(session: Session, tmp_path: Path) -> None:
    """Entries for implementations, dtypes, devices and cases that this run does not have are no error.

    An entry for a case that is in no suite is no error either if this run has the case.
    """
    write_file(tmp_path, "mine.py", "class Mine: ...\n")
    file = tmp_path / "expected.toml"
    entries = [
        ("sdpa", "forward_parity", "*/float64/cuda/inference"),
        ("torch_mha", "*_gradients", "*/bfloat16/*"),
        ("mine.py:Mine", "*", "*"),
        ("attnzoo.sdpa:SDPA", "*", "*"),
        (f"{tmp_path.name}.py:RUN", "*", make_case(seed=123)),
        # It could match nothing, but that is looked up in runs of sdpa only.
        ("sdpa", "*", "multihead/*/mask=bool4d/*"),
    ]
    file.write_text("".join(ENTRY.format(*entry) for entry in entries))
    audit(session, read_expectations(file), [f"{tmp_path.name}.py:RUN"], [make_case(seed=123)])


def test_every_shipped_expectation_can_match(session: Session) -> None:
    """A run looks up the entries of its own implementations only; this looks up those of all."""
    audit(session, read_expectations_beside(list_names()), list_names())
