"""Tests of the built-in implementations, against ``torch.nn.MultiheadAttention`` itself."""

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Implementation
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.plugins.registry import describe_origin, list_names, load
from attnbench.refusals import (
    LacksDevice,
    NeedsDevice,
    NeedsDtype,
    NeedsPackage,
    NeedsVariable,
    OtherRefusal,
    TypedRefusal,
    UnsupportedSize,
    write_install_line,
)

REFUSALS = Path(__file__).parents[1] / "data" / "refusals.toml"
# Implementations that support every argument of the reference on a CPU.
COMPLETE = ["batched_matmul", "block_matrix", "naive_loop", "per_head", "reshaped", "sdpa", "sdpa_math"]
# Implementations that return no attention weights.
WITHOUT_WEIGHTS = ["sdpa_flash", "online_softmax", "varlen", "fused_projection"]
OWN = [*COMPLETE, *WITHOUT_WEIGHTS]

without_xformers = pytest.mark.skipif(importlib.util.find_spec("xformers") is None, reason="needs xformers")

CROSS = MultiheadProblem(
    batch=2, queries=5, keys=7, embed_dim=12, num_heads=3, bias=True, batch_first=True, need_weights=True
)
PROBLEMS = {
    "plain": CROSS,
    "no weights": replace(CROSS, need_weights=False),
    "averaged": replace(CROSS, average_attn_weights=True),
    "no bias": replace(CROSS, bias=False, batch_first=False, mask="bool2d"),
    "widths": replace(CROSS, kdim=10, vdim=14, mask="bool3d+pad", need_weights=False),
    "columns": replace(CROSS, add_bias_kv=True, add_zero_attn=True, mask="float3d+padfloat"),
    "columns, causal": replace(CROSS, add_bias_kv=True, mask="causal", is_causal=True),
    "unbatched": replace(CROSS, batch=None, mask="bool3d+pad"),
    "numbers and lengths": replace(CROSS, mask="float2d+pad"),
    "causal": replace(CROSS, mask="causal", is_causal=True, need_weights=False),
    "causal, fewer keys": replace(CROSS, queries=7, keys=3, mask="causal", is_causal=True, need_weights=False),
    "causal, padded": replace(CROSS, mask="causal+pad", is_causal=True),
    "self": replace(CROSS, keys=5, self_attention=True, mask="pad", need_weights=False),
    "peaked": replace(CROSS, regime="onehot", mask="bool2d"),
    "dropout": replace(CROSS, dropout=0.5),
}


def make_case(problem: MultiheadProblem, *, mode: str = "eval", dtype: str = "float64") -> Case:
    """Make a case, by default in float64 and eval mode."""
    return Case(operator="multihead", problem=problem, dtype=dtype, mode=mode)  # type: ignore[arg-type]


