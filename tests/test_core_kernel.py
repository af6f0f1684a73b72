"""Tests of a kernel by itself: what it is handed, and what is refused because its signature lacks it."""

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench.cases import Case
from attnbench.interface import Policies, Refusal
from attnbench.kernel import CoreKernel, Kernel, core_from_kernel, from_kernel
from attnbench.operators.attention_core import OPERATOR, AttentionCoreProblem
from attnbench.operators.attention_core.suites import GROUPED, PLAIN
from attnbench.plugins.registry import list_names, load

if TYPE_CHECKING:
    from conftest import Conformance

WHOLE = "key_lengths must be whole numbers, int32 or int64"
BUILT_IN = [name for name in list_names() if name.startswith("core_")]


def case_of(problem: AttentionCoreProblem, **fields: Any) -> Case:
    """A case of attention on split heads."""
    return Case(operator="attention_core", problem=problem, **{"mode": "inference"} | fields)


def handed(problem: AttentionCoreProblem, **declared: Any) -> dict[str, Any]:
    """Keywords that a kernel with every one of them gets on a case."""
    got: dict[str, Any] = {}

    def kernel(
        q: Tensor, k: Tensor, v: Tensor, *, mask: Any, is_causal: Any, scale: Any, softcap: Any, enable_gqa: Any
    ) -> Tensor:
        got.update(mask=mask, is_causal=is_causal, scale=scale, softcap=softcap, enable_gqa=enable_gqa)
        return q.new_zeros(*q.shape[:3], v.shape[3])

    call_of(core_from_kernel(from_kernel(kernel, **declared)), problem)
    return got


def call_of(kernel: CoreKernel, problem: AttentionCoreProblem) -> Tensor:
    """Output of a kernel on a case."""
    case = case_of(problem)
    inputs = OPERATOR.inputs(case)
    module = kernel.build(OPERATOR.reference(case, inputs))
    output: Tensor = kernel.prepare(module, case, inputs)(**inputs.arguments())
    return output


def test_plain_attention_comes_without_a_mask() -> None:
    """The scale is 1/√head_dim unless another one is given."""
    assert handed(PLAIN) == {
        "mask": None,
        "is_causal": False,
        "scale": 1 / 8**0.5,
        "softcap": None,
        "enable_gqa": False,
    }
    assert handed(replace(GROUPED, scale=0.2, softcap=3.0)) == {
        "mask": None, "is_causal": False, "scale": 0.2, "softcap": 3.0, "enable_gqa": True,
    }  # fmt: skip


def test_the_flag_comes_where_it_says_all_and_in_its_own_corner() -> None:
    """Elsewhere the causal mask is a mask like any other."""
    top, bottom = replace(PLAIN, mask="causal_tl"), replace(PLAIN, mask="causal_br")
    lower = Policies(causal="bottom_right")
    flags = [handed(top), handed(bottom, policies=lower), handed(replace(bottom, queries=7))]
    assert [(one["is_causal"], one["mask"]) for one in flags] == [(True, None)] * 3
    masks = [handed(bottom), handed(top, policies=lower), handed(replace(top, mask="causal_tl+ragged"))]
    assert [one["is_causal"] for one in masks] == [False] * 3
    assert all(one["mask"].dtype == torch.bool for one in masks)
    assert masks[0]["mask"][0, 0, 0].tolist() == [True] * 3 + [False] * 4


