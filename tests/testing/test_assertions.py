"""Tests of ``attnbench.testing``: verdicts of the suite, layouts, masks, functions, gradients, unusable arguments."""

import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench.candidate.candidate import Malformed
from attnbench.candidate.global_state import read_settings, restore_settings
from attnbench.cases import Case
from attnbench.interface import Inputs, Policies
from attnbench.mutants.attention_core import MUTANTS as MUTANT_SET
from attnbench.operators.attention_core import OPERATOR
from attnbench.operators.attention_core.positions import find_visible
from attnbench.testing import assert_attention_close, compare_attention

QUICK = [case for case in OPERATOR.suite("quick") if case.problem.regime == "plain"]
MUTANTS = {mutant.name: mutant.implementation for mutant in MUTANT_SET.mutants}


def make_arguments(case: Case, inputs: Inputs) -> dict[str, Any]:
    """Return the arguments of ``assert_attention_close`` for a case of the suite."""
    problem, tensors = case.problem, inputs.tensors
    found: dict[str, Any] = {"q": tensors["query"], "k": tensors["key"], "v": tensors["value"]}
    found |= {"scale": problem.scale or None, "mask": tensors.get("bias"), "enable_gqa": True}
    if problem.parts & {"window", "ragged"}:
        visible = find_visible(problem, inputs)
        found["mask_mod"] = lambda b, h, i, j: visible[b, h, i, j]
    else:
        found["is_causal"] = problem.causal or False
    if slopes := inputs.options["alibi_slopes"]:
        found["score_mod"] = lambda score, _b, h, i, j: score - score.new_tensor(slopes)[h] * (i - j).abs()
    if problem.softcap:
        found["score_mod"] = lambda score, *_: problem.softcap * torch.tanh(score / problem.softcap)
    return found


def is_close(output: Tensor, arguments: dict[str, Any], **more: Any) -> bool:
    """Whether the assertion holds."""
    try:
        assert_attention_close(output, **arguments, **more)
    except AssertionError:
        return False
    return True


DIFFERENTIATED = [case for case in QUICK if case.differentiates][::5]
NAMES = {"grad.query": "q", "grad.key": "k", "grad.value": "v"}


@pytest.mark.extended
@pytest.mark.parametrize("case", DIFFERENTIATED, ids=[case.id for case in DIFFERENTIATED])
def test_gradients_have_the_verdict_of_the_suite(conformance, case: Case) -> None:
    """For every mutant with a right output, gradients are close where the suite's check of them passes."""
    verdicts, before = set(), read_settings()
    for name, mutant in MUTANTS.items():
        try:
            candidate = conformance.candidate(mutant, case)
            arguments = make_arguments(case, candidate.inputs)
            output, given = candidate.outputs["output"].detach(), candidate.gradients
        except (RuntimeError, Malformed):  # the mutant does not compute this dtype, or no gradients
            restore_settings(before)
            continue
        restore_settings(before)
        if not is_close(output, arguments, policies=mutant.policies):
            continue
        finding = conformance.finding(mutant, case, "input_gradients")
        restore_settings(before)
        if finding.status not in {"passed", "failed"}:
            continue
        gradients = {NAMES[key]: one for key, one in given.items() if key in NAMES}
        cotangent = candidate.inputs.cotangents["output"]
        found = is_close(output, arguments, gradients=gradients, cotangent=cotangent, policies=mutant.policies)
        assert found == (finding.status == "passed"), name
        verdicts.add(finding.status)
    assert "passed" in verdicts


@pytest.mark.parametrize("case", QUICK, ids=[case.id for case in QUICK])
def test_a_case_has_the_verdict_of_the_suite(conformance, case: Case) -> None:
    """For every mutant, an output is close where the suite's check of outputs passes, and only there."""
    verdicts, before = set(), read_settings()
    for name, mutant in MUTANTS.items():
        try:
            finding = conformance.finding(mutant, case, "forward_parity")
        except RuntimeError:  # the mutant does not compute this dtype
            restore_settings(before)
            continue
        if finding.status not in {"passed", "failed"}:
            continue
        candidate = conformance.candidate(mutant, case)
        arguments = make_arguments(case, candidate.inputs)
        output = candidate.run()["output"].detach()
        restore_settings(before)  # some mutants change those of torch
        assert is_close(output, arguments, policies=mutant.policies) == (finding.status == "passed"), name
        verdicts.add(finding.status)
    assert verdicts == {"passed", "failed"}