def compute(implementation: Implementation, case: Case) -> dict[str, Tensor]:
    """Compute outputs, attention weights and gradients; gradients of parameters are in the reference's layout."""
    drawn = OPERATOR.inputs(case)
    inputs = drawn.map_tensors(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()))
    module = implementation.build(OPERATOR.reference(case, drawn)).train(case.mode == "train")
    output, weights = module(**inputs.arguments())
    values = {"output": output} | ({} if weights is None else {"weights": weights})
    loss = sum((value * drawn.cotangents[name]).sum() for name, value in values.items())
    leaves = {id(t): t for t in inputs.tensors.values() if t.requires_grad}.values()
    own = dict(module.named_parameters())
    found = torch.autograd.grad(loss, [*leaves, *own.values()], materialize_grads=True, allow_unused=True)
    mapped = implementation.weights(inputs.parameters)
    assert mapped.keys() == own.keys()
    parameters = torch.autograd.grad(
        [mapped[name] for name in own], list(inputs.parameters.values()), found[len(leaves) :]
    )
    values |= {f"input {i}": gradient for i, gradient in enumerate(found[: len(leaves)])}
    return values | dict(zip(inputs.parameters, parameters, strict=True))


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("name", OWN)
@pytest.mark.filterwarnings("ignore:.*mismatched key_padding_mask and attn_mask.*")
def test_outputs_and_gradients_agree_with_the_reference(name: str, problem: MultiheadProblem) -> None:
    """In float64, outputs, attention weights and gradients agree with those of the reference up to rounding."""
    implementation = load(name)
    if name in WITHOUT_WEIGHTS:
        problem = replace(problem, need_weights=False, average_attn_weights=False)
    if reason := implementation.unsupported(make_case(problem)):
        assert name not in COMPLETE
        pytest.skip(f"refused: {reason}")
    # With is_causal and the key columns of bias_k or add_zero_attn, the reference applies the mask only if attention
    # weights are returned. Implementations without attention weights are therefore compared with ``reshaped``.
    expected = compute(load("reshaped" if name in WITHOUT_WEIGHTS else "torch_mha"), make_case(problem))
    torch.testing.assert_close(compute(implementation, make_case(problem)), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", ["eval", pytest.param("inference", marks=pytest.mark.extended), "train"])
@pytest.mark.parametrize("name", ["torch_mha", *OWN])
@pytest.mark.parametrize("mask", [pytest.param("floatcausal", marks=pytest.mark.extended), "floatcausal+pad"])
@pytest.mark.filterwarnings("ignore:.*mismatched key_padding_mask and attn_mask.*")
def test_every_check_passes_with_a_float_causal_mask(conformance: Any, name: str, mode: str, mask: str) -> None:
    """The mask takes no gradient, so that fused kernels, which give float masks none, are not refused."""
    implementation = load(name)
    problem = replace(CROSS, keys=5, self_attention=True, need_weights=False, mask=mask, is_causal=True)
    case = make_case(problem, mode=mode, dtype="float32")
    if reason := implementation.unsupported(case):
        assert name not in COMPLETE
        pytest.skip(f"refused: {reason}")
    findings = conformance.findings(implementation, case)
    passed = {finding.check for finding in findings if finding.status == "passed"}
    assert passed >= {"forward_parity", "future_cannot_leak"} | ({"input_gradients"} if case.tracks_inputs else set())
    assert "mask_gradients" not in {finding.check for finding in findings}
    assert [finding for finding in findings if finding.status not in ("passed", "unsupported")] == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", COMPLETE)
def test_results_have_the_dtype_of_the_inputs(name: str, dtype: str) -> None:
    """Outputs, attention weights and gradients have the inputs' dtype, and are close to the reference's in float64."""
    problem = replace(CROSS, mask="float3d+padfloat", add_bias_kv=True)
    expected = compute(load("torch_mha"), make_case(problem))
    for key, value in compute(load(name), make_case(problem, dtype=dtype)).items():
        assert value.dtype == getattr(torch, dtype), key
        limit = 16 * torch.finfo(value.dtype).eps * (1 + expected[key].abs().max())
        assert (value - expected[key]).abs().max() < limit, key


@pytest.mark.parametrize("mask", ["empty2d", "empty3d", "padempty", "empty3d+padempty"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", OWN)
def test_fully_masked_rows_give_zero_attention(name: str, mask: str, *, need_weights: bool) -> None:
    """In a fully masked row, attention weights are 0 and the output is out_proj.bias; all gradients are finite."""
    implementation, empty = load(name), make_case(replace(CROSS, mask=mask, need_weights=need_weights))
    if reason := implementation.unsupported(empty):
        assert name not in COMPLETE
        pytest.skip(f"refused: {reason}")
    values, drawn = compute(implementation, empty), OPERATOR.inputs(empty)
    assert all(value.isfinite().all() for value in values.values())
    rows = OPERATOR.hidden_rows(empty, drawn)
    if need_weights:
        hidden = values["weights"][rows["weights"].expand_as(values["weights"])]
        assert hidden.numel()
        assert not hidden.any()
    if mask != "empty3d":  # in empty3d, some heads of the row see keys
        last = values["output"][-1] if "pad" in mask else values["output"][:, empty.problem.queries // 2]
        torch.testing.assert_close(last, drawn.parameters["out_proj.bias"].expand_as(last))


@pytest.mark.parametrize("name", COMPLETE)
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 5, 7), (2, 0, 7), (2, 5, 0)])
def test_empty_sizes_give_empty_or_zero_attention(
    name: str, batch: int, queries: int, keys: int, *, need_weights: bool
) -> None:
    """An empty batch or no queries give an empty output; no keys give out_proj.bias as output, and zero gradients."""
    reference = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    nn.init.normal_(reference.out_proj.bias)
    query, key = torch.randn(batch, queries, 12).double(), torch.randn(batch, keys, 12).double()
    query.requires_grad_()
    padding = torch.zeros(batch, keys, dtype=torch.bool)
    output, weights = load(name).build(reference)(
        query, key, key, key_padding_mask=padding, need_weights=need_weights, average_attn_weights=False
    )
    assert output.shape == (batch, queries, 12)
    assert (weights.shape == (batch, 3, queries, keys)) if need_weights else weights is None
    if keys == 0:
        assert torch.equal(output, reference.out_proj.bias.expand_as(output))
    output.sum().backward()
    assert query.grad is not None
    assert not query.grad.any()


@pytest.mark.parametrize("p", [0.5, 1.0])
@pytest.mark.parametrize("name", COMPLETE)
def test_returned_weights_include_dropout(name: str, p: float) -> None:
    """The output is the returned attention weights times the values; weights not dropped are scaled by 1 / (1 − p)."""
    torch.manual_seed(0)
    reference = nn.MultiheadAttention(8, 1, dropout=p, batch_first=True, bias=False, dtype=torch.float64)
    with torch.no_grad():  # value and output projections are the identity
        reference.in_proj_weight[16:] = reference.out_proj.weight[:] = torch.eye(8)
    module = load(name).build(reference)
    x = torch.randn(2, 16, 8).double()
    output, dropped = module.train()(x, x, x)
    torch.testing.assert_close(output, dropped @ x)
    _, whole = module.eval()(x, x, x)
    kept = dropped != 0
    assert (1 - p) / 2 <= kept.double().mean() <= 1.5 * (1 - p)
    torch.testing.assert_close(dropped[kept] * (1 - p), whole[kept])


def count_refusals() -> dict[str, dict[str, int]]:
    """Count the cases of ``core`` that are refused on a CPU, by implementation of multi-head attention and reason."""
    counted = {}
    for name in list_names():
        if not describe_origin(name).startswith("attnzoo."):
            continue
        implementation = load(name)
        if implementation.operator != OPERATOR.name:
            continue
        reasons = Counter(implementation.unsupported(case) for case in OPERATOR.suite("core"))
        del reasons[None]
        if reasons:
            counted[name] = {repr(reason): count for reason, count in sorted(reasons.items(), key=str)}
    return counted


def format_refusals(counts: dict[str, dict[str, int]]) -> str:
    """Format the counts of refusals as in the committed file."""
    heading = "# Cases of the suite core that are refused on a CPU: reason = number, by implementation.\n"
    tables = (
        f"\n[{name}]\n" + "".join(f"{json.dumps(reason)} = {count}\n" for reason, count in reasons.items())
        for name, reasons in counts.items()
    )
    return heading + "".join(tables)


@without_xformers
def test_refusals_are_the_committed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an implementation refuses more or fewer cases than before, the committed file of refusals must change."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    now = count_refusals()
    assert now == tomllib.loads(REFUSALS.read_text()), (
        f"if this is intended, write to {REFUSALS.name}:\n\n{format_refusals(now)}"
    )


@pytest.mark.parametrize("name", ["xformers", "xformers_splitk"])
def test_a_missing_package_is_refused_with_the_install_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the package of an implementation is not installed, the refusal contains the install command."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    reason = load(name).unsupported(make_case(replace(CROSS, need_weights=False), mode="inference", dtype="float16"))
    assert isinstance(reason, NeedsPackage)
    assert reason.install == write_install_line("xformers")
    assert "'xformers>=" in reason.install


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("sdpa_flash", "aten::_scaled_dot_product_flash_attention_for_cpu"),
        ("sdpa_math", "aten::_scaled_dot_product_attention_math"),
    ],
)
def test_the_selected_backend_is_the_one_that_runs(name: str, operator: str) -> None:
    """The profiler shows the operator of the selected backend and of no other."""
    drawn = OPERATOR.inputs(plain := make_case(PROBLEMS["no weights"]))
    module = load(name).build(OPERATOR.reference(plain, drawn)).eval()
    with torch.profiler.profile() as profile:
        module(**drawn.arguments())
    ran = {event.key for event in profile.key_averages() if event.key.startswith("aten::_scaled_dot_product")}
    assert ran == {operator}


