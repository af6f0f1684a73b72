"""Tests of kernels: plain functions that ``from_kernel`` makes into implementations of multi-head attention."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Policies, Refusal
from attnbench.kernel import from_kernel
from attnbench.masks import causal as causal_mask
from attnbench.masks import from_lengths
from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.plugins.adapters import load_implementation
from attnbench.refusals import LacksGradients, LacksKeywords

BATCH, QUERIES, KEYS, EMBED, HEADS = 2, 5, 7, 12, 3


def make_case(*, mode: str = "eval", **fields: Any) -> Case:
    """Make a case with the module's sizes (BATCH, QUERIES, KEYS, EMBED, HEADS)."""
    problem = MultiheadProblem(batch=BATCH, queries=QUERIES, keys=KEYS, embed_dim=EMBED, num_heads=HEADS, **fields)
    return Case(operator="multihead", problem=problem, mode=mode)  # type: ignore[arg-type]


def make_reference(**arguments: Any) -> nn.MultiheadAttention:
    """Make a reference module with EMBED and HEADS."""
    return nn.MultiheadAttention(EMBED, HEADS, **{"batch_first": True} | arguments)


def make_tokens(batch: int = BATCH, keys: int = KEYS) -> dict[str, Tensor]:
    """Make random query, key and value."""
    key = torch.randn(batch, keys, EMBED)
    return {"query": torch.randn(batch, QUERIES, EMBED), "key": key, "value": key}


class Recorder:
    """Kernel that records the arguments of its last call."""

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Any,
        is_causal: Any,
        scale: Any,
        dropout_p: Any,
        need_weights: Any,
    ) -> Tensor:
        """Record all arguments, and return q, which has the shape of the output."""
        self.arguments = {"q": q, "k": k, "v": v, "mask": mask, "is_causal": is_causal}
        self.arguments |= {"scale": scale, "dropout_p": dropout_p, "need_weights": need_weights}
        return q


def record_arguments(
    arguments: dict[str, Any], *, training: bool = False, additive: bool = False, **constructor: Any
) -> dict[str, Any]:
    """Call a module with the given arguments, and return the arguments that its kernel then gets."""
    recorder = Recorder()
    module = from_kernel(recorder, name="recorder", additive_mask=additive).build(make_reference(**constructor))
    module.train(training)(**{**make_tokens(), "need_weights": False, **arguments})
    return recorder.arguments


