"""Tests of what stands between the reference's forward and a plain function."""

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

BATCH, QUERIES, KEYS, EMBED, HEADS = 2, 5, 7, 12, 3


def case(*, mode: str = "eval", **fields: Any) -> Case:
    """Case of the module's sizes."""
    problem = MultiheadProblem(batch=BATCH, queries=QUERIES, keys=KEYS, embed_dim=EMBED, num_heads=HEADS, **fields)
    return Case(operator="multihead", problem=problem, mode=mode)  # type: ignore[arg-type]


def reference(**arguments: Any) -> nn.MultiheadAttention:
    """Reference of the module's sizes."""
    return nn.MultiheadAttention(EMBED, HEADS, **{"batch_first": True} | arguments)


def tokens(batch: int = BATCH, keys: int = KEYS) -> dict[str, Tensor]:
    """Random query, key and value."""
    key = torch.randn(batch, keys, EMBED)
    return {"query": torch.randn(batch, QUERIES, EMBED), "key": key, "value": key}


class Recorder:
    """Kernel that keeps what it was handed."""

    def __init__(self) -> None:
        self.handed: dict[str, Any] = {}

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
        """Keep everything and return something of the output's shape."""
        self.handed = {"q": q, "k": k, "v": v, "mask": mask, "is_causal": is_causal}
        self.handed |= {"scale": scale, "dropout_p": dropout_p, "need_weights": need_weights}
        return q


def handed(
    arguments: dict[str, Any], *, training: bool = False, additive: bool = False, **built: Any
) -> dict[str, Any]:
    """What a kernel gets when its module is called with these arguments."""
    recorder = Recorder()
    module = from_kernel(recorder, name="recorder", additive_mask=additive).build(reference(**built))
    module.train(training)(**{**tokens(), "need_weights": False, **arguments})
    return recorder.handed


