"""Tests of kernels of ``attention_core``: the arguments that they get, and the cases and arguments that are refused."""

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
from attnbench.refusals import LacksGradients, LacksKeywords

if TYPE_CHECKING:
    from conftest import Conformance

WHOLE = "key_lengths must have dtype int32 or int64"
BUILT_IN = [name for name in list_names() if name.startswith("core_")]


def make_case(problem: AttentionCoreProblem, **fields: Any) -> Case:
    """Make a case of ``attention_core``, whose inputs are already split into heads."""
    return Case(operator="attention_core", problem=problem, **{"mode": "inference"} | fields)


def record_keywords(problem: AttentionCoreProblem, **declared: Any) -> dict[str, Any]:
    """Return the keyword arguments that a kernel with all keywords gets on a case."""
    got: dict[str, Any] = {}

    def kernel(
        q: Tensor, k: Tensor, v: Tensor, *, mask: Any, is_causal: Any, scale: Any, softcap: Any, enable_gqa: Any
    ) -> Tensor:
        got.update(mask=mask, is_causal=is_causal, scale=scale, softcap=softcap, enable_gqa=enable_gqa)
        return q.new_zeros(*q.shape[:3], v.shape[3])

    run_kernel(core_from_kernel(from_kernel(kernel, **declared)), problem)
    return got


def run_kernel(kernel: CoreKernel, problem: AttentionCoreProblem) -> Tensor:
    """Return the output of a kernel on a case."""
    case = make_case(problem)
    inputs = OPERATOR.inputs(case)
    module = kernel.build(OPERATOR.reference(case, inputs))
    output: Tensor = kernel.prepare(module, case, inputs)(**inputs.arguments())
    return output


def test_plain_attention_has_no_mask() -> None:
    """Without any mask the kernel gets ``mask=None``; the scale is 1/√head_dim unless the case gives another scale."""
    assert record_keywords(PLAIN) == {
        "mask": None,
        "is_causal": False,
        "scale": 1 / 8**0.5,
        "softcap": None,
        "enable_gqa": False,
    }
    assert record_keywords(replace(GROUPED, scale=0.2, softcap=3.0)) == {
        "mask": None, "is_causal": False, "scale": 0.2, "softcap": 3.0, "enable_gqa": True,
    }  # fmt: skip


def test_the_causal_flag_is_set_only_where_it_is_equivalent_to_the_mask() -> None:
    """``is_causal`` is set if the kernel's ``causal`` policy matches the mask's alignment, else a mask is passed."""
    top, bottom = replace(PLAIN, mask="causal_tl"), replace(PLAIN, mask="causal_br")
    lower = Policies(causal="bottom_right")
    flags = [record_keywords(top), record_keywords(bottom, policies=lower), record_keywords(replace(bottom, queries=7))]
    assert [(one["is_causal"], one["mask"]) for one in flags] == [(True, None)] * 3
    masks = [
        record_keywords(bottom),
        record_keywords(top, policies=lower),
        record_keywords(replace(top, mask="causal_tl+ragged")),
    ]
    assert [one["is_causal"] for one in masks] == [False] * 3
    assert all(one["mask"].dtype == torch.bool for one in masks)
    assert masks[0]["mask"][0, 0, 0].tolist() == [True] * 3 + [False] * 4