def bare(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention without masks or flags."""
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None) -> Tensor:
    """Attention with a mask."""
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def causal(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    """Attention with the causal flag and without a mask."""
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def test_a_kernel_gets_heads_and_the_scale() -> None:
    """q, k and v are split into heads, and scale is 1 / √head_dim."""
    got = record_arguments({})
    assert got["q"].shape == (BATCH, HEADS, QUERIES, EMBED // HEADS)
    assert got["k"].shape == got["v"].shape == (BATCH, HEADS, KEYS, EMBED // HEADS)
    assert got["scale"] == pytest.approx((EMBED // HEADS) ** -0.5)


def test_a_kernel_gets_only_the_keywords_of_its_signature() -> None:
    """A kernel whose signature has only q, k and v gets no keywords; its module agrees with the reference."""
    expected = make_reference().eval()
    inputs = make_tokens()
    output, weights = from_kernel(bare).build(expected)(**inputs, need_weights=False)
    torch.testing.assert_close(output, expected(**inputs)[0])
    assert weights is None


@pytest.mark.parametrize(
    ("fields", "mode", "keyword"),
    [
        ({"need_weights": True}, "eval", "need_weights"),
        ({"dropout": 0.5}, "train", "dropout_p"),
        ({"mask": "pad"}, "eval", "mask"),
        ({"mask": "causal", "is_causal": True}, "eval", "mask"),
        ({"dropout": 0.5}, "eval", None),
        ({}, "eval", None),
    ],
)
def test_a_case_that_needs_a_missing_keyword_is_refused(fields: Any, mode: str, keyword: str | None) -> None:
    """The refusal names the keyword that the kernel's signature lacks; dropout_p is needed only in train mode."""
    assert from_kernel(bare).unsupported(make_case(mode=mode, **fields)) == (
        LacksKeywords(keywords=(keyword,)) if keyword else None
    )


@pytest.mark.parametrize(
    ("arguments", "constructor", "keyword"),
    [
        ({"need_weights": True}, {}, "need_weights"),
        ({"attn_mask": torch.zeros(QUERIES, KEYS)}, {}, "mask"),
        ({}, {"dropout": 0.5}, "dropout_p"),
    ],
)
def test_a_call_that_needs_a_missing_keyword_raises_a_refusal(arguments: Any, constructor: Any, keyword: str) -> None:
    """An argument of the call is never dropped silently when the kernel has no keyword for it."""
    module = from_kernel(bare).build(make_reference(**constructor).train())
    with pytest.raises(Refusal, check=lambda refusal: refusal.args == (LacksKeywords(keywords=(keyword,)),)):
        module(**{**make_tokens(), "need_weights": False, **arguments})


def test_a_causal_flag_suffices_for_a_causal_mask() -> None:
    """A kernel that takes is_causal but no mask supports one kind of mask: a causal one that comes with is_causal."""
    kernel = from_kernel(causal)
    assert kernel.unsupported(make_case(mask="causal", is_causal=True)) is None
    assert kernel.unsupported(make_case(mask="causal")) == LacksKeywords(keywords=("mask",))
    assert kernel.unsupported(make_case(mask="causal", is_causal=True, add_zero_attn=True)) == LacksKeywords(
        keywords=("mask",)
    )


HIDE_FUTURE = torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(1)
PADDING = torch.zeros(BATCH, KEYS, dtype=torch.bool)


@pytest.mark.parametrize(
    ("arguments", "constructor", "flagged"),
    [
        ({"is_causal": True}, {}, True),
        ({"is_causal": True, "key_padding_mask": PADDING}, {}, False),
        ({"is_causal": True}, {"add_zero_attn": True}, False),
        ({"is_causal": True}, {"add_bias_kv": True}, False),
        ({"is_causal": False}, {}, False),
    ],
)
def test_the_causal_flag_replaces_the_mask_only_where_they_are_equivalent(
    arguments: Any, constructor: Any, flagged: bool
) -> None:
    """With padding or an extra key (add_bias_kv, add_zero_attn) the kernel gets the mask; without them, is_causal."""
    got = record_arguments({"attn_mask": HIDE_FUTURE, **arguments}, **constructor)
    assert got["is_causal"] is flagged
    assert (got["mask"] is None) is flagged


# Every built-in implementation that supports a causal mask with a gradient on a CPU, except ``compiled``: its kernel
# has no causal flag, and compiling takes long. The reference is not listed: with is_causal it ignores the mask.
MASKED = ["naive_loop", "per_head", "batched_matmul", "reshaped", "block_matrix", "sdpa", "sdpa_math", "online_softmax"]
MASKED += ["varlen", "varlen_packed", "fused_projection"]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MASKED)
def test_a_causal_mask_gets_its_gradient_with_and_without_the_flag(name: str, padded: bool) -> None:
    """The gradient of a floating-point causal mask does not depend on is_causal."""
    hidden = torch.randn(BATCH, QUERIES, EMBED)
    mask = torch.zeros(QUERIES, QUERIES).masked_fill(causal_mask(QUERIES, QUERIES), float("-inf")).requires_grad_()
    padding = from_lengths(torch.tensor([QUERIES, 3]), QUERIES) if padded else None
    module = load_implementation(name).build(make_reference())
    found = []
    for flag in (True, False):
        output, _ = module(
            hidden, hidden, hidden, need_weights=False, attn_mask=mask, is_causal=flag, key_padding_mask=padding
        )
        found.append(torch.autograd.grad(output.square().sum(), mask)[0])
    assert found[0].any()
    torch.testing.assert_close(*found)


