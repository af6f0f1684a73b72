"""Tests of ``xformers`` on a machine without CUDA: all that xFormers and attnbench do besides running a kernel.

PyTorch's operator ``_efficient_attention_forward``, which xFormers' CUTLASS operator calls, exists for CUDA only. Here
it is computed on the CPU from its formula. The choice of the bias, the layouts, xFormers' validation and dispatch, its
refusals and its autograd function are the real ones.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.cases import COMPILED_MODES, Case
from attnbench.interface import Refusal
from attnbench.kernel import optional_packages
from attnbench.kernel.optional_packages import import_package
from attnbench.plugins.registry import load, load_operator
from attnbench.refusals import BrokenPackage, LacksKeywords, NeedsDevice, OtherRefusal

pytest.importorskip("xformers", reason="xformers has no wheel for this system")

from attnzoo import xformers_fmha, xformers_splitk

# The operator's ``custom_mask_type`` of a causal mask aligned at the top left. Source:
# https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/transformers/cuda/attention.cu.
TOP_LEFT = 1
# Dtypes of the cases on which the implementation is called: xFormers takes no bfloat16 on a CPU.
DTYPES = ("float32", "float16")
ONE = torch.ones(())


def widen(*tensors: Tensor) -> list[Tensor]:
    """Return float64 copies with heads before lengths."""
    return [one.double().transpose(1, 2) for one in tensors]


def compute_weights(q: Tensor, k: Tensor, bias: Tensor | None, kind: int, scale: float) -> Tensor:
    """Return softmax(scale · q kᵀ + bias) of tensors with heads before lengths."""
    logits = q @ k.transpose(-2, -1) * scale
    if bias is not None:
        logits = logits + bias.double()
    if kind == TOP_LEFT:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), float("-inf"))
    return logits.softmax(-1)


def draw_kept(seed: Tensor, shape: tuple[int, ...], dropout_p: float) -> Tensor:
    """Return 0 for dropped weights, and 1 / (1 − p) for the others."""
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(int(seed)), dtype=torch.float64)
    return (drawn >= dropout_p) / (1 - dropout_p)


@dataclass
class Kernel:
    """The two operators on the CPU, and the biases that they were called with."""

    biases: list[Any] = field(default_factory=list)

    def forward(self, *given: Any, scale: float | None = None, **absent: Any) -> tuple[Any, ...]:
        """Compute ``aten::_efficient_attention_forward``."""
        q, k, v, bias, *starts, dropout_p, kind = given[:10]
        compute_lse = any(given[10:])
        assert not any(one is not None for one in (*starts[:2], *absent.values())), "no packed sequences, no window"
        self.biases.append(bias)
        shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
        seed = torch.randint(2**31, ()) if dropout_p else torch.zeros((), dtype=torch.int64)
        kept = draw_kept(seed, shape, dropout_p) if dropout_p else ONE
        wide = widen(q, k, v)
        weights = compute_weights(wide[0], wide[1], bias, kind, scale or q.shape[-1] ** -0.5)
        output = ((weights * kept) @ wide[2]).transpose(1, 2)
        lse = torch.zeros(shape[:3]) if compute_lse else torch.empty(0)
        return output.to(q.dtype), lse, seed, seed.clone(), *shape[2:]

    def backward(self, *given: Any, scale: float | None = None, **_: Any) -> tuple[Tensor, ...]:
        """Compute ``aten::_efficient_attention_backward``."""
        grad, q, k, v, bias = given[:5]
        dropout_p, seed, _, kind, bias_requires_grad = given[11:16]
        scale = scale or q.shape[-1] ** -0.5
        kept = draw_kept(seed, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]), dropout_p) if dropout_p else ONE
        cotangent, *wide = widen(grad, q, k, v)
        weights = compute_weights(wide[0], wide[1], bias, kind, scale)
        to_weights = cotangent @ wide[2].transpose(-2, -1) * kept
        to_logits = weights * (to_weights - (to_weights * weights).sum(-1, keepdim=True))
        found = (
            scale * to_logits @ wide[1],
            scale * to_logits.transpose(-2, -1) @ wide[0],
            (weights * kept).transpose(-2, -1) @ cotangent,
        )
        narrow = [one.transpose(1, 2).to(q.dtype) for one in found]
        return (*narrow, to_logits.to(bias.dtype) if bias_requires_grad else torch.empty(0))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """The CUTLASS operator of xFormers on the CPU, with its kernel computed from the formula."""
    made = Kernel()
    registered = torch.library.Library("aten", "IMPL", "CPU")
    registered.impl("_efficient_attention_forward", made.forward)
    registered.impl("_efficient_attention_backward", made.backward)
    fmha = import_package(*xformers_fmha.FMHA)
    for operator in (fmha.cutlass.FwOp, fmha.cutlass.BwOp):
        monkeypatch.setattr(operator, "SUPPORTED_DEVICES", {"cpu"})
    # What xFormers asks about the device, to choose among its operators and to pad the logarithms of sums.
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    with monkeypatch.context():
        yield made
    registered._destroy()


def list_cases(operator: str, suite: str) -> list[Case]:
    """Return the cases of a suite whose dtype the CUTLASS operator takes, without compiled modules."""
    return [
        case
        for case in load_operator(operator).suite(suite)
        if case.dtype in DTYPES
        and case.mode not in COMPILED_MODES
        and getattr(case.problem, "encoder_layer", None) is None
    ]


@pytest.mark.parametrize(
    ("name", "suite", "fewest"),
    [
        ("xformers", "quick", 10),
        ("core_xformers", "quick", 5),
        pytest.param("xformers", "core", 33, marks=pytest.mark.extended),
        pytest.param("core_xformers", "core", 16, marks=pytest.mark.extended),
    ],
)
def test_all_but_the_kernel_conforms(conformance, kernel: Kernel, name: str, suite: str, fewest: int) -> None:
    """Around an exact kernel, no check of a case fails: biases, layouts, dropout and gradients are right."""
    implementation = load(name)
    cases = [case for case in list_cases(name_operator(name), suite) if implementation.unsupported(case) is None]
    if suite == "core":
        cases = cases[::3]  # all of them take two minutes
    assert len(cases) >= fewest
    failed = [
        (case.id, finding.check, finding.facts)
        for case in cases
        for finding in conformance.findings(implementation, case)
        if finding.status not in {"passed", "unsupported"}
    ]
    assert failed == []
    assert kernel.biases


def name_operator(name: str) -> str:
    """Return the operator that an implementation of this name computes."""
    return "attention_core" if name.startswith("core_") else "multihead"


@pytest.mark.parametrize("name", ["xformers", "core_xformers"])
def test_a_case_is_judged_by_the_inputs_that_it_has(
    conformance, kernel: Kernel, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is asked about tensors and a bias of the shapes, strides and types that the call then has."""
    given: list[Any] = []
    fmha = import_package(*xformers_fmha.FMHA)
    call = fmha.memory_efficient_attention

    def note(*arguments: Any, **options: Any) -> Any:
        options = {"attn_bias": None, "p": 0.0} | options
        given.append(fmha.Inputs(*arguments, attn_bias=options["attn_bias"], p=options["p"]))
        return call(*arguments, **options)

    monkeypatch.setattr(fmha, "memory_efficient_attention", note)
    implementation, operator = load(name), load_operator(name_operator(name))
    probe = xformers_fmha._make_core_probe if name.startswith("core_") else xformers_fmha._make_probe
    kinds: Counter[str] = Counter()
    for case in list_cases(operator.name, "core"):
        if implementation.unsupported(case) is not None:
            continue
        given.clear()
        conformance.candidate(implementation, case).run()
        seen = given[0]
        asked = probe(case)
        assert describe(asked) == describe(seen), case.id
        kinds[type(seen.attn_bias).__name__] += 1
    assert {"NoneType", "Tensor", "LowerTriangularMask"} <= set(kinds)