def test_a_selected_backend_raises_where_it_cannot_run() -> None:
    """Flash attention on a CPU has no dropout: ``unsupported`` gives torch's message, and such a call raises."""
    dropped = make_case(replace(PROBLEMS["no weights"], dropout=0.5), mode="train")
    flash, drawn = load("sdpa_flash"), OPERATOR.inputs(dropped)
    assert flash.unsupported(dropped) == OtherRefusal(
        text="Both fused kernels do not support non-zero dropout.", library="torch"
    )
    with (
        pytest.warns(UserWarning, match="not used because|non-zero dropout"),
        pytest.raises(RuntimeError, match="No available kernel"),
    ):
        flash.build(OPERATOR.reference(dropped, drawn)).train()(**drawn.arguments())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_backends_are_refused_without_cuda() -> None:
    """Backends that run only on CUDA give the missing CUDA device as the reason."""
    plain = make_case(PROBLEMS["no weights"], dtype="float16", mode="inference")
    assert load("sdpa_efficient").unsupported(plain) == NeedsDevice(devices=("cuda",))
    assert load("sdpa_cudnn").unsupported(plain.with_fields(device="cuda")) == LacksDevice(device="cuda")


def test_the_naive_loop_predicts_its_time() -> None:
    """The predicted time is proportional to the number of query-key pairs, and longer with a backward pass."""
    naive = load("naive_loop")
    once = naive.predicted_s(make_case(CROSS, mode="inference"))
    assert naive.predicted_s(make_case(replace(CROSS, batch=4, queries=10), mode="inference")) == pytest.approx(
        4 * once
    )
    assert naive.predicted_s(make_case(CROSS)) > once