def draw(*sizes: int, dtype: torch.dtype = torch.float32, kv_heads: int | None = None) -> list[Tensor]:
    """Return queries, keys and values that take gradients."""
    generator = torch.Generator().manual_seed(0)
    heads = (sizes[1], *[kv_heads or sizes[1]] * 2)
    shapes = [(sizes[0], count, *sizes[2:]) for count in heads]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


Q, K, V = draw(2, 3, 10, 16)
RIGHT = scaled_dot_product_attention(Q, K, V).detach()


def change_softly(score: Tensor, *_: Tensor) -> Tensor:
    """Limit logits to ±2."""
    return 2 * torch.tanh(score / 2)


MASK = torch.rand(2, 1, 10, 10, generator=torch.Generator().manual_seed(1)) > 0.4
MASK |= torch.eye(10, dtype=torch.bool)
SINKS = torch.tensor([0.5, -1.0, 2.0])


@pytest.mark.parametrize(
    ("output", "arguments", "words"),
    [
        (scaled_dot_product_attention(Q, K, V, attn_mask=~MASK), {"mask": MASK}, "looks like the mask inverted"),
        (RIGHT, {"mask": MASK}, "looks like the mask ignored"),
        (RIGHT, {"mask": 2 * MASK.float()}, "looks like the mask ignored"),
        (RIGHT, {"is_causal": True}, "looks like the causal mask ignored"),
        (RIGHT, {"scale": 0.5}, "looks like the scale 1/√head_dim in place of the given scale"),
        (RIGHT, {"sinks": SINKS}, "looks like the sinks ignored"),
        (RIGHT, {"score_mod": change_softly}, "looks like score_mod ignored"),
        (
            (change_softly(Q @ K.mT) / 4).softmax(-1) @ V,
            {"score_mod": change_softly},
            "score_mod applied before the scale",
        ),
        (RIGHT.double(), {}, None),
        (RIGHT[..., :-1], {}, "output has shape (2, 3, 10, 15), must be (2, 3, 10, 16)"),
    ],
)
def test_a_wrong_output_is_told_as_in_a_suite(output: Tensor, arguments: dict[str, Any], words: str | None) -> None:
    """The message has the worst place, the allowed error and its origin, and the diagnosis."""
    kind = TypeError if words is None else AssertionError
    with pytest.raises(kind, match=re.escape(words or "output must have the dtype of q")) as raised:
        assert_attention_close(output, Q, K, V, **arguments)
    if words is not None and words.startswith("looks like"):
        assert "allowed" in str(raised.value)
        assert "the rounding model's error" in str(raised.value)


def attend(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, mistake: str = "") -> Tensor:
    """Attention with one of the mistakes of learners; ``mask`` is boolean (true: visible) or a finite bias."""
    if mistake == "keys and values swapped":
        k, v = v, k
    late_scale, late_mask = mistake == "scale after softmax", mistake == "mask after softmax"
    logits = q @ k.mT / (1 if late_scale else 4)
    if mask is not None and mask.dtype == torch.bool and not late_mask:
        logits = logits.masked_fill(~mask, -torch.inf)
    elif mask is not None and not late_mask:
        logits = logits + mask / (4 if mistake == "mask scaled" else 1)
    exponentials = (logits - logits.amax(dim=-1, keepdim=True) * (mistake != "exp(x)")).exp()
    undivided = mistake in ("exp(x)", "exp(x − max)")
    weights = exponentials if undivided else exponentials / exponentials.sum(dim=-1, keepdim=True)
    if late_mask and mask is not None:
        weights = weights * mask if mask.dtype == torch.bool else weights + mask
    return (logits if mistake == "no softmax" else weights / (4 if late_scale else 1)) @ v