def test_a_bias_and_hidden_keys_are_combined_in_one_mask() -> None:
    """A case with a bias has one additive mask, in the dtype of the queries, with minus infinity for hidden keys."""
    mask = record_keywords(replace(PLAIN, mask="causal_br+window+alibi+ragged", window=1))["mask"]
    assert (tuple(mask.shape), mask.dtype) == ((2, 3, 5, 7), torch.float32)
    assert mask[0, :, 4, 6].tolist() == [0.0] * 3
    assert mask[0, :, 4, 5].tolist() == pytest.approx([-(2 ** (-8 / 3)), -(2 ** (-16 / 3)), -(2.0**-8)])
    assert bool(mask[0, :, 4, 4].isneginf().all())
    assert record_keywords(replace(PLAIN, mask="ragged"), additive_mask=True)["mask"].dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ({"mask": "causal_br"}, "mask"),
        ({"mask": "alibi"}, "mask"),
        ({"softcap": 3.0}, "softcap"),
        ({"num_heads": 6, "kv_heads": 2}, "enable_gqa"),
    ],
)
def test_a_case_that_needs_a_missing_keyword_is_refused(changes: dict[str, Any], keyword: str) -> None:
    """``unsupported`` returns the reason, and the call raises Refusal."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scale: float) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)

    core = core_from_kernel(from_kernel(kernel))
    assert core.unsupported(make_case(replace(PLAIN, mask="causal_tl"))) is None
    problem = replace(PLAIN, **changes)
    assert core.unsupported(make_case(problem)) == LacksKeywords(keywords=(keyword,))
    with pytest.raises(Refusal, check=lambda refusal: isinstance(refusal.args[0], LacksKeywords)):
        run_kernel(core, problem)


def test_a_kernels_declarations_are_kept() -> None:
    """Source and policies are kept, and the name gets a prefix; a kernel without backward refuses gradients."""

    def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v[:, :, : q.shape[2]]

    core = core_from_kernel(from_kernel(kernel, source="https://example.org", policies=Policies(forward_only=True)))
    assert (core.name, core.operator, core.source) == ("core_kernel", "attention_core", "https://example.org")
    assert core.unsupported(make_case(PLAIN, mode="train")) == LacksGradients()


@pytest.mark.parametrize("name", ["query", "key", "value", "bias"])
def test_a_kernel_without_backward_refuses_every_tensor_that_requires_a_gradient(name: str) -> None:
    """One tensor that requires a gradient is enough for a refusal; under ``no_grad`` the kernel is called."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None) -> Tensor:
        return q + k.sum() + v.sum() + mask.sum()

    module = core_from_kernel(from_kernel(kernel, policies=Policies(forward_only=True))).build(None)
    tensors = dict(OPERATOR.inputs(make_case(replace(PLAIN, mask="bias2d"))).tensors)
    module(**tensors)
    tensors[name].requires_grad_()
    with pytest.raises(Refusal, check=lambda refusal: refusal.args == (LacksGradients(),)):
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
            "query's number of heads must be a multiple of key's",
        ),
        ({"bias": (1, 3, 5, 7)}, r"bias must have shape \(5, 7\) or \(2, 3, 5, 7\), got \(1, 3, 5, 7\)"),
        ({"key_lengths": (1,)}, r"key_lengths must have shape \(2,\), got \(1,\)"),
        ({"query": (2, 3, 5, 0)}, r"query must have a head width of at least 1, got shape \(2, 3, 5, 0\)"),
    ],
)
def test_wrong_shapes_are_errors(changes: dict[str, tuple[int, ...]], fault: str) -> None:
    """The error names the argument, what was needed and what came."""
    case = make_case(PLAIN)
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
            "query, key and value must have the same dtype, got float32, ",
        ),
        ({"key": torch.zeros(2, 3, 7, 8, device="meta")}, ValueError, "key must be on query's device cpu, got meta"),
        ({"bias": [[1.0]]}, TypeError, "bias must be a tensor, got list"),
        ({"bias": torch.ones(5, 7).bool()}, TypeError, "bias must have query's dtype float32, got bool"),
        ({"bias": torch.ones(5, 7).half()}, TypeError, "bias must have query's dtype float32, got float16"),
        ({"bias": torch.ones(5, 7, device="meta")}, ValueError, "bias must be on query's device cpu, got meta"),
        (
            {"bias": torch.ones(5, 7), "alibi_slopes": [0.5] * 3},
            ValueError,
            "alibi_slopes must be None if bias is given, got both",
        ),
        ({"key_lengths": [7, 3]}, TypeError, "key_lengths must be a tensor, got list"),
        ({"key_lengths": torch.tensor([7.0, 3.0])}, TypeError, f"{WHOLE}, got float32"),
        ({"key_lengths": torch.tensor([7, 3], dtype=torch.uint8)}, TypeError, f"{WHOLE}, got uint8"),
        ({"key_lengths": torch.tensor([7, 3], dtype=torch.uint16)}, TypeError, f"{WHOLE}, got uint16"),
        (
            {"key_lengths": torch.tensor([7, 8])},
            ValueError,
            "key_lengths must be from 0 to 7, the number of keys, got 7 to 8",
        ),
        (
            {"key_lengths": torch.tensor([-1, 3])},
            ValueError,
            "key_lengths must be from 0 to 7, the number of keys, got -1 to 3",
        ),
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
        ({"alibi_slopes": [0.5]}, ValueError, "alibi_slopes must have one number for each of the 3 query heads, got 1"),
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
def test_arguments_that_would_be_misread_are_errors(given: dict[str, Any], kind: type[Exception], fault: str) -> None:
    """No argument is silently broadcast, converted or ignored: each of these calls is an error."""
    inputs = OPERATOR.inputs(make_case(PLAIN))
    kernel: CoreKernel = load("core_naive_loop")
    with pytest.raises(kind, match=f"^{re.escape(fault)}") as refused:
        kernel.build(None)(**inputs.arguments() | given)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_tokens_that_are_not_floating_point_are_errors(dtype: torch.dtype) -> None:
    """Integer, boolean and complex tokens are refused."""
    tokens = {name: torch.ones(2, 3, 5, 8, dtype=dtype) for name in ("query", "key", "value")}
    with pytest.raises(TypeError, match=r"^query, key and value must be floating point, got "):
        load("core_sdpa").build(None)(**tokens)