def test_per_head_splits_parameters_by_heads() -> None:
    """Head h has rows h · head_dim to (h + 1) · head_dim of every projection except the output projection."""
    reference = nn.MultiheadAttention(6, 2, kdim=5, vdim=4, add_bias_kv=True)
    per_head = load("per_head")
    module = per_head.build(reference)
    assert torch.equal(module.w_k[1], reference.k_proj_weight[3:])
    assert torch.equal(module.b_v[0], reference.in_proj_bias[12:15])
    assert torch.equal(module.column_v[1], reference.bias_v[0, 0, 3:])
    own = {name: tensor.shape for name, tensor in per_head.weights(dict(reference.named_parameters())).items()}
    assert own == {name: tensor.shape for name, tensor in module.named_parameters()}


SPLITK = """
import torch
from attnbench.cases import Case
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.plugins.registry import load
from attnbench.refusals import Interpreted

splitk, worst = load("xformers_splitk"), 0.0
for mask in ("none", "bool3d+pad", "float2d", "empty2d", "causal"):
    problem = MultiheadProblem(batch=2, queries=17, keys=70, embed_dim=24, num_heads=3, mask=mask, bias=True)
    case = Case(operator="multihead", problem=problem, dtype="float16", mode="inference")
    assert splitk.unsupported(case) is None, splitk.unsupported(case)
    assert splitk.untimed(case) == Interpreted(interpreter="Triton")
    inputs = OPERATOR.inputs(case)
    wide = inputs.map_tensors(lambda t: t.double() if t.is_floating_point() else t)
    expected, _ = OPERATOR.reference(case, wide).train()(**wide.arguments())
    with torch.no_grad():
        got, _ = splitk.build(OPERATOR.reference(case, inputs))(**inputs.arguments())
    worst = max(worst, (got.double() - expected).abs().max().item())
print(worst)
"""


@pytest.mark.extended
@without_xformers
def test_splitk_interpreted_agrees_with_the_reference() -> None:
    """Under Triton's interpreter the kernel agrees in float16, fully masked rows included, and gives no warning."""
    environment = {**os.environ, **load("xformers_splitk").environment()}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-W", "error::RuntimeWarning", "-c", SPLITK],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "xFormers" not in done.stderr
    assert float(done.stdout) < 8 * torch.finfo(torch.float16).eps


INTERPRETED = NeedsDtype(dtypes=("float16", "float32"), device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize(
    ("fields", "dtype", "reason"),
    [
        ({}, "bfloat16", INTERPRETED),
        ({}, "float64", INTERPRETED),
        ({"embed_dim": 36}, "float16", UnsupportedSize(name="head_dim", power_of_two=True)),
        (
            {"embed_dim": 384},
            "float16",
            UnsupportedSize(name="head_dim", excluded=(128,), device="cpu"),
        ),
        ({}, "float32", None),
    ],
)
@without_xformers
def test_splitk_refuses_what_the_interpreter_gets_wrong(
    fields: Any, dtype: str, reason: TypedRefusal | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dtypes and head widths for which Triton's interpreter gives errors are refused, each with a reason."""
    one = make_case(replace(CROSS, need_weights=False, **fields), dtype=dtype, mode="inference")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert load("xformers_splitk").unsupported(one) == reason
    monkeypatch.delenv("TRITON_INTERPRET")
    assert load("xformers_splitk").unsupported(one) == NeedsVariable(name="TRITON_INTERPRET", value="1")
