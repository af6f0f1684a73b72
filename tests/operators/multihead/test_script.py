"""Tests of the standalone programs that reproduce a case without the harness."""

import ast
import contextlib
import inspect
import io
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.catalogue import load_check_function, read_checks
from attnbench.checks.observations import Match
from attnbench.checks.requirement import applies
from attnbench.interface import Implementation, Inputs, Refusal
from attnbench.kernel import from_kernel
from attnbench.operators.multihead import OPERATOR
from attnbench.operators.multihead.suites import CROSS, SELF
from attnbench.oracle.expected import CaseOracle, Expected
from attnbench.plugins.adapters import find_form, load_implementation
from attnbench.plugins.registry import PluginError, load_operator, write_import_lines
from attnbench.processes.script_subject import SHOWN_CHECKS, Form, Subject
from attnbench.workers.script import write_script
from commands import run_command

# A user's file, which does not mention the harness.
OWN = """
import functools
import math

import torch


def right(q, k, v, *, mask=None, scale=1.0, need_weights=False, slope=0.0):
    logits = scale * q @ k.mT
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    hidden = (logits == -math.inf).all(-1, keepdim=True)
    weights = logits.masked_fill(hidden, 0.0).softmax(-1).masked_fill(hidden, 0.0)
    return weights @ v, weights


def wrong(q, k, v, *, mask=None, scale=1.0, need_weights=False):
    output, weights = right(q, k, v, mask=mask, scale=scale)
    return 1.01 * output, weights


class Outer:
    bound = functools.partial(right, slope=1.0)


class Module(torch.nn.MultiheadAttention):
    def __init__(self, embed_dim, num_heads, bias=True, batch_first=True):
        super().__init__(embed_dim, num_heads, bias=bias, batch_first=batch_first)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, query, key, value, attn_mask=None, need_weights=False):
        return super().forward(query, key, value, attn_mask=attn_mask, need_weights=need_weights)


class Narrow(torch.nn.MultiheadAttention):
    def forward(self, *tokens, **keywords):
        output, weights = super().forward(*tokens, **keywords)
        return output.half(), weights


class Flat(torch.nn.MultiheadAttention):
    def forward(self, *tokens, **keywords):
        output, weights = super().forward(*tokens, **keywords)
        return output.flatten(), weights


class Silent(torch.nn.MultiheadAttention):
    def forward(self, *tokens, **keywords):
        return super().forward(*tokens, **keywords | {"need_weights": False})


class Talkative(torch.nn.MultiheadAttention):
    def forward(self, *tokens, **keywords):
        return super().forward(*tokens, **keywords | {"need_weights": True})


class Nan(torch.nn.MultiheadAttention):
    def forward(self, *tokens, **keywords):
        output, weights = super().forward(*tokens, **keywords)
        return output.where(output < output.max(), math.nan), weights
"""
# A user's file with implementations made by the harness's adapters.
ADAPTED = """
import math

import torch

from attnbench.interface import Implementation, Policies
from attnbench.kernel import core_from_kernel, from_kernel


def attend(q, k, v, *, mask, scale, softcap=None, enable_gqa=False, factor=1.0):
    k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], dim=1) for one in (k, v))
    logits = scale * q @ k.mT
    logits = logits if softcap is None else softcap * (logits / softcap).tanh()
    weights = (logits if mask is None else logits + mask).softmax(-1)
    return factor * weights.nan_to_num() @ v


def scaled(q, k, v, *, mask, scale, softcap=None, enable_gqa=False):
    return attend(q, k, v, mask=mask, scale=scale, softcap=softcap, factor=1.01)


def unmasked(q, k, v, *, mask, scale):
    return (scale * q @ k.mT + mask).softmax(-1) @ v


RIGHT = core_from_kernel(from_kernel(attend, additive_mask=True))
WRONG = core_from_kernel(from_kernel(scaled, additive_mask=True))
NAN_ROWS = from_kernel(unmasked, additive_mask=True, policies=Policies(hidden_rows="nan"))
ZERO_ROWS = from_kernel(unmasked, additive_mask=True)


class Derived(Implementation):
    def build(self, reference):
        return reference


class Prepared(Derived):
    def prepare(self, module, case, inputs):
        return module
"""
# The expected values of a program that compares nothing.
NOTHING = Expected(quantities={}, allowances={}, hidden_rows={})
# Modes in which a program takes seconds to compile.
SLOW_MODES = ("inductor", "inductor_train")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory, which contains the user's files ``own.py`` and ``adapted.py``."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "adapted.py").write_text(ADAPTED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def case(mode: Any = "inference", dtype: Any = "float32", problem: Any = CROSS, **changes: Any) -> Case:
    """Return a case of a multi-head problem, by default CROSS, with some fields of the problem changed."""
    return Case(operator="multihead", problem=problem, mode=mode, dtype=dtype).with_problem(**changes)