def bare(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention that knows neither masks nor flags."""
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None) -> Tensor:
    """Attention that knows masks."""
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def causal(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    """Attention that knows the causal flag and no mask."""
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def test_a_kernel_gets_heads_and_the_scale() -> None:
    """q, k and v come split into heads, and scale is one over the root of the head width."""
    got = handed({})
    assert got["q"].shape == (BATCH, HEADS, QUERIES, EMBED // HEADS)
    assert got["k"].shape == got["v"].shape == (BATCH, HEADS, KEYS, EMBED // HEADS)
    assert got["scale"] == pytest.approx((EMBED // HEADS) ** -0.5)


def test_a_kernel_is_handed_only_the_keywords_of_its_signature() -> None:
    """A function of q, k and v alone is called with q, k and v alone, and agrees with the reference."""
    expected = reference().eval()
    inputs = tokens()
    output, weights = from_kernel(bare).build(expected)(**inputs, need_weights=False)
    torch.testing.assert_close(output, expected(**inputs)[0])
    assert weights is None


@pytest.mark.parametrize(
    ("fields", "mode", "reason"),
    [
        ({"need_weights": True}, "eval", "the kernel takes no need_weights"),
        ({"dropout": 0.5}, "train", "the kernel takes no dropout_p"),
        ({"mask": "pad"}, "eval", "the kernel takes no mask"),
        ({"mask": "causal", "is_causal": True}, "eval", "the kernel takes no mask"),
        ({"dropout": 0.5}, "eval", None),
        ({}, "eval", None),
    ],
)
def test_a_case_that_needs_an_absent_keyword_is_refused(fields: Any, mode: str, reason: str | None) -> None:
    """The refusal names the keyword; dropout is needed only in training."""
    assert from_kernel(bare).unsupported(case(mode=mode, **fields)) == reason


@pytest.mark.parametrize(
    ("arguments", "built", "reason"),
    [
        ({"need_weights": True}, {}, "the kernel takes no need_weights"),
        ({"attn_mask": torch.zeros(QUERIES, KEYS)}, {}, "the kernel takes no mask"),
        ({}, {"dropout": 0.5}, "the kernel takes no dropout_p"),
    ],
)
def test_a_call_that_needs_an_absent_keyword_is_refused_aloud(arguments: Any, built: Any, reason: str) -> None:
    """Nothing asked for is left out silently, whoever calls."""
    module = from_kernel(bare).build(reference(**built).train())
    with pytest.raises(Refusal, match=reason):
        module(**{**tokens(), "need_weights": False, **arguments})


def test_a_causal_flag_suffices_for_a_causal_mask() -> None:
    """A kernel with is_causal and without mask takes the promised causal mask, and no other."""
    kernel = from_kernel(causal)
    assert kernel.unsupported(case(mask="causal", is_causal=True)) is None
    assert kernel.unsupported(case(mask="causal")) == "the kernel takes no mask"
    assert kernel.unsupported(case(mask="causal", is_causal=True, add_zero_attn=True)) == "the kernel takes no mask"


HIDE_FUTURE = torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(1)
PADDING = torch.zeros(BATCH, KEYS, dtype=torch.bool)


@pytest.mark.parametrize(
    ("arguments", "built", "flagged"),
    [
        ({"is_causal": True}, {}, True),
        ({"is_causal": True, "key_padding_mask": PADDING}, {}, False),
        ({"is_causal": True}, {"add_zero_attn": True}, False),
        ({"is_causal": True}, {"add_bias_kv": True}, False),
        ({"is_causal": False}, {}, False),
    ],
)
def test_the_causal_flag_replaces_the_mask_only_where_it_says_everything(
    arguments: Any, built: Any, flagged: bool
) -> None:
    """With padding or extra columns the mask is passed and the flag is not; never both."""
    got = handed({"attn_mask": HIDE_FUTURE, **arguments}, **built)
    assert got["is_causal"] is flagged
    assert (got["mask"] is None) is flagged


# Every built-in implementation that computes such a call on a CPU, but for ``compiled``, whose kernel has no hint and
# is long in the making. The reference itself drops the mask for its hint.
MASKED = ["naive_loop", "per_head", "batched_matmul", "reshaped", "block_matrix", "sdpa", "sdpa_math", "online_softmax"]
MASKED += ["varlen", "varlen_packed", "fused_projection"]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MASKED)
def test_a_causal_mask_gets_its_gradient_whatever_the_hint_says(name: str, padded: bool) -> None:
    """A causal mask of numbers that requires a gradient has the same one with is_causal and without it."""
    hidden = torch.randn(BATCH, QUERIES, EMBED)
    mask = torch.zeros(QUERIES, QUERIES).masked_fill(causal_mask(QUERIES, QUERIES), float("-inf")).requires_grad_()
    padding = from_lengths(torch.tensor([QUERIES, 3]), QUERIES) if padded else None
    module = load_implementation(name).build(reference())
    found = []
    for hint in (True, False):
        output, _ = module(
            hidden, hidden, hidden, need_weights=False, attn_mask=mask, is_causal=hint, key_padding_mask=padding
        )
        found.append(torch.autograd.grad(output.square().sum(), mask)[0])
    assert found[0].any()
    torch.testing.assert_close(*found)


def test_the_flag_replaces_a_mask_whose_gradient_nobody_wants() -> None:
    """Where gradients are off a mask that could have one is replaced like any other."""
    mask = torch.zeros(QUERIES, KEYS).masked_fill(HIDE_FUTURE, float("-inf")).requires_grad_()
    assert handed({"attn_mask": mask, "is_causal": True})["is_causal"] is False
    with torch.no_grad():
        assert handed({"attn_mask": mask, "is_causal": True})["is_causal"] is True


def test_the_causal_flag_needs_the_mask_that_it_promises() -> None:
    """is_causal without attn_mask is an error, as in the reference."""
    with pytest.raises(ValueError, match="is_causal=True needs attn_mask"):
        handed({"is_causal": True})


def test_boolean_masks_are_true_where_a_key_is_kept() -> None:
    """The reference's polarity is turned around on the way to the kernel."""
    assert torch.equal(handed({"attn_mask": HIDE_FUTURE})["mask"], ~HIDE_FUTURE)


def test_additive_mask_makes_numbers_of_every_mask() -> None:
    """With additive_mask a boolean mask arrives as 0 and minus infinity."""
    got = handed({"attn_mask": HIDE_FUTURE}, additive=True)["mask"]
    assert torch.equal(got, torch.zeros(QUERIES, KEYS).masked_fill(HIDE_FUTURE, float("-inf")))


def test_extra_columns_come_last_and_are_visible() -> None:
    """The learned column and then a column of zeros follow the keys, and the mask keeps both."""
    got = handed({"key_padding_mask": ~PADDING}, add_bias_kv=True, add_zero_attn=True)
    assert got["k"].shape[2] == KEYS + 2
    assert not got["k"][:, :, -1].any()
    assert got["mask"].shape[-1] == KEYS + 2
    assert got["mask"][0, 0, 0].tolist() == [False] * KEYS + [True, True]


def test_dropout_comes_in_training_only() -> None:
    """In eval a kernel is told 0."""
    assert handed({}, training=True, dropout=0.25)["dropout_p"] == 0.25
    assert handed({}, training=False, dropout=0.25)["dropout_p"] == 0.0


def test_float_masks_follow_the_kernel_under_autocast() -> None:
    """The mask has the dtype of q, which autocast made narrower than the query."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = handed({"attn_mask": torch.zeros(QUERIES, KEYS)})
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
    """What the reference refuses by shape is refused, and the message names the argument."""
    with pytest.raises(ValueError, match=name):
        handed({name: torch.zeros(shape)})


def test_whole_numbers_are_no_masks() -> None:
    """A mask is boolean or floating point; anything else would be added to the logits."""
    with pytest.raises(TypeError, match="attn_mask must be boolean"):
        handed({"attn_mask": torch.zeros(QUERIES, KEYS, dtype=torch.uint8)})


def test_forward_only_kernels_refuse_gradients() -> None:
    """Cases with gradients are refused, and so is a call that would return an output without them."""
    kernel = from_kernel(bare, policies=Policies(forward_only=True))
    assert kernel.unsupported(case(mode="train")) == "forward only: no gradients"
    assert kernel.unsupported(case(mode="inference")) is None
    module = kernel.build(reference())
    with pytest.raises(Refusal, match="forward only"):
        module(**tokens(), need_weights=False)
    with torch.no_grad():
        assert module(**tokens(), need_weights=False)[0].isfinite().all()


def test_what_the_author_says_is_passed_on() -> None:
    """unsupported, untimed, predicted_s and environment answer with the author's functions."""
    kernel = from_kernel(
        bare,
        unsupported=lambda _: "not here",
        untimed=lambda _: "interpreted",
        predicted_s=lambda _: 2.5,
        environment=lambda: {"A": "1"},
    )
    assert kernel.unsupported(case()) == "not here"
    assert kernel.untimed(case()) == "interpreted"
    assert kernel.predicted_s(case()) == 2.5
    assert kernel.environment() == {"A": "1"}
    silent = from_kernel(bare)
    assert (silent.untimed(case()), silent.predicted_s(case()), silent.environment()) == (None, None, {})


@pytest.mark.parametrize("arguments", [{}, {"bias": False}, {"kdim": 5, "vdim": 4}, {"add_bias_kv": True}])
def test_the_module_has_the_references_parameters(arguments: Any) -> None:
    """State dicts go both ways; the module's own copies change nothing in the reference."""
    expected = reference(**arguments)
    module = from_kernel(masked).build(expected)
    assert {name: p.shape for name, p in module.state_dict().items()} == {
        name: p.shape for name, p in expected.state_dict().items()
    }
    module.load_state_dict(expected.state_dict())
    with torch.no_grad():
        module.out_proj.weight.zero_()
    assert expected.out_proj.weight.any()


def test_the_module_can_be_copied_and_pickled() -> None:
    """A deep copy and a pickled copy compute the same."""
    module = from_kernel(masked).build(reference())
    inputs = tokens()
    expected = module(**inputs, need_weights=False)[0]
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(**inputs, need_weights=False)[0], expected)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_parameters_are_found_wherever_they_are_put() -> None:
    """As in any module: behind a parametrization, on the instance, as a buffer, in a table for one call, or nowhere."""

    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    plain, inputs = reference(), tokens()
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
        found["set on the instance"] = output(normed)
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
        torch.testing.assert_close(one, expected, msg=lambda told, way=way: f"{way}: {told}")
    assert not hasattr(type(module), "in_proj_weight")