def test_the_flag_replaces_a_mask_that_gets_no_gradient() -> None:
    """Under ``no_grad``, is_causal replaces a causal mask even if the mask requires a gradient."""
    mask = torch.zeros(QUERIES, KEYS).masked_fill(HIDE_FUTURE, float("-inf")).requires_grad_()
    assert record_arguments({"attn_mask": mask, "is_causal": True})["is_causal"] is False
    with torch.no_grad():
        assert record_arguments({"attn_mask": mask, "is_causal": True})["is_causal"] is True


def test_the_causal_flag_needs_the_mask_that_it_promises() -> None:
    """is_causal without attn_mask is an error, as in the reference."""
    with pytest.raises(ValueError, match="is_causal=True needs attn_mask"):
        record_arguments({"is_causal": True})


def test_boolean_masks_are_true_where_a_key_is_kept() -> None:
    """The kernel gets the inverse of attn_mask, which is true where a key is hidden."""
    assert torch.equal(record_arguments({"attn_mask": HIDE_FUTURE})["mask"], ~HIDE_FUTURE)


def test_additive_mask_makes_every_mask_additive() -> None:
    """With additive_mask=True, a boolean mask reaches the kernel as numbers: 0 (kept) and minus infinity (hidden)."""
    got = record_arguments({"attn_mask": HIDE_FUTURE}, additive=True)["mask"]
    assert torch.equal(got, torch.zeros(QUERIES, KEYS).masked_fill(HIDE_FUTURE, float("-inf")))


def test_extra_columns_come_last_and_are_visible() -> None:
    """The extra keys follow the given keys, first bias_k and then the zeros of add_zero_attn; no mask hides them."""
    got = record_arguments({"key_padding_mask": ~PADDING}, add_bias_kv=True, add_zero_attn=True)
    assert got["k"].shape[2] == KEYS + 2
    assert not got["k"][:, :, -1].any()
    assert got["mask"].shape[-1] == KEYS + 2
    assert got["mask"][0, 0, 0].tolist() == [False] * KEYS + [True, True]


def test_dropout_is_applied_in_training_only() -> None:
    """In eval mode a kernel gets dropout_p = 0."""
    assert record_arguments({}, training=True, dropout=0.25)["dropout_p"] == 0.25
    assert record_arguments({}, training=False, dropout=0.25)["dropout_p"] == 0.0