def list_quick(operator: str, implementation: str) -> list[Case]:
    """Return the quick cases that an implementation supports and that have a printed program."""
    supported = load_implementation(implementation)
    return [
        one
        for one in load_operator(operator).suite("quick")
        if one.mode not in SLOW_MODES
        and not supported.unsupported(one)
        and not (one.problem.dropout and one.training)
        and max(one.problem.queries, one.problem.keys) < 64
        and getattr(one.problem, "encoder_layer", None) is None
    ]


def write_program(one: Case, name: str, expected: Expected | None = None) -> str:
    """Return the program of an implementation and a case."""
    implementation, operator = load_implementation(name), load_operator(one.operator)
    policies = implementation.policies
    case_oracle = CaseOracle(
        one, operator, policies.precision(one.dtype), lambda: operator.inputs(one),
        expected=expected, choices=policies.choices,
    )  # fmt: skip
    load, environment = write_import_lines(name), implementation.environment()
    subject = Subject(name=name, load=load, form=find_form(name), policies=policies, environment=environment)
    return write_script(case_oracle, subject)


def run_program(text: str, **names: Any) -> tuple[int, dict[str, str]]:
    """Run a program; return its exit code, and by quantity the rest of the line that it prints."""
    printed = io.StringIO()
    code: object = None
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        # The reference warns that a boolean mask with a float mask is deprecated, but its output is right.
        warnings.simplefilter("ignore")
        try:
            exec(text, {"__name__": "program", **names})
        except SystemExit as ended:
            code = ended.code
    rows = (line.split(maxsplit=1) for line in printed.getvalue().splitlines()[1:])
    assert isinstance(code, int)
    return code, {name: " ".join(rest.split()) for name, rest in rows}


@pytest.mark.parametrize(
    ("operator", "right", "wrong"),
    [("multihead", "own.py:right", "own.py:wrong"), ("attention_core", "adapted.py:RIGHT", "adapted.py:WRONG")],
)
@pytest.mark.usefixtures("here")
def test_a_program_tells_right_from_wrong(operator: str, right: str, wrong: str) -> None:
    """On every quick case, a right implementation gives code 0, and one whose output is scaled by 1.01 gives code 1.

    In bfloat16, where a roundoff is 0.004, the scaled output may be within the allowed error.
    """
    cases = list_quick(operator, right)
    assert len(cases) > 10
    for number, one in enumerate(cases):
        code, lines = run_program(write_program(one, right))
        assert code == 0, f"{one.id}: {lines}"
        assert {line.split()[-1] for line in lines.values()} <= {"ok"}
        if number % 3 == 0 and one.dtype != "bfloat16":
            code, lines = run_program(write_program(one, wrong))
            assert code == 1, one.id
            assert lines["output"].endswith("WRONG")


@pytest.mark.parametrize(
    "operator", ["additive_pooling", "dot_product_pooling", "raw_self_attention", "residual_block", "single_head"]
)
def test_mechanisms_have_programs(operator: str) -> None:
    """Every third quick case of a mechanism has a program, which compares outputs and gradients."""
    name = load_operator(operator).baseline
    quantities: set[str] = set()
    for one in list_quick(operator, name)[::3]:
        code, lines = run_program(write_program(one, name))
        assert code == 0, f"{one.id}: {lines}"
        quantities |= lines.keys()
    assert {"output", "weights", "grad.tokens"} <= quantities