BIAS = torch.randn(10, 10, generator=torch.Generator().manual_seed(2))
CAUSAL = torch.ones(10, 10, dtype=torch.bool).tril()
MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("no softmax", {}, "the softmax missing"),
    ("scale after softmax", {}, "the scale applied after the softmax"),
    ("scale after softmax", {"mask": MASK}, "the scale applied after the softmax"),
    ("mask after softmax", {"mask": MASK}, "the mask applied after the softmax"),
    ("mask after softmax", {"mask": BIAS}, "the mask applied after the softmax"),
    ("mask after softmax", {"is_causal": True}, "the causal mask applied after the softmax"),
    ("keys and values swapped", {}, "keys and values swapped"),
    ("keys and values swapped", {"mask": MASK}, "keys and values swapped"),
    ("exp(x)", {}, "the exponentials exp(x) not divided by their sum"),
    ("exp(x − max)", {"is_causal": True}, "the exponentials exp(x − max) not divided by their sum"),
    ("mask scaled", {"mask": BIAS}, "the mask multiplied by the scale"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("mistake", "arguments", "words"), MISTAKES)
def test_a_mistake_of_learners_is_named(
    mistake: str, arguments: dict[str, Any], words: str, dtype: torch.dtype
) -> None:
    """A call that computes every step in the dtype has no error without the mistake, and with it the name of it."""
    q, k, v = (one.detach().to(dtype) for one in (Q, K, V))
    given = {name: one.to(dtype) if one is BIAS else one for name, one in arguments.items()}
    mask = CAUSAL if "is_causal" in given else given.get("mask")
    assert_attention_close(attend(q, k, v, mask=mask), q, k, v, **given)
    with pytest.raises(AssertionError, match=rf"looks like {re.escape(words)}\.$"):
        assert_attention_close(attend(q, k, v, mask=mask, mistake=mistake), q, k, v, **given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_layout_is_read(dtype: torch.dtype) -> None:
    """The same attention is right with heads before or after the length, and packed; a wrong layout is not."""
    q, k, v = draw(2, 6, 9, 8, dtype=dtype, kv_heads=2)
    output = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert_attention_close(output, q, k, v, is_causal=True, enable_gqa=True)
    swapped = [one.transpose(1, 2) for one in (output, q, k, v)]
    assert_attention_close(*swapped, is_causal=True, enable_gqa=True, layout="bshd")
    packed = [one.flatten(0, 1) for one in swapped]
    assert_attention_close(*packed, is_causal=True, enable_gqa=True, layout="thd", cu_seqlens=[0, 9, 18])
    assert not is_close(packed[0], {"q": packed[1], "k": packed[2], "v": packed[3], "enable_gqa": True, "layout": "thd",
                                    "cu_seqlens": torch.tensor([0, 5, 18])})  # fmt: skip


def test_packed_sequences_may_have_other_lengths_of_keys() -> None:
    """A causal mask ends at the last query and key of each sequence; an empty sequence has no rows."""
    (q,), (k, v) = draw(1, 2, 7, 8)[:1], draw(1, 2, 12, 8)[1:]
    queries, keys = [0, 3, 3, 7], [0, 5, 6, 12]
    outputs = []
    for first, last, start, end in zip(queries, queries[1:], keys, keys[1:], strict=False):
        hidden = torch.ones(last - first, end - start, dtype=torch.bool).tril(end - start - (last - first))
        part = scaled_dot_product_attention(
            q[:, :, first:last], k[:, :, start:end], v[:, :, start:end], attn_mask=hidden
        )
        outputs.append(part)
    packed = [one[0].transpose(0, 1) for one in (torch.cat(outputs, dim=2), q, k, v)]
    packing = {"layout": "thd", "cu_seqlens": (queries, keys)}
    assert_attention_close(*packed, **packing, is_causal="bottom_right")
    with pytest.raises(ValueError, match="'top_left' or 'bottom_right'"):
        assert_attention_close(*packed, **packing, is_causal=True)


def test_gradients_masks_and_sinks_are_judged() -> None:
    """Gradients of every tensor are compared; a wrong one is named by the operator's name of the tensor."""
    mask, sinks = (torch.randn(shape).requires_grad_() for shape in ((10, 10), (3,)))
    logits = Q @ K.mT / 4 + mask
    weights = torch.cat([logits, sinks[:, None, None].expand(2, 3, 10, 1)], -1).softmax(-1)[..., :-1]
    output, leaves = weights @ V, {"q": Q, "k": K, "v": V, "mask": mask, "sinks": sinks}
    cotangent = torch.randn_like(output)
    found = dict(zip(leaves, torch.autograd.grad(output, list(leaves.values()), cotangent), strict=True))
    call = {"q": Q, "k": K, "v": V, "mask": mask, "sinks": sinks, "cotangent": cotangent}
    assert_attention_close(output, **call, gradients=found)
    for name in found:
        with pytest.raises(AssertionError, match="of grad"):
            assert_attention_close(output, **call, gradients=found | {name: 1.01 * found[name]})


def test_the_logsumexp_is_judged_in_any_dtype() -> None:
    """The natural logarithm of the sum of exponentials; one to the base 2 is wrong."""
    logits = Q @ K.mT / 4
    lse = logits.logsumexp(-1).detach()
    assert_attention_close(RIGHT, Q, K, V, lse=lse)
    assert_attention_close(RIGHT, Q, K, V, lse=lse.double())
    with pytest.raises(AssertionError, match="lse"):
        assert_attention_close(RIGHT, Q, K, V, lse=lse / 0.6931)


def test_fully_masked_rows_are_as_declared() -> None:
    """A row without a visible key is 0, or NaN if this is declared."""
    mask = torch.ones(10, 10, dtype=torch.bool)
    mask[4] = False
    output = scaled_dot_product_attention(Q, K, V, attn_mask=mask).detach()
    output[:, :, 4] = 0
    assert_attention_close(output, Q, K, V, mask=mask)
    output[:, :, 4] = torch.nan
    assert_attention_close(output, Q, K, V, mask=mask, policies=Policies(hidden_rows="nan"))
    with pytest.raises(AssertionError, match="a fully masked row is NaN"):
        assert_attention_close(output, Q, K, V, mask=mask)


def test_float8_is_widened() -> None:
    """Queries and keys in float8 are taken exactly; the output has the dtype of the values."""
    q, k = (one.detach().to(torch.float8_e4m3fn) for one in (Q, K))
    v = V.detach().bfloat16()
    output = scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v)
    assert_attention_close(output, q, k, v)
    assert not is_close(scaled_dot_product_attention(Q.bfloat16(), K.bfloat16(), v), {"q": q, "k": k, "v": v})