def test_float_masks_have_the_dtype_of_q_under_autocast() -> None:
    """Under autocast to bfloat16, q is bfloat16, and a float32 attn_mask is converted to bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = record_arguments({"attn_mask": torch.zeros(QUERIES, KEYS)})
    assert got["q"].dtype == got["mask"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("query", (BATCH, QUERIES, EMBED + 1)),
        ("key", (1, KEYS, EMBED)),
        ("query", (QUERIES, EMBED)),
        ("value", (BATCH, KEYS - 1, EMBED)),
        ("attn_mask", (1, KEYS)),
        ("attn_mask", (HEADS, QUERIES, KEYS)),
        ("attn_mask", (BATCH, HEADS, QUERIES, KEYS)),
        ("key_padding_mask", (1, KEYS)),
        ("key_padding_mask", (BATCH, KEYS - 1)),
    ],
)
def test_shapes_that_would_broadcast_are_errors(name: str, shape: tuple[int, ...]) -> None:
    """A shape that the reference refuses raises an error that names the argument."""
    with pytest.raises(ValueError, match=name):
        record_arguments({name: torch.zeros(shape)})


def test_an_integer_mask_is_an_error() -> None:
    """An integer attn_mask raises TypeError; otherwise its integers would be added to the logits."""
    with pytest.raises(TypeError, match="attn_mask must be boolean"):
        record_arguments({"attn_mask": torch.zeros(QUERIES, KEYS, dtype=torch.uint8)})


def test_forward_only_kernels_refuse_gradients() -> None:
    """A case with gradients is refused, and so is a call whose output would need gradients."""
    kernel = from_kernel(bare, policies=Policies(forward_only=True))
    assert kernel.unsupported(make_case(mode="train")) == LacksGradients()
    assert kernel.unsupported(make_case(mode="inference")) is None
    module = kernel.build(make_reference())
    with pytest.raises(Refusal, check=lambda refusal: refusal.args == (LacksGradients(),)):
        module(**make_tokens(), need_weights=False)
    with torch.no_grad():
        assert module(**make_tokens(), need_weights=False)[0].isfinite().all()


def test_the_authors_declarations_are_used() -> None:
    """unsupported, untimed, predicted_s and environment return what the functions given to ``from_kernel`` return."""
    kernel = from_kernel(
        bare,
        unsupported=lambda _: "not here",
        untimed=lambda _: "interpreted",
        predicted_s=lambda _: 2.5,
        environment=lambda: {"A": "1"},
    )
    assert kernel.unsupported(make_case()) == "not here"
    assert kernel.untimed(make_case()) == "interpreted"
    assert kernel.predicted_s(make_case()) == 2.5
    assert kernel.environment() == {"A": "1"}
    undeclared = from_kernel(bare)
    assert (undeclared.untimed(make_case()), undeclared.predicted_s(make_case()), undeclared.environment()) == (
        None,
        None,
        {},
    )


@pytest.mark.parametrize("arguments", [{}, {"bias": False}, {"kdim": 5, "vdim": 4}, {"add_bias_kv": True}])
def test_the_module_has_the_references_parameters(arguments: Any) -> None:
    """A state dict of the reference can be loaded into the module, which has its own copies of the parameters."""
    expected = make_reference(**arguments)
    module = from_kernel(masked).build(expected)
    assert {name: p.shape for name, p in module.state_dict().items()} == {
        name: p.shape for name, p in expected.state_dict().items()
    }
    module.load_state_dict(expected.state_dict())
    with torch.no_grad():
        module.out_proj.weight.zero_()
    assert expected.out_proj.weight.any()


def test_the_module_can_be_copied_and_pickled() -> None:
    """A deep copy and an unpickled copy of the module give the module's output bit for bit."""
    module = from_kernel(masked).build(make_reference())
    inputs = make_tokens()
    expected = module(**inputs, need_weights=False)[0]
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copied(**inputs, need_weights=False)[0], expected)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_parameters_may_be_replaced_in_any_way_that_torch_offers() -> None:
    """A parametrization, weight_norm, a buffer or ``functional_call`` may replace a parameter.

    Calling a module with a deleted parameter raises AttributeError.
    """

    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    plain, inputs = make_reference(), make_tokens()
    module = load_implementation("sdpa").build(plain)

    def output(one: nn.Module) -> Tensor:
        return one(**inputs, need_weights=False)[0]  # type: ignore[no-any-return]

    with torch.no_grad():
        own = {"in_proj_weight": 2 * plain.in_proj_weight, "out_proj.weight": 2 * plain.out_proj.weight}
        doubled = copy.deepcopy(plain)
        doubled.load_state_dict(own, strict=False)
        expected = output(doubled)
        found = {"functional": torch.func.functional_call(module, own, kwargs=inputs | {"need_weights": False})[0]}
        parametrized, normed, buffered = (copy.deepcopy(module) for _ in range(3))
        for holder, name in ((parametrized, "in_proj_weight"), (parametrized.out_proj, "weight")):
            nn.utils.parametrize.register_parametrization(holder, name, Doubled())
        found["parametrized"] = output(parametrized)
        nn.utils.weight_norm(normed, "in_proj_weight").in_proj_weight_g.mul_(2)
        normed.out_proj.weight.mul_(2)
        found["weight_norm"] = output(normed)
        del buffered.in_proj_weight, buffered.out_proj.weight
        with pytest.raises(AttributeError, match="has no attribute 'in_proj_weight'"):
            output(buffered)
        buffered.register_buffer("in_proj_weight", own["in_proj_weight"])
        buffered.out_proj.register_buffer("weight", own["out_proj.weight"])
        found["a buffer"] = output(buffered)
        replaced = copy.deepcopy(module)
        replaced.out_proj = copy.deepcopy(doubled.out_proj)
        replaced.in_proj_weight = nn.Parameter(own["in_proj_weight"])
        found["replaced"] = output(replaced)
    for way, one in found.items():
        torch.testing.assert_close(one, expected, msg=lambda message, way=way: f"{way}: {message}")
    assert not hasattr(type(module), "in_proj_weight")