# Cases that together have every mask and mode, and query and key, or key and value, as one tensor. On some of them the
# reference is known to deviate from the oracle: fully masked rows, is_causal with the extra key of add_zero_attn, and
# no keys.
WHOLE = [
    case("eval", need_weights=True, mask="float2d+padfloat", add_bias_kv=True, add_zero_attn=True),
    case("train", mask="float3d+padlowest", kdim=10, vdim=14, need_weights=True, average_attn_weights=True),
    case("eval", mask="empty3d", need_weights=True),
    case("inference_mode", "float64", mask="padempty", need_weights=True, batch_first=False),
    case("train", "bfloat16", mask="lowest2d+pad"),
    case("sampling", "float16", mask="union2d+pad"),
    case("eval", "float16", mask="float2d", need_weights=True),
    case("frozen", mask="causal+pad", is_causal=True, add_zero_attn=True),
    case("tuning", mask="bool2d", key_is_value=True),
    case("autocast", "bfloat16", mask="float3d", need_weights=True),
    case("aot", mask="bool3d"),
    case("exported", mask="pad", need_weights=True),
    case("eval", problem=SELF, mask="causal", is_causal=True),
    case("train", queries=7, query_is_key=True, vdim=14),
    case("train", batch=None, mask="floatempty2d", need_weights=True),
    case("eval", keys=0, need_weights=True, mask="pad"),
    case("eval", batch=0, mask="bool3d"),
    case("inference", dropout=0.25),
]


@pytest.mark.parametrize("one", WHOLE, ids=lambda one: one.id)
@pytest.mark.parametrize("name", ["own.py:right", "per_head"])
@pytest.mark.usefixtures("here")
def test_a_program_compares_every_quantity_of_its_case(one: Case, name: str) -> None:
    """A program prints one line for each output and gradient of the oracle, also where parameters are packed."""
    code, lines = run_program(write_program(one, name))
    assert code == 0, lines
    assert lines.keys() == OPERATOR.evaluate(one, OPERATOR.inputs(one)).keys()


def list_problems() -> Iterator[Case]:
    """Yield the problems of the suite core in a mode without gradients, each once."""
    forward = (one.with_fields(mode="inference") for one in OPERATOR.suite("core"))
    cases = {one.id: one for one in forward if one.problem.encoder_layer is None and one.dtype == "float32"}
    yield from cases.values()
    yield case("autocast", "bfloat16", mask="float3d+pad").with_problem(seed=1)


def test_a_function_gets_the_arguments_that_the_harness_passes() -> None:
    """On every problem of the suite core, a program calls a function with the harness's arguments, bit for bit."""
    calls: list[dict[str, Any]] = []

    def record(
        q: Tensor, k: Tensor, v: Tensor, *, mask: Any, is_causal: Any, scale: Any, dropout_p: Any, need_weights: Any
    ) -> tuple[Tensor, Tensor]:
        calls.append({
            "q": q, "k": k, "v": v, "mask": mask, "is_causal": is_causal, "scale": scale, "dropout_p": dropout_p,
            "need_weights": need_weights,
        })  # fmt: skip
        weights = q @ k.mT
        return weights @ v, weights

    implementation = from_kernel(record)
    subject = Subject(
        name="record", load="", form=Form(kind="function"), policies=implementation.policies, environment={}
    )
    problems = list(list_problems())
    assert len(problems) > 100
    too_large: list[str] = []
    for one in problems:
        expected = None if one.differentiates else NOTHING
        case_oracle = CaseOracle(one, OPERATOR, one.dtype, partial(OPERATOR.inputs, one), expected=expected)
        try:
            program = write_script(case_oracle, subject)
        except ValueError as error:
            too_large.append(str(error))
            continue
        calls.clear()
        run_program(program, implementation=record)
        inputs = OPERATOR.inputs(one).map_tensors(lambda tensor: tensor.clone(memory_format=torch.contiguous_format))
        module = implementation.build(OPERATOR.reference(one, inputs)).requires_grad_(one.leaves_parameters_trainable)
        with torch.set_grad_enabled(one.differentiates), torch.autocast("cpu", torch.bfloat16, enabled=one.autocast):
            module(**inputs.arguments())
        ours, theirs = calls
        for name, value in ours.items():
            if isinstance(value, Tensor):
                assert value.dtype == theirs[name].dtype, f"{name} of {one.id}"
                assert torch.equal(value, theirs[name]), f"{name} of {one.id}"
            else:
                assert value == theirs[name], f"{name} of {one.id}"
    assert all("add --output" in line for line in too_large)
    assert len(too_large) < len(problems) / 10