def test_what_is_added_and_what_is_hidden_come_as_one_mask() -> None:
    """Numbers where anything is added, in the dtype of the queries; minus infinity hides."""
    mask = handed(replace(PLAIN, mask="causal_br+window+alibi+ragged", window=1))["mask"]
    assert (tuple(mask.shape), mask.dtype) == ((2, 3, 5, 7), torch.float32)
    assert mask[0, :, 4, 6].tolist() == [0.0] * 3
    assert mask[0, :, 4, 5].tolist() == pytest.approx([-(2 ** (-8 / 3)), -(2 ** (-16 / 3)), -(2.0**-8)])
    assert bool(mask[0, :, 4, 4].isneginf().all())
    assert handed(replace(PLAIN, mask="ragged"), additive_mask=True)["mask"].dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mask": "causal_br"}, "the kernel takes no mask"),
        ({"mask": "alibi"}, "the kernel takes no mask"),
        ({"softcap": 3.0}, "the kernel takes no softcap"),
        ({"num_heads": 6, "kv_heads": 2}, "the kernel takes no enable_gqa: heads of keys must be as many as heads of"),
    ],
)
def test_what_needs_an_absent_keyword_is_refused(changes: dict[str, Any], reason: str) -> None:
    """Before the call by ``unsupported``, and in the call as well."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scale: float) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)

    core = core_from_kernel(from_kernel(kernel))
    assert core.unsupported(case_of(replace(PLAIN, mask="causal_tl"))) is None
    problem = replace(PLAIN, **changes)
    assert str(core.unsupported(case_of(problem))).startswith(reason)
    with pytest.raises(Refusal, match="the kernel takes no"):
        call_of(core, problem)


def test_what_a_kernel_declares_goes_with_it() -> None:
    """Name, source, policies; a kernel without backward refuses gradients."""

    def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v[:, :, : q.shape[2]]

    core = core_from_kernel(from_kernel(kernel, source="https://example.org", policies=Policies(forward_only=True)))
    assert (core.name, core.operator, core.source) == ("core_kernel", "attention_core", "https://example.org")
    assert core.unsupported(case_of(PLAIN, mode="train")) == "forward only: no gradients"


@pytest.mark.parametrize("name", ["query", "key", "value", "bias"])
def test_a_kernel_without_backward_drops_no_gradient_in_silence(name: str) -> None:
    """Whichever tensor alone asks for one, the call is refused; where nothing can ask, it is not."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None) -> Tensor:
        return q + k.sum() + v.sum() + mask.sum()

    module = core_from_kernel(from_kernel(kernel, policies=Policies(forward_only=True))).build(None)
    tensors = dict(OPERATOR.inputs(case_of(replace(PLAIN, mask="bias2d"))).tensors)
    module(**tensors)
    tensors[name].requires_grad_()
    with pytest.raises(Refusal, match=r"^forward only: no gradients$"):
        module(**tensors)
    with torch.no_grad():
        module(**tensors)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"query": (2, 3, 5)}, "query, key and value must have 4 dimensions"),
        ({"key": (2, 3, 6, 8)}, r"value must have shape \(2, 3, 6, 8\), got \(2, 3, 7, 8\)"),
        ({"key": (2, 3, 7, 9)}, r"key must have shape \(2, 3, 7, 8\), got \(2, 3, 7, 9\)"),
        (
            {"key": (2, 2, 7, 8), "value": (2, 2, 7, 8)},
            "heads of query must be a multiple of those of key",
        ),
        ({"bias": (1, 3, 5, 7)}, r"bias must have shape \(5, 7\) or \(2, 3, 5, 7\), got \(1, 3, 5, 7\)"),
        ({"key_lengths": (1,)}, r"key_lengths must have shape \(2,\), got \(1,\)"),
        ({"query": (2, 3, 5, 0)}, r"query must have heads of width 1 at least, got \(2, 3, 5, 0\)"),
    ],
)
def test_shapes_that_do_not_fit_are_told(changes: dict[str, tuple[int, ...]], fault: str) -> None:
    """The error names the argument, what was needed and what came."""
    case = case_of(PLAIN)
    inputs = OPERATOR.inputs(case)
    kernel: CoreKernel = load("core_sdpa")
    tensors = {name: torch.zeros(shape) for name, shape in changes.items()}
    with pytest.raises(ValueError, match=fault):
        kernel.build(None)(**inputs.arguments() | tensors)