def test_a_scale_is_any_finite_number() -> None:
    """The scale may be 0, so that all keys have equal attention weights, or negative, or an integer."""
    tokens = OPERATOR.inputs(make_case(PLAIN)).tensors
    module = load("core_naive_loop").build(None)
    mean = tokens["value"].mean(dim=2, keepdim=True).expand(2, 3, 5, 8)
    for scale in (0, 0.0):
        assert torch.allclose(module(**tokens, scale=scale), mean, atol=1e-6)
    assert bool(module(**tokens, scale=-1).isfinite().all())


def test_every_multihead_kernel_is_also_an_implementation_of_attention_core() -> None:
    """The function of both is the same; the name for ``attention_core`` has the prefix ``core_``."""
    loaded = {name: load(name) for name in list_names()}
    kernels = {name for name, one in loaded.items() if isinstance(one, Kernel)}
    assert kernels == {name.removeprefix("core_") for name in BUILT_IN}
    for name in BUILT_IN:
        assert load(name).name == name
        assert load(name).function is load(name.removeprefix("core_")).function


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("core_online_softmax", "core_sdpa") else [pytest.mark.extended])
        for name in sorted({*BUILT_IN} - {"core_naive_loop", "core_compiled", "core_flex"})
    ],
)
def test_built_in_kernels_pass_every_check_on_quick(conformance: "Conformance", name: str) -> None:
    """Kernels pass on every case of quick that they support; the slow ones (loop and compiled) are not tested here."""
    kernel: CoreKernel = load(name)
    cases = [case for case in OPERATOR.suite("quick") if kernel.unsupported(case) is None]
    found = [(case.id, finding) for case in cases for finding in conformance.findings(kernel, case)]
    assert [(case, f.check, f.facts) for case, f in found if f.status not in ("passed", "unsupported")] == []


def test_values_without_any_key_have_gradients_of_their_own_width(conformance: "Conformance") -> None:
    """If there are no keys, a kernel with its own backward gives gradients in the width of values, not of keys."""
    case = make_case(replace(PLAIN, keys=0, head_dim_v=5), mode="train")
    checks = conformance.applicable(case)
    found = [conformance.finding(load("core_online_softmax"), case, check) for check in checks]
    assert "input_gradients" in checks
    assert [finding for finding in found if finding.status != "passed"] == []


def test_the_naive_loop_supports_every_option(conformance: "Conformance") -> None:
    """The naive loop passes with shared key heads, a soft-cap, combined masks, and values of another width."""
    problem = replace(
        GROUPED, head_dim_v=3, mask="causal_br+window+bias4d+ragged", window=2, softcap=1.5, scale=0.2, queries=3
    )
    case, kernel = make_case(problem, mode="eval"), load("core_naive_loop")
    assert kernel.unsupported(case) is None
    for check in ("forward_parity", "input_gradients", "mask_gradients"):
        assert conformance.finding(kernel, case, check).status == "passed"


# Where the compiler splits a graph, it reads ``.grad`` of tensors that are not leaves, which makes torch warn.
@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_the_compiled_loop_gives_zeros_in_fully_masked_rows(conformance: "Conformance") -> None:
    """A fully masked row is 0 also under a compiler, which does not know the values of the mask."""
    problem = replace(PLAIN, mask="causal_br+alibi+ragged")
    finding = conformance.finding(load("core_naive_loop"), make_case(problem, mode="aot"), "compiled_parity")
    assert finding.status == "passed", finding.facts
