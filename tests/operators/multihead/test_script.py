"""Tests of the standalone programs that reproduce a case without attnbench."""

import contextlib
import io
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch

from attnbench.cases import Case
from attnbench.operators.multihead import OPERATOR
from attnbench.operators.multihead.rows import find_hidden_rows
from attnbench.operators.multihead.script import format_script
from attnbench.operators.multihead.suites import CROSS, SELF
from attnbench.oracle.expected import CaseOracle
from attnbench.plugins.registry import write_import_lines

LOAD = write_import_lines("attnzoo.reshaped:RESHAPED")
DRAWN = [
    one
    for one in OPERATOR.suite("core")
    if one.problem.encoder_layer is None and not (one.problem.dropout and one.training)
]
# SHORT: largest number of lines of a program without mask and gradients. LONG: largest number of lines of any program.
SHORT, LONG = 43, 65


def case(mode: Any = "inference", dtype: Any = "float32", problem: Any = CROSS, **changes: Any) -> Case:
    """Return a case of a problem, by default CROSS, with some fields of the problem changed."""
    return Case(operator="multihead", problem=problem, mode=mode, dtype=dtype).with_problem(**changes)


def run_program(text: str) -> dict[str, float]:
    """Run a program; return a mapping from each quantity to the largest error that the program prints for it."""
    lines = io.StringIO()
    with contextlib.redirect_stdout(lines), warnings.catch_warnings():
        # The reference warns that a boolean mask with a float mask is deprecated, but its output is right.
        warnings.simplefilter("ignore")
        exec(text, {"__name__": "program"})
    rows = (line.split(": largest error ") for line in lines.getvalue().splitlines())
    return {name: float(error) for name, error in rows}


def test_programs_generate_the_inputs_of_their_cases() -> None:
    """For every case of core, the program generates the inputs that the harness generates, bit for bit."""
    for one in DRAWN:
        text = format_script(one, LOAD)
        names: dict[str, Any] = {}
        exec(text[: text.index("\n\ndef reference")], names)
        drawn = OPERATOR.inputs(one)
        given = names.get("cotangents", {})
        cotangents = {name: drawn.cotangents[name] for name in given}
        pairs = ((drawn.parameters, names["parameters"]), (drawn.tensors, names["call"]), (cotangents, given))
        for ours, theirs in pairs:
            assert ours.keys() == theirs.keys(), one.id
            for name, tensor in ours.items():
                assert theirs[name].dtype == tensor.dtype, f"{name} of {one.id}"
                assert torch.equal(theirs[name], tensor), f"{name} of {one.id}"


# Cases that together have every mask, regime and mode, and query and key, or key and value, as one tensor. Some are
# cases on which the reference is known to deviate from the oracle: fully masked rows, is_causal with the extra key of
# add_zero_attn, and no keys.
WHOLE = [
    case(),
    case("eval", need_weights=True, mask="float2d+padfloat", add_bias_kv=True, add_zero_attn=True),
    case("train", mask="float3d+padlowest", kdim=10, vdim=14, need_weights=True, average_attn_weights=True),
    case("eval", mask="empty2d"),
    case("eval", mask="empty3d", need_weights=True),
    case("inference_mode", "float64", mask="padempty", need_weights=True, batch_first=False),
    case("train", "bfloat16", mask="lowest2d+pad"),
    case("sampling", "float16", mask="union2d+pad"),
    case("frozen", mask="causal+pad", is_causal=True, add_zero_attn=True),
    case("tuning", mask="bool2d", key_is_value=True),
    case("autocast", "bfloat16", need_weights=True),
    case("aot", mask="bool3d"),
    case("exported", mask="pad", need_weights=True),
    case("eval", problem=SELF, mask="causal", is_causal=True),
    case("inference", problem=SELF, mask="padempty"),
    case("train", queries=7, query_is_key=True, vdim=14),
    case("train", batch=None, mask="floatempty2d", need_weights=True),
    case("eval", regime="huge", bias=False),
    case("eval", keys=0, need_weights=True, mask="pad"),
    case("eval", batch=0),
    case("inference", dropout=0.25),
    *(
        case("eval", "float16", bias=False, embed_dim=21, regime=regime, mask=mask, batch_first=False)
        for regime, mask in (
            ("identity", "none"),
            ("uniform", "bool3d"),
            ("uniform", "pad"),
            ("selection", "bool3d"),
            ("zeroleak", "padfloat"),
        )
    ),
]


@pytest.mark.parametrize("one", WHOLE, ids=lambda one: one.id)
def test_a_program_prints_what_the_harness_measures(one: Case) -> None:
    """For a correct implementation, each printed error of an output or gradient is within its allowance."""
    found = run_program(format_script(one, LOAD))
    case_oracle = CaseOracle(one, OPERATOR, one.dtype, lambda: OPERATOR.inputs(one))
    errors = {name.replace("gradient of ", "grad."): error for name, error in found.items()}
    expected = {name for name, value in case_oracle.expected.quantities.items() if value.numel()}
    if one.problem.need_weights and find_hidden_rows(one, case_oracle.exact_inputs):
        expected = {"output", "weights"}
    assert errors.keys() >= expected
    # If query, key and value are one tensor, the program prints the error of its gradient under each name.
    assert errors.keys() <= expected | {"grad.key", "grad.value"}
    for name in expected:
        assert errors[name] <= case_oracle.expected.allowances[name].allowed, name


def test_a_program_shows_that_an_implementation_is_wrong() -> None:
    """For an implementation that ignores the mask, the printed errors are above 0.1."""
    load = (
        "from attnbench.mutants.multihead import MUTANTS\n\n"
        "implementation = {m.name: m for m in MUTANTS.mutants}['mask_ignored'].implementation\n"
    )
    found = run_program(format_script(case("eval", mask="bool2d"), load))
    assert found["output"] > 0.1
    assert found["gradient of query"] > 0.1


def test_a_module_class_is_built_by_its_constructor() -> None:
    """A module class has no ``build``: the program calls it with the reference's arguments and loads its parameters."""
    load = "from torch.nn import MultiheadAttention as implementation\n"
    assert run_program(format_script(case("eval", kdim=10, mask="pad"), load))["output"] < 1e-5


def test_a_program_runs_without_the_harness() -> None:
    """The text of a program does not mention attnbench, and runs in a Python process of its own."""
    text = format_script(case(), LOAD)
    assert "attnbench" not in text
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("output: largest error ")


def test_a_program_is_short() -> None:
    """A program has at most SHORT lines without mask and gradients, and at most LONG lines with them.

    It contains no code for regimes and gradients that its case does not have.
    """
    lengths = [sum(bool(line.strip()) for line in format_script(one, LOAD).splitlines()) for one in DRAWN]
    plain = format_script(case(), LOAD)
    assert sum(bool(line.strip()) for line in plain.splitlines()) <= SHORT
    assert max(lengths) <= LONG
    assert "uniform" not in plain
    assert "cotangents" not in plain


@pytest.mark.parametrize(
    ("changes", "mode", "reason"),
    [
        ({"regime": "minilm0", "embed_dim": 384, "num_heads": 12}, "eval", "real encoder"),
        ({"dropout": 0.5}, "train", "has random outputs and no standalone program"),
    ],
)
def test_a_case_without_a_program_is_refused_with_the_reason(
    changes: dict[str, object], mode: str, reason: str
) -> None:
    """``format_script`` refuses cases with parameters of the sentence encoder, and cases with dropout in train mode."""
    with pytest.raises(ValueError, match=reason):
        format_script(case(mode, **changes), LOAD)