@pytest.mark.extended
def test_a_compiled_module_follows_its_parameters() -> None:
    """A compiled graph uses new parameter values, whether they were written in place or the Parameter was replaced."""
    torch.compiler.reset()
    module = load_implementation("sdpa").build(make_reference())
    weight = module.out_proj.weight.detach()
    del module.out_proj.weight
    module.out_proj.register_buffer("weight", weight)
    inputs = make_tokens()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for change in (lambda w: w, lambda w: w.mul_(2), lambda w: nn.Parameter(w + 1)):
        with torch.no_grad():
            module.in_proj_weight = change(module.in_proj_weight)
        found, expected = (one(**inputs, need_weights=False)[0] for one in (compiled, module))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(BATCH, QUERIES), (1, 80)])  # without, and with stored attention weights
def test_the_shortcut_for_unmasked_self_attention_gives_the_same_output(
    batch: int, length: int, training: bool
) -> None:
    """The shortcut, taken if query, key and value are one tensor, gives the output that three equal tensors give."""
    module = load_implementation("fused_projection").build(make_reference(dropout=0.5)).train(training)
    hidden = torch.randn(batch, length, EMBED)
    found = []
    for given in ((hidden, hidden, hidden), (hidden, hidden.clone(), hidden.clone())):
        torch.manual_seed(0)
        found.append(module(*given, need_weights=False)[0])
    torch.testing.assert_close(*found)
    assert torch.equal(found[0], module(hidden, hidden, hidden, need_weights=False)[0]) is not training


@pytest.mark.parametrize("name", ["fused_projection", "varlen_packed"])
@pytest.mark.parametrize("padded", [False, True])
def test_the_shortcut_reads_batch_first_at_each_call(name: str, padded: bool) -> None:
    """``batch_first`` may be changed after the module was built, as with ``nn.MultiheadAttention``."""
    plain = make_reference()
    module = load_implementation(name).build(plain)
    plain.batch_first = module.batch_first = False
    query = torch.randn(QUERIES, QUERIES, EMBED)  # a valid shape in both layouts
    hidden = torch.zeros(QUERIES, QUERIES, dtype=torch.bool)
    hidden[1, 3:] = True
    arguments = {"key_padding_mask": hidden if padded else None, "need_weights": False}
    output, expected = (one(query, query, query, **arguments)[0] for one in (module, plain))
    left = ~hidden.T[..., None] if padded else torch.ones(())
    torch.testing.assert_close(output * left, expected * left)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantization_leaves_the_output_projection_alone() -> None:
    """``quantize_dynamic`` keeps out_proj: its class is the one in nn.MultiheadAttention, a subclass of nn.Linear."""
    plain = make_reference().eval()
    module = load_implementation("sdpa").build(copy.deepcopy(plain)).eval()
    quantized = torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)
    query = torch.randn(BATCH, QUERIES, EMBED)
    torch.testing.assert_close(quantized(query, query, query)[0], plain(query, query, query)[0])