def test_a_compiled_module_follows_its_parameters() -> None:
    """One graph, which reads them at each call, whether they were written into or replaced; a buffer, too."""
    torch.compiler.reset()
    module = load_implementation("sdpa").build(reference())
    weight = module.out_proj.weight.detach()
    del module.out_proj.weight
    module.out_proj.register_buffer("weight", weight)
    inputs = tokens()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for change in (lambda w: w, lambda w: w.mul_(2), lambda w: nn.Parameter(w + 1)):
        with torch.no_grad():
            module.in_proj_weight = change(module.in_proj_weight)
        found, expected = (one(**inputs, need_weights=False)[0] for one in (compiled, module))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(BATCH, QUERIES), (1, 80)])  # too few weights to store them, and enough
def test_self_attention_under_no_mask_is_the_same_by_the_shorter_way(batch: int, length: int, training: bool) -> None:
    """One tensor without a mask gives what its copies give, which go the longer way; dropout is drawn."""
    module = load_implementation("fused_projection").build(reference(dropout=0.5)).train(training)
    hidden = torch.randn(batch, length, EMBED)
    found = []
    for given in ((hidden, hidden, hidden), (hidden, hidden.clone(), hidden.clone())):
        torch.manual_seed(0)
        found.append(module(*given, need_weights=False)[0])
    torch.testing.assert_close(*found)
    assert torch.equal(found[0], module(hidden, hidden, hidden, need_weights=False)[0]) is not training


@pytest.mark.parametrize("name", ["fused_projection", "varlen_packed"])
@pytest.mark.parametrize("padded", [False, True])
def test_the_shorter_way_asks_for_the_layout_at_each_call(name: str, padded: bool) -> None:
    """As the reference does: a module told otherwise after it was built follows."""
    plain = reference()
    module = load_implementation(name).build(plain)
    plain.batch_first = module.batch_first = False
    query = torch.randn(QUERIES, QUERIES, EMBED)  # fits both ways
    hidden = torch.zeros(QUERIES, QUERIES, dtype=torch.bool)
    hidden[1, 3:] = True
    arguments = {"key_padding_mask": hidden if padded else None, "need_weights": False}
    output, expected = (one(query, query, query, **arguments)[0] for one in (module, plain))
    left = ~hidden.T[..., None] if padded else torch.ones(())
    torch.testing.assert_close(output * left, expected * left)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantization_leaves_the_output_projection_alone() -> None:
    """As in the reference, whose class it is: it is never called."""
    plain = reference().eval()
    module = load_implementation("sdpa").build(copy.deepcopy(plain)).eval()
    quantized = torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)
    query = torch.randn(BATCH, QUERIES, EMBED)
    torch.testing.assert_close(quantized(query, query, query)[0], plain(query, query, query)[0])