@pytest.mark.parametrize(
    ("name", "changes", "shown"),
    [
        ("Narrow", {}, "(2, 5, 24) torch.float16, must be (2, 5, 24) torch.float32"),
        ("Flat", {}, "(240,) torch.float32, must be (2, 5, 24) torch.float32"),
        ("Nan", {}, "nan"),
        ("Silent", {"need_weights": True}, "not returned"),
        ("Talkative", {}, "returned, must be None"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_program_says_what_is_wrong_without_an_error(name: str, changes: dict[str, Any], shown: str) -> None:
    """A wrong dtype or shape, NaN, a missing output, and one that was not asked for are shown as such, and wrong."""
    code, lines = run_program(write_program(case(**changes), f"own.py:{name}"))
    assert code == 1
    (wrong,) = (line for line in lines.values() if line.endswith("WRONG"))
    assert wrong.startswith(f"{shown} ")


@pytest.mark.parametrize(
    "name", ["own.py:Outer.bound", "own.py:Module", "torch.nn:MultiheadAttention", "adapted.py:Derived"]
)
@pytest.mark.usefixtures("here")
def test_every_form_of_an_implementation_has_programs(name: str) -> None:
    """A bound function, a module class with few arguments, the reference and a class with ``build`` are called."""
    for one in (case("eval", mask="bool2d"), case("train", mask="float2d", bias=False, batch_first=False)):
        code, lines = run_program(write_program(one, name))
        assert code == 0, lines


def test_a_program_follows_the_policies(here: Path) -> None:
    """NaN in fully masked rows is right where it is declared; rows of padded queries are left out where declared."""
    empty = case("inference", mask="empty2d")
    assert run_program(write_program(empty, "adapted.py:NAN_ROWS"))[0] == 0
    assert run_program(write_program(empty, "adapted.py:ZERO_ROWS"))[0] == 1
    padded = write_program(case("eval", problem=SELF, mask="pad"), "varlen_packed")
    assert run_program(padded)[0] == 0
    assert run_program(padded.replace("rows, 0.0)", "rows, 1.0)"))[0] == 1


@pytest.mark.parametrize(
    ("mode", "changes", "reason"),
    [
        ("train", {"dropout": 0.5}, "a case with dropout in training has random outputs and no standalone program"),
        ("inference", {"queries": 1024, "embed_dim": 528}, r"take \S+ MiB: add --output FILE.py"),
    ],
)
def test_a_case_without_a_program_is_refused_with_the_reason(
    mode: str, changes: dict[str, object], reason: str
) -> None:
    """There is no program with random outputs, and none with large tensors is printed."""
    with pytest.raises(ValueError, match=reason):
        write_program(case(mode, **changes), "reshaped", NOTHING)


def test_a_reference_that_no_program_can_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference other than ``MultiheadAttention`` must hold its parameters itself."""
    monkeypatch.setattr(type(OPERATOR), "reference", lambda *_: torch.nn.Sequential(torch.nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="cannot build the reference, a Sequential with the parameter '0"):
        write_program(case(), "reshaped")


@pytest.mark.usefixtures("here")
def test_a_prepared_call_is_refused() -> None:
    """An implementation whose ``prepare`` makes the call has no program, because only the harness can call it."""
    with pytest.raises(PluginError, match=r"'adapted.py:Prepared' defines prepare\(module, case, inputs\)"):
        find_form("adapted.py:Prepared")


def test_environment_variables_are_set_before_torch_is_imported() -> None:
    """A program sets the environment variables that the implementation declares, before it imports torch."""
    subject = Subject(
        name="reshaped", load=write_import_lines("reshaped"), form=find_form("reshaped"),
        policies=load_implementation("reshaped").policies, environment={"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    lines = write_script(CaseOracle(case(), OPERATOR, "float32", lambda: OPERATOR.inputs(case())), subject).splitlines()
    assert (
        lines.index("import os") < lines.index("os.environ |= {'TRITON_INTERPRET': '1'}") < lines.index("import torch")
    )


# The command


def run_reproduce(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``attnbench reproduce``."""
    return run_command("reproduce", *words, cwd=cwd)


# Runs programs; after each, prints its exit code and whether the harness was imported.
ALONE = """
import runpy, sys

for program in sys.argv[1:]:
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:
        print(ended.code, "attnbench" in sys.modules)
"""


def test_a_program_runs_without_the_harness(here: Path) -> None:
    """A printed program, and one with its tensors beside it, import no attnbench, run anywhere, and print the same."""
    words = (case("eval", mask="bool2d").id, "own.py:wrong", "--script")
    printed = run_reproduce(*words, cwd=here)
    assert (printed.returncode, printed.stderr) == (0, "")
    (here / "printed.py").write_text(printed.stdout)
    written = run_reproduce(*words, "--output", "written.py", cwd=here)
    assert (written.returncode, written.stdout, written.stderr) == (0, "", "")
    assert (here / "written.pt").exists()
    programs = [here / "printed.py", here / "written.py"]
    for program in programs:
        assert "One call of own.py:wrong:" in program.read_text()
        assert "attnbench" not in program.read_text()
    alone = [sys.executable, "-c", ALONE, *map(str, programs)]
    lines = subprocess.run(alone, capture_output=True, text=True, check=True, cwd=here.parent).stdout.splitlines()
    half = len(lines) // 2
    assert lines[:half] == lines[half:]
    assert lines[0].split() == ["quantity", "error", "allowed", "reference"]
    assert lines[1].endswith("WRONG")
    assert lines[-1] == "1 False"


def test_a_program_says_which_check_it_does_not_show(here: Path) -> None:
    """If --check names a check that needs another case, stderr and the program say that it is not shown."""
    limit = "this program makes one plain call; it does not show the check padding_cannot_leak"
    words = (case("eval", mask="pad").id, "own.py:right", "--script", "--check")
    done = run_reproduce(*words, "padding_cannot_leak", cwd=here)
    assert done.returncode == 0
    assert done.stderr.startswith(limit)
    assert limit.capitalize() in (ast.get_docstring(ast.parse(done.stdout)) or "")
    done = run_reproduce(*words, "forward_parity", cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert "does not show" not in done.stdout


class Counted(Implementation):
    """The reference, which counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def build(self, reference: Any) -> Any:
        """Return the reference."""
        return reference

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Any:
        """Return the module's call, which is counted."""

        def call(*positions: Any, **keywords: Any) -> Any:
            self.calls += 1
            return module(*positions, **keywords)

        call.__signature__ = inspect.signature(module.forward)  # type: ignore[attr-defined]
        return call


def makes_one_plain_call(check: str, one: Case) -> bool:
    """Whether a check makes one call of a case, and only compares its outputs and gradients with the oracle's."""
    implementation = Counted()
    candidate = Candidate(implementation, OPERATOR, one, OPERATOR.inputs(one))
    observed = []
    with contextlib.suppress(Refusal), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observed = list(load_check_function(check)(candidate))
    match = all(isinstance(seen, Match) and not seen.changed for seen in observed)
    return bool(observed) and match and implementation.calls == 1


def test_programs_show_the_checks_of_one_plain_call() -> None:
    """Programs show the checks that compare one plain call with the oracle, the one on missing weights, and no more."""
    cases = [
        case("train", problem=SELF, mask="float2d", need_weights=True),
        case("train", mask="pad", need_weights=True),
        case("autocast", "bfloat16"),
    ]
    found = {
        check.name
        for check in read_checks().values()
        for one in cases
        if check.chapter in OPERATOR.chapters
        and applies(load_check_function(check.name), one, OPERATOR)
        and makes_one_plain_call(check.name, one)
    }
    # A compiler makes calls of its own, so that check is not run here.
    assert found | {"compiled_parity", "weights_only_on_request"} == SHOWN_CHECKS


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("own.py:Module", "--script"), "--script: the forward method takes no key_padding_mask"),
        (("own.py:right", "--script", "--output", "no/folder/case.py"), "--script: [Errno 2]"),
        (("own.py:right", "--script", "--output", "case.pt"), "--output must be FILE.py"),
        (("own.py:right", "--check", "forward_parity", "--output", "case.py"), "--output must be FILE.py"),
    ],
)
def test_a_usage_error_is_one_line(here: Path, words: tuple[str, ...], fault: str) -> None:
    """A refused case, and a file that cannot be written, are errors in one line, with code 2."""
    done = run_reproduce(case("eval", mask="pad").id, *words, cwd=here)
    assert (done.returncode, done.stdout) == (2, "")
    assert fault in done.stderr
    assert len(done.stderr.splitlines()) == 1