def test_autocast_gives_a_narrower_output() -> None:
    """From float32 tensors, an output in bfloat16 has the budget of autocast."""
    narrow = scaled_dot_product_attention(*(one.bfloat16() for one in (Q, K, V)))
    assert_attention_close(narrow, Q, K, V)
    assert not is_close((1.1 * narrow), {"q": Q, "k": K, "v": V})


def test_several_outputs_are_compared() -> None:
    """The comparison names what is wrong, and says how far apart right outputs are and may be."""
    eager = (Q @ K.mT / 4).softmax(-1) @ V
    found = compare_attention({"eager": eager, "fused": RIGHT, "causal": eager.flip(2)}, Q, K, V)
    assert (found.right, found.wrong) == (("eager", "fused"), ("causal",))
    assert found.apart == pytest.approx(float((eager - RIGHT).detach().abs().max()), rel=1e-3)
    assert found.apart <= found.allowed_apart == 2 * found.allowed
    assert found.errors["causal"] > found.allowed > found.errors["fused"]
    assert "of output are off" in found.faults["causal"]


# Arguments that cannot be used, and a part of the message that names the argument and what came.
WRONG_USE: list[tuple[dict[str, Any], str]] = [
    ({"q": 3}, "q must be a tensor, got int"),
    ({"output": None}, "output must be a tensor, got NoneType"),
    ({"q": Q.int()}, "q must be in float32, float64, bfloat16, float16 or float8, got torch.int32"),
    ({"k": K.bfloat16()}, "q, k and v must have one dtype"),
    ({"q": Q[0]}, "q must have 4 dimensions in layout 'bhsd', got shape (3, 10, 16)"),
    ({"output": RIGHT[0]}, "output must have 4 dimensions"),
    ({"k": K[:1]}, "q, k and v must have the same batch"),
    ({"k": K[:, :, :4]}, "k and v must have the same heads and length"),
    ({"k": K[..., :8]}, "q and k must have the same width, got 16 and 8"),
    ({"k": K[:, :1], "v": V[:, :1]}, "try enable_gqa=True"),
    ({"k": K[:, :2], "v": V[:, :2], "enable_gqa": True}, "try another layout"),
    ({"v": V / 0}, "v must be finite numbers, got NaN or infinity"),
    ({"q": MASK}, "q must be finite numbers, got booleans"),
    ({"mask": MASK.long()}, "mask must be in float32"),
    ({"mask": MASK[..., :3]}, "mask must be broadcastable to (batch, heads, queries, keys) = (2, 3, 10, 10)"),
    ({"mask": MASK[None]}, "mask must be broadcastable"),
    ({"mask": MASK / 0}, "mask must be booleans (true: visible) or numbers without NaN"),
    ({"mask_mod": lambda b, h, i, j: i - j}, "mask_mod must return booleans, got torch.int64"),
    ({"mask_mod": lambda b, h, i, j: True}, "mask_mod must return booleans, got bool"),
    ({"score_mod": lambda score, *_: 1}, "score_mod must return a tensor of the shape of its first argument"),
    ({"scale": -1.0}, "scale must be a positive number, got -1.0"),
    ({"is_causal": "left"}, "is_causal must be True, False, 'top_left' or 'bottom_right', got 'left'"),
    ({"layout": "sbhd"}, "layout must be one of bhsd, bshd, thd; got 'sbhd'"),
    ({"layout": "thd"}, "q must have 3 dimensions in layout 'thd'"),
    ({"cu_seqlens": [0, 20]}, "cu_seqlens needs layout='thd'"),
    ({"sinks": SINKS[:2]}, "sinks must have one number for each of 3 heads, got shape (2,)"),
    ({"gradients": {"q": Q}}, "gradients need a cotangent"),
    ({"cotangent": RIGHT}, "cotangent needs gradients"),
    ({"window": 9}, "there is no argument 'window'; a call can have q, k, v, mask"),
    ({"gradients": {"w": Q}, "cotangent": RIGHT}, "gradients must have names out of q, k, v, got 'w'"),
    ({"gradients": {"q": Q}, "cotangent": RIGHT[..., :2]}, "cotangent must have the shape of the output"),
    ({"lse": 1.0}, "lse must be a tensor (batch, heads, queries), got float"),
    (
        {"output": RIGHT.bfloat16(), "q": Q.double(), "k": K.double(), "v": V.double()},
        "output must have the dtype of q",
    ),
]
PACKED = {"output": RIGHT[0], "q": Q[0], "k": K[0], "v": V[0], "layout": "thd"}
WRONG_USE += [
    (PACKED, "layout 'thd' needs cu_seqlens"),
    (PACKED | {"cu_seqlens": [0, 2]}, "cu_seqlens of the queries must ascend from 0 to 3, the number of packed tokens"),
    (PACKED | {"cu_seqlens": [0.0, 3.0]}, "cu_seqlens must have whole numbers"),
    (PACKED | {"cu_seqlens": ([0, 3], [0, 1, 3])}, "as many sequences of queries as of keys, got 1 and 2"),
    (PACKED | {"cu_seqlens": ([0, 3],)}, "cu_seqlens must be a list or a pair of lists"),
    (PACKED | {"cu_seqlens": [0, 3], "lse": RIGHT}, "lse needs layout 'bhsd' or 'bshd', got 'thd'"),
]


@pytest.mark.parametrize(("changed", "message"), WRONG_USE, ids=[message[:40] for _, message in WRONG_USE])
def test_unusable_arguments_are_one_line(changed: dict[str, Any], message: str) -> None:
    """The message names the argument, what it must be and what came."""
    with pytest.raises((ValueError, TypeError)) as raised:
        assert_attention_close(**({"output": RIGHT, "q": Q, "k": K, "v": V} | changed))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_too_large_calls_are_refused() -> None:
    """Expected values are computed in float64 on the CPU, so the number of query-key pairs has a limit."""
    long = torch.empty(1, 1, 1, 1).expand(1, 1, 100_000, 1)
    with pytest.raises(ValueError, match="at most 67108864 query-key pairs"):
        assert_attention_close(long, long, long, long)


def test_little_is_imported() -> None:
    """A test that uses the assertions imports no worker, runner or report."""
    code = "import sys, attnbench.testing; print([name for name in sys.modules if name.startswith('attnbench.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for part in ("runner", "report", "processes", "workers", "jobs", "api", "cli"):
        assert f"attnbench.{part}" not in done.stdout