@pytest.mark.parametrize(
    ("given", "kind", "fault"),
    [
        ({"query": None}, TypeError, "query must be a tensor, got NoneType"),
        ({"value": [[1.0]]}, TypeError, "value must be a tensor, got list"),
        (
            {"key": torch.zeros(2, 3, 7, 8).half()},
            TypeError,
            "query, key and value must be of one dtype, got float32, ",
        ),
        ({"key": torch.zeros(2, 3, 7, 8, device="meta")}, ValueError, "key must be on query's device cpu, got meta"),
        ({"bias": [[1.0]]}, TypeError, "bias must be a tensor, got list"),
        ({"bias": torch.ones(5, 7).bool()}, TypeError, "bias must have the tokens' dtype float32, got bool"),
        ({"bias": torch.ones(5, 7).half()}, TypeError, "bias must have the tokens' dtype float32, got float16"),
        ({"bias": torch.ones(5, 7, device="meta")}, ValueError, "bias must be on query's device cpu, got meta"),
        (
            {"bias": torch.ones(5, 7), "alibi_slopes": [0.5] * 3},
            ValueError,
            "alibi_slopes must be None where there is a bias, got both",
        ),
        ({"key_lengths": [7, 3]}, TypeError, "key_lengths must be a tensor, got list"),
        ({"key_lengths": torch.tensor([7.0, 3.0])}, TypeError, f"{WHOLE}, got float32"),
        ({"key_lengths": torch.tensor([7, 3], dtype=torch.uint8)}, TypeError, f"{WHOLE}, got uint8"),
        ({"key_lengths": torch.tensor([7, 3], dtype=torch.uint16)}, TypeError, f"{WHOLE}, got uint16"),
        ({"key_lengths": torch.tensor([7, 8])}, ValueError, "key_lengths must be 0 to keys = 7, got 7 to 8"),
        ({"key_lengths": torch.tensor([-1, 3])}, ValueError, "key_lengths must be 0 to keys = 7, got -1 to 3"),
        (
            {"key_lengths": torch.tensor([7, 3], device="meta")},
            ValueError,
            "key_lengths must be on query's device cpu, got meta",
        ),
        ({"causal": "diagonal"}, ValueError, "causal must be 'top_left' or 'bottom_right', or None, got 'diagonal'"),
        ({"causal": True}, ValueError, "causal must be 'top_left' or 'bottom_right', or None, got True"),
        ({"window": -1}, ValueError, "window must be a whole number of at least 0, got -1"),
        ({"window": 2.5}, TypeError, "window must be a whole number of at least 0, got 2.5"),
        ({"window": math.nan}, TypeError, "window must be a whole number of at least 0, got nan"),
        ({"window": True}, TypeError, "window must be a whole number of at least 0, got True"),
        ({"window": "3"}, TypeError, "window must be a whole number of at least 0, got '3'"),
        ({"window": (2, 0)}, TypeError, "window must be a whole number of at least 0, got tuple"),
        ({"window": torch.tensor(2)}, TypeError, "window must be a whole number of at least 0, got Tensor"),
        ({"alibi_slopes": [0.5]}, ValueError, "alibi_slopes must be one for each of 3 heads of query, got 1"),
        ({"alibi_slopes": 0.5}, TypeError, "alibi_slopes must be a list or tuple of 3 numbers, or None, got 0.5"),
        ({"alibi_slopes": "abc"}, TypeError, "alibi_slopes must be a list or tuple of 3 numbers, or None, got 'abc'"),
        ({"alibi_slopes": [0.5, None, 0.5]}, TypeError, "alibi_slopes[1] must be a number, got None"),
        ({"alibi_slopes": [0.5, 0.5, math.nan]}, ValueError, "alibi_slopes[2] must be finite, got nan"),
        ({"softcap": 0.0}, ValueError, "softcap must be above 0, or None, got 0"),
        ({"softcap": math.inf}, ValueError, "softcap must be finite, got inf"),
        ({"softcap": True}, TypeError, "softcap must be a number, got True"),
        ({"softcap": "x"}, TypeError, "softcap must be a number, got 'x'"),
        ({"scale": math.nan}, ValueError, "scale must be finite, got nan"),
        ({"scale": -math.inf}, ValueError, "scale must be finite, got -inf"),
        ({"scale": True}, TypeError, "scale must be a number, got True"),
        ({"scale": torch.tensor(0.5)}, TypeError, "scale must be a number, got Tensor"),
    ],
)
def test_what_would_be_taken_for_something_else_is_told(
    given: dict[str, Any], kind: type[Exception], fault: str
) -> None:
    """Nothing broadcasts, is converted or is ignored in silence."""
    inputs = OPERATOR.inputs(case_of(PLAIN))
    kernel: CoreKernel = load("core_naive_loop")
    with pytest.raises(kind, match=f"^{re.escape(fault)}") as refused:
        kernel.build(None)(**inputs.arguments() | given)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_tokens_that_are_no_real_numbers_are_told(dtype: torch.dtype) -> None:
    """Attention is of floating point tokens."""
    tokens = {name: torch.ones(2, 3, 5, 8, dtype=dtype) for name in ("query", "key", "value")}
    with pytest.raises(TypeError, match=r"^query, key and value must be floating point, got "):
        load("core_sdpa").build(None)(**tokens)