def describe(inputs: Any) -> list[Any]:
    """Return what xFormers' decision depends on."""
    bias = inputs.attn_bias
    tensors = [inputs.query, inputs.key, inputs.value, *([bias] if isinstance(bias, Tensor) else [])]
    strides = [None] * 3 + [[stride % 8 == 0 for stride in one.stride()[:-1]] for one in tensors[3:]]
    return [
        type(bias),
        inputs.p,
        *((tuple(one.shape), one.dtype, stride) for one, stride in zip(tensors, strides, strict=True)),
    ]


def test_what_the_operator_refuses_is_refused_in_its_words(kernel: Kernel) -> None:
    """A dtype that no operator takes and a bias that no operator differentiates are refused before the call."""
    case = next(case for case in list_cases("multihead", "core") if load("xformers").unsupported(case) is None)
    reason = load("xformers").unsupported(case.with_fields(dtype="float64"))
    assert isinstance(reason, OtherRefusal)
    assert "float64" in reason.text
    assert reason.library == "xformers"


@pytest.mark.parametrize("name", ["xformers", "core_xformers"])
def test_without_the_operator_the_device_is_the_reason(name: str) -> None:
    """On a CPU, every case whose arguments the kernel takes is refused because the operators need a CUDA device."""
    reasons = [load(name).unsupported(case) for case in list_cases(name_operator(name), "quick")]
    assert {reason for reason in reasons if not isinstance(reason, LacksKeywords)} == {NeedsDevice(devices=("cuda",))}


BROKEN = {
    "raises": ("raise OSError('libcudart.so.12: cannot open shared object file')", "OSError: libcudart.so.12: cannot"),
    "lacks": ("", "xformers.ops.fmha has no "),
    "no_module": (None, "No module named 'xformers.ops.fmha'"),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("module", [xformers_fmha, xformers_splitk])
def test_an_xformers_that_cannot_be_used_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, module: Any
) -> None:
    """An installed package whose import fails, or that lacks what is called, is refused with the reason."""
    source, expected = BROKEN[kind]
    for folder in ("xformers", "xformers/ops"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    if source is not None:
        (tmp_path / "xformers/ops/fmha.py").write_text(source)
    for name in [name for name in sys.modules if name.partition(".")[0] == "xformers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(optional_packages, "_import_once", optional_packages._import_once.__wrapped__)
    case = list_cases("multihead", "quick")[0]
    reason = module.explain_refusal(case)
    assert isinstance(reason, BrokenPackage)
    assert reason.package == "xformers"
    assert expected in reason.error
    with pytest.raises(Refusal):
        import_package(*module.FMHA)
    for name in [name for name in sys.modules if name.partition(".")[0] == "xformers"]:
        monkeypatch.delitem(sys.modules, name)