def test_a_scale_is_any_finite_number() -> None:
    """With 0 all keys weigh alike; a whole number is a number."""
    tokens = OPERATOR.inputs(case_of(PLAIN)).tensors
    module = load("core_naive_loop").build(None)
    mean = tokens["value"].mean(dim=2, keepdim=True).expand(2, 3, 5, 8)
    for scale in (0, 0.0):
        assert torch.allclose(module(**tokens, scale=scale), mean, atol=1e-6)
    assert bool(module(**tokens, scale=-1).isfinite().all())


def test_every_kernel_of_multihead_stands_alone_as_well() -> None:
    """The same functions, under their names after core_."""
    loaded = {name: load(name) for name in list_names()}
    kernels = {name for name, one in loaded.items() if isinstance(one, Kernel)}
    assert kernels == {name.removeprefix("core_") for name in BUILT_IN}
    for name in BUILT_IN:
        assert load(name).name == name
        assert load(name).function is load(name.removeprefix("core_")).function


@pytest.mark.parametrize("name", sorted({*BUILT_IN} - {"core_naive_loop", "core_compiled", "core_flex"}))
def test_built_in_kernels_pass_every_check_on_quick(conformance: "Conformance", name: str) -> None:
    """On every case that they take; what takes long, the loop and compiling, is left to the command line."""
    kernel: CoreKernel = load(name)
    cases = [case for case in OPERATOR.suite("quick") if kernel.unsupported(case) is None]
    found = [
        (case.id, conformance.finding(kernel, case, check)) for case in cases for check in conformance.applicable(case)
    ]
    assert [(case, f.check, f.reason) for case, f in found if f.status not in ("passed", "unsupported")] == []


def test_values_without_any_key_have_gradients_of_their_own_width(conformance: "Conformance") -> None:
    """A kernel with a backward of its own, where there is nothing to add up."""
    case = case_of(replace(PLAIN, keys=0, head_dim_v=5), mode="train")
    checks = conformance.applicable(case)
    found = [conformance.finding(load("core_online_softmax"), case, check) for check in checks]
    assert "input_gradients" in checks
    assert [finding for finding in found if finding.status != "passed"] == []


def test_the_loop_takes_everything(conformance: "Conformance") -> None:
    """Shared heads, soft-cap, every mask and another width of values: it is the definition."""
    problem = replace(
        GROUPED, head_dim_v=3, mask="causal_br+window+bias4d+ragged", window=2, softcap=1.5, scale=0.2, queries=3
    )
    case, kernel = case_of(problem, mode="eval"), load("core_naive_loop")
    assert kernel.unsupported(case) is None
    for check in ("forward_parity", "input_gradients", "mask_gradients"):
        assert conformance.finding(kernel, case, check).status == "passed"


# The compiler asks for it itself, of whatever a graph that was broken off hands on.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_the_compiled_loop_leaves_out_what_it_leaves_out_otherwise(conformance: "Conformance") -> None:
    """A row without any key is 0 under a compiler, too, which knows no number of a mask."""
    problem = replace(PLAIN, mask="causal_br+alibi+ragged")
    finding = conformance.finding(load("core_naive_loop"), case_of(problem, mode="aot"), "compiled_parity")
    assert finding.status == "passed", finding.reason
